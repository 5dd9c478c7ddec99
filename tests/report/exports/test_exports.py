"""The exports load in their consumers' schemas and readers, tell nothing hidden and never call pending points lost."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema
import yaml
from junitparser import Error, Failure, JUnitXml, Skipped
from report.report_factory import FACTORIES, HINTS, ROWS, mixture, outcomes, report

from grader.report.exports.autolab import autolab
from grader.report.exports.ctrf import ctrf
from grader.report.exports.disclosure import disclose
from grader.report.exports.github import github, workflow
from grader.report.exports.gradescope import gradescope
from grader.report.exports.junit import junit
from grader.report.exports.named import Named
from grader.report.exports.tables import CanvasStudent, canvas, checks_csv
from grader.report.model import Diagnosis, Kind, Report, Status

SCHEMAS = Path(__file__).parent / "schemas"
SECRET = "expected 3.14159 at q_len=77"
HOSTILE = "\x1b[31m=cmd()|'<script>alert(1)</script>\u202e\x00[red]"


def provisional() -> Report:
    """A band of speed earned in part, and one missed, against thresholds that nobody has measured."""
    pending = {"status": Status.PENDING, "message": "0.41 of the baseline; nobody has measured this card."}
    return report(outcomes(speed_sdpa=pending | {"points": 10.0}, traffic=pending))


MAKERS = {**FACTORIES, "provisional": provisional}
every_report = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def validate(name: str, document: object) -> None:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(document)


def decoded(line: str) -> Any:
    return json.loads(base64.b64decode(line, validate=False))


def validate_junit(text: str) -> None:
    xmlschema.XMLSchema11(str(SCHEMAS / "junit.xsd")).validate(io.StringIO(text))


def leaky() -> Report:
    """Hidden checks whose messages carry hidden inputs, one of them diagnosed."""
    diagnosis = Diagnosis(id="mask-top-left", text="Your output equals attention with the causal mask at the top left.")
    return report(
        outcomes(
            mask_bottom_right={"status": Status.FAIL, "message": SECRET, "diagnosis": diagnosis, "phase": "judge"},
            traffic={"status": Status.SUSPECT, "message": SECRET},
            speed_sdpa={"status": Status.TIMEOUT, "message": SECRET, "phase": "call"},
        )
    )


EXPORTS: dict[str, Callable[[Report], str]] = {
    "gradescope": gradescope,
    "github": github,
    "ctrf": lambda report: ctrf([Named("ada", report)]),
    "junit": lambda report: junit([Named("ada", report)]),
    "csv": lambda report: checks_csv([Named("ada", report)]),
    "autolab": autolab,
}


def plain(name: str, report: Report) -> str:
    text = EXPORTS[name](report)
    return json.dumps(decoded(text)) if name == "github" else text


@every_report
def test_gradescope_any_report_fits_the_schema_and_keeps_the_score(make: Callable[[], Report]) -> None:
    shown = make()
    document = json.loads(gradescope(shown))
    validate("gradescope", document)
    assert document["score"] == shown.score.points
    assert sum(test.get("score", 0) for test in document["tests"]) == pytest.approx(shown.score.points)


def test_gradescope_hidden_checks_show_after_publication_with_category_and_diagnosis_only() -> None:
    tests = json.loads(gradescope(leaky()))["tests"]
    by_hidden = {flag: [t for t in tests if ("hidden" in t["tags"]) is flag] for flag in (True, False)}
    assert {t["visibility"] for t in by_hidden[True]} == {"after_published"}
    assert {t["visibility"] for t in by_hidden[False]} == {"visible"}
    mask = by_hidden[True][0]
    assert mask["name"] == "Hidden correctness check 1"
    assert mask["output"] == ("Failed.\nDiagnosis: Your output equals attention with the causal mask at the top left.")
    assert by_hidden[True][2]["output"] == "Stopped at its time limit while it ran."


def test_gradescope_pending_points_have_no_score_and_no_verdict() -> None:
    tests = {t["number"]: t for t in json.loads(gradescope(FACTORIES["limits_hit"]()))["tests"]}
    for number, status in (("6", "suspect"), ("8", "error")):
        assert tests[number]["extra_data"]["status"] == status
        assert not {"score", "max_score", "status"} & set(tests[number])
        assert "10 points" in tests[number]["output"]


def test_gradescope_hidden_check_that_could_not_run_tells_why_in_a_sentence_of_its_own() -> None:
    skipped = {"status": Status.SKIPPED, "message": "needs an NVIDIA GPU (none is here)"}
    tests = json.loads(gradescope(report(outcomes(mask_bottom_right=skipped))))["tests"]
    output = next(test["output"] for test in tests if test["extra_data"]["status"] == "skipped")
    assert output.startswith("Not run: needs an NVIDIA GPU (none is here). ")


def test_gradescope_pending_band_shows_what_it_earned_and_nothing_lost() -> None:
    tests = json.loads(gradescope(provisional()))["tests"]
    assert (tests[6]["score"], tests[6]["max_score"]) == (10, 10)
    assert "10 points earned, 10 points pending." in tests[6]["output"]
    assert "score" not in tests[5]


def test_gradescope_leaderboard_has_the_speed_of_right_answers_only() -> None:
    measured = {"s: yours median_ms": 1.0, "s: ratio": [1.25, 1.2, 1.3]}
    right = report(outcomes(speed_sdpa={"measured": measured}))
    document = json.loads(gradescope(right))
    validate("gradescope", document)
    assert document["leaderboard"] == [{"name": "Times the baseline's speed", "value": 1.25}]
    wrong = {"status": Status.FAIL, "message": "O is wrong."}
    assert "leaderboard" not in json.loads(
        gradescope(report(outcomes(speed_sdpa={"measured": measured}, mask_bottom_right=wrong)))
    )
    assert "leaderboard" not in json.loads(gradescope(report()))


def test_gradescope_total_says_nothing_of_hidden_points() -> None:
    assert "hidden" not in json.loads(gradescope(mixture()))["output"].lower().replace("hidden checks decide", "")
    assert json.loads(gradescope(mixture()))["output"] == (
        "Public checks: 42.5/60 points, 3 of 5 checks passed. Hidden checks decide the rest."
    )


@every_report
def test_github_any_report_fits_what_the_reporter_reads(make: Callable[[], Report]) -> None:
    shown = make()
    payload = decoded(github(shown))
    validate("github", payload)
    undecided = sum(c.max_points for c in shown.checks if c.status in (Status.SUSPECT, Status.ERROR))
    assert payload["max_score"] == shown.score.gradable - undecided
    # notify-classroom.js adds up the scores of the tests.
    assert sum(test["score"] for test in payload["tests"]) == pytest.approx(shown.score.points)


def test_github_lost_points_fail_the_run_and_grader_faults_are_errors() -> None:
    assert decoded(github(report()))["status"] == "pass"
    assert decoded(github(mixture()))["status"] == "fail"
    assert decoded(github(FACTORIES["limits_hit"]()))["status"] == "error"


def test_workflow_two_labs_fits_the_schema_and_names_each_result() -> None:
    text = workflow([("lab02_online_softmax", False), ("lab06_fa2_forward", True)])
    document = yaml.safe_load(text)
    validate("workflow", document)
    steps = document["jobs"]["run-autograding-tests"]["steps"]
    reporter = steps[-1]
    assert reporter["with"]["runners"] == "lab02,lab06"
    ids = {step.get("id") for step in steps}
    for runner in reporter["with"]["runners"].split(","):
        assert runner in ids
        assert reporter["env"][f"{runner.upper()}_RESULTS"] == f"${{{{ steps.{runner}.outputs.result }}}}"
    assert "'.[triton]'" in text
    assert "[triton]" not in workflow([("lab02_online_softmax", False)])


@every_report
def test_ctrf_any_report_fits_the_schema_and_counts_its_tests(make: Callable[[], Report]) -> None:
    document = json.loads(ctrf([Named("ada", make()), Named("", make())]))
    validate("ctrf", document)
    summary, tests = document["results"]["summary"], document["results"]["tests"]
    assert summary["tests"] == len(tests) == 2 * len(ROWS)
    for status in ("passed", "failed", "skipped", "pending", "other"):
        assert summary[status] == sum(test["status"] == status for test in tests)
    assert tests[0]["suite"] == ["ada", "lab06_fa2_forward"]
    assert tests[-1]["suite"] == ["lab06_fa2_forward"]
    assert summary["stop"] - summary["start"] == 4200


@every_report
def test_junit_any_report_fits_the_schema_and_loads_in_junitparser(make: Callable[[], Report], tmp_path: Path) -> None:
    shown = make()
    text = junit([Named("ada", shown), Named("ben", shown)])
    validate_junit(text)
    (tmp_path / "junit.xml").write_text(text, encoding="utf-8")
    suites = list(JUnitXml.fromfile(str(tmp_path / "junit.xml")))
    assert [suite.name for suite in suites] == ["ada / lab06_fa2_forward", "ben / lab06_fa2_forward"]
    cases = list(suites[0])
    assert len(cases) == suites[0].tests == len(ROWS)
    kinds = [type(case.result[0]) if case.result else None for case in cases]
    assert kinds.count(Failure) == suites[0].failures
    assert kinds.count(Error) == suites[0].errors
    assert kinds.count(Skipped) == suites[0].skipped
    assert kinds.count(None) >= sum(check.status is Status.PASS for check in shown.checks)


def test_junit_schema_refuses_a_case_without_a_time() -> None:
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        validate_junit(junit([Named("ada", report())]).replace(' time="0.000"', ""))


@every_report
def test_autolab_any_report_is_one_line_that_fits_the_schema(make: Callable[[], Report]) -> None:
    shown = make()
    line = autolab(shown)
    assert line.count("\n") == 1
    document = json.loads(line)
    if document["scores"]:
        validate("autolab", document)
    assert sum(document["scores"].values()) == pytest.approx(shown.score.points)


def test_checks_csv_pending_points_are_no_zero() -> None:
    rows = list(csv.DictReader(io.StringIO(checks_csv([Named("ada", mixture())]))))
    speed = next(row for row in rows if row["kind"] == "speed")
    assert (speed["points"], speed["pending_points"]) == ("", "20")
    assert sum(float(row["points"] or 0) for row in rows) == pytest.approx(mixture().score.points)


def test_canvas_writes_the_five_columns_points_possible_and_no_silent_zero() -> None:
    text = canvas(
        [
            (CanvasStudent("Lace, Ada", "17", "s1", "ada", "A"), {"lab02": 91.5, "lab06": None}),
            (CanvasStudent("=cmd()|'x", "18", "s2", "=1+1", "A"), {"lab02": 0.0}),
        ],
        [("lab02", "Online softmax (4711)", 100.0), ("lab06", "FA2 forward", 100.0)],
    )
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assert rows[0][5:] == ["Online softmax (4711)", "FA2 forward"]
    assert rows[1] == ["Points Possible", "", "", "", "", "100", "100"]
    assert rows[2] == ["Lace, Ada", "17", "s1", "ada", "A", "91.5", ""]
    assert rows[3] == ["'=cmd()|'x", "18", "s2", "'=1+1", "A", "0", ""]


@pytest.mark.parametrize("name", EXPORTS)
def test_export_hidden_check_tells_no_message_title_or_id(name: str) -> None:
    text = plain(name, leaky())
    assert SECRET not in text
    hidden = [row for row in ROWS if row.hidden]
    assert not [row.title for row in hidden if row.title in text]
    ids = {row.id for row in hidden} - set(Kind)
    assert ids
    assert not [check_id for check_id in ids if check_id in text]


def test_disclose_instructor_sees_all() -> None:
    assert SECRET in "\n".join(shown.text for shown in disclose(leaky(), instructor=True))


@pytest.mark.parametrize("name", EXPORTS)
def test_export_hostile_texts_come_out_inert(name: str) -> None:
    checks = outcomes(contract={"status": Status.FAIL, "message": HOSTILE})
    checks[1] = checks[1].model_copy(update={"title": HOSTILE})
    text = plain(name, report(checks))
    if name in ("ctrf", "junit", "csv"):
        text += {"ctrf": ctrf, "junit": junit, "csv": checks_csv}[name]([Named(HOSTILE, report(checks))])
    for harm in ("\x1b", "\\u001b", "\u202e", "\\u202e", "\x00", "\\u0000"):
        assert harm not in text
    if name == "junit":
        assert "<script>" not in text


@pytest.mark.parametrize("name", EXPORTS)
def test_export_same_report_gives_the_same_bytes(name: str) -> None:
    assert plain(name, mixture()) == plain(name, mixture())
    assert not any(question in plain(name, mixture()) for question in HINTS.values())

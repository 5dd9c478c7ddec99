"""The engine over a stand-in submission: statuses, points, reconciliation, hermeticity."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_course import LAB_TOML, TEST_HIDDEN, TEST_PUBLIC, LocalSubmission, make_plan, run_toy, write_course

from grader.course import Course
from grader.errors import CourseError, InfrastructureError
from grader.judge import guard
from grader.judge.outcomes import TestOutcome
from grader.judge.requirements import Machine
from grader.judge.run import reconcile, run_checks
from grader.report.model import CheckResult, Status
from grader.sandbox.failures import Crashed, SubmissionRaised, TimedOut


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path)


def public_course(tmp_path: Path, body: str) -> Course:
    """The toy course, whose check `small` is decided by `body` (with `submission` and `judge` in scope)."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    head = "import numpy as np\nimport pytest\nfrom grader.judge import check\n\n"
    return write_course(tmp_path, public=f'{head}@check("small")\ndef test_small(submission, judge):\n{lines}\n')


def small(tmp_path: Path, body: str, submission: Any = lambda x: 2 * x, **changes: Any) -> CheckResult:
    return run_toy(public_course(tmp_path, body), submission, **changes)["small"]


def test_run_checks_right_answer_gets_every_point_in_order(course: Course) -> None:
    results = run_checks(make_plan(course, lambda x: 2 * x))
    assert [r.id for r in results] == ["small", "long", "negative"]
    assert {r.status for r in results} == {Status.PASS}
    assert sum(r.points for r in results) == 100
    assert results[0].measured == {"error": 0.0}


def test_run_checks_wrong_answer_gets_diagnosis_and_no_hidden_map(course: Course) -> None:
    results = run_toy(course, lambda x: x)
    assert {r.status for r in results.values()} == {Status.FAIL}
    assert results["long"].diagnosis is not None
    assert results["long"].diagnosis.id == "unchanged"
    assert results["long"].message == "long arrays come out wrong (2 of 2 cases.)"
    assert results["long"].error_map is None
    assert results["negative"].message == "This hidden correctness check did not hold."


def test_run_checks_public_map_is_kept(tmp_path: Path) -> None:
    body = """from grader.report.model import ErrorMap
judge.fail("no", error_map=ErrorMap(title="y", row_axis="i", col_axis="j", tile=(1, 1), cells=[[2.0]]))"""
    assert small(tmp_path, body).error_map is not None


def test_run_checks_twice_in_a_process_sees_each_course_anew(tmp_path: Path) -> None:
    first = public_course(tmp_path / "a", 'judge.fail("first")')
    second = public_course(tmp_path / "b", 'judge.fail("second")')
    before = set(sys.modules)
    for course, message in ((first, "first"), (second, "second"), (first, "first")):
        assert run_toy(course, lambda x: 2 * x)["small"].message == message
    assert not [name for name in set(sys.modules) - before if "test_" in name]
    assert not list(tmp_path.rglob("__pycache__"))


def test_run_checks_inputs_depend_on_key_alone(course: Course) -> None:
    def seen(double: Any, **changes: Any) -> list[float]:
        values: list[float] = []

        def spy(x: Any) -> Any:
            values.append(float(x[0]))
            return double(x)

        run_toy(course, spy, **changes)
        return values

    right, wrong = seen(lambda x: 2 * x), seen(lambda x: x)
    assert right == wrong
    assert len(set(right)) == 4
    assert seen(lambda x: 2 * x, selected=frozenset({"negative"})) == right[3:]


def test_run_checks_closes_submission_and_sets_check_timeout(tmp_path: Path) -> None:
    course = write_course(tmp_path, lab_toml=LAB_TOML.replace("points = 35", "points = 35\ntimeout_s = 7"))
    submission = LocalSubmission({"double": lambda x: 2 * x})
    run_checks(make_plan(course, submission))
    assert submission.timeouts == [None, 7.0, 7.0, None]
    assert submission.closed == 1


@pytest.mark.parametrize(
    ("failure", "status", "phase"),
    [
        (Crashed("your process was killed by signal 11", phase="call"), Status.CRASH, "call"),
        (TimedOut("no answer within 2 s", phase="import"), Status.TIMEOUT, "import"),
    ],
)
def test_run_checks_worker_failure_costs_its_check_with_its_status(
    course: Course, failure: Exception, status: Status, phase: str
) -> None:
    def double(x: Any) -> Any:
        if len(x) == 7:
            raise failure
        return 2 * x

    results = run_toy(course, double)
    assert (results["small"].status, results["small"].phase) == (status, phase)
    assert results["small"].message == str(failure)
    assert results["long"].status is Status.PASS


def test_run_checks_public_exception_is_told_in_full_and_hidden_is_not(course: Course) -> None:
    def double(x: Any) -> Any:
        raise SubmissionRaised(type_name="ValueError", text=f"x is {x[0]}", where="double.py:3 in double")

    results = run_toy(course, double, source_lines={"double.py": 9})
    assert "x is" in results["small"].message
    assert results["small"].status is Status.FAIL
    assert "x is" not in results["long"].message
    assert "ValueError at double.py:3." in results["long"].message


def test_run_checks_judge_exception_is_grader_fault_without_its_text(tmp_path: Path) -> None:
    logged: list[str] = []
    result = small(tmp_path, 'raise KeyError("expected 42")', log=logged.append)
    assert result.status is Status.ERROR
    assert (
        "Grader fault, not yours: KeyError at test_public.py:7. If that file isn't as it was handed" in result.message
    )
    assert "Restore the file" in result.message
    assert "expected 42" not in result.message
    assert "expected 42" in "".join(logged)
    assert result.message.split()[-1].rstrip(".") in "".join(logged)


def test_run_checks_sandbox_that_cannot_start_is_error_for_each_check(course: Course) -> None:
    def broken() -> Any:
        raise InfrastructureError("bwrap is missing.", hint="Install it.")

    results = run_toy(course, None, open_submission=broken)
    assert {r.status for r in results.values()} == {Status.ERROR}
    assert "bwrap is missing. Install it." in results["small"].message


def test_run_checks_public_assertion_shows_its_line(tmp_path: Path) -> None:
    result = small(tmp_path, "assert 1 == 2")
    assert result.status is Status.FAIL
    assert "`assert 1 == 2` (test_public.py:7)" in result.message


def test_run_checks_award_gives_part_of_the_points(tmp_path: Path) -> None:
    result = small(tmp_path, 'judge.award(0.25, "band 1 of 4")')
    assert (result.status, result.points, result.message) == (Status.FAIL, 10, "band 1 of 4")


def test_run_checks_full_award_passes(tmp_path: Path) -> None:
    result = small(tmp_path, 'judge.award(1.0, "all bands")')
    assert (result.status, result.points, result.message) == (Status.PASS, 40, "")


def test_run_checks_awards_of_cases_average_but_a_failure_takes_all(tmp_path: Path) -> None:
    text = """\
import pytest
from grader.judge import check

@check("small")
@pytest.mark.parametrize("part", {parts})
def test_small(judge, part):
    if part is None:
        judge.fail("wrong")
    judge.award(part, f"part {{part}}")
"""
    averaged = write_course(tmp_path / "a", public=text.format(parts=[0.0, 0.5, 1.0]))
    assert run_toy(averaged, lambda x: 2 * x)["small"].points == 20
    failed = write_course(tmp_path / "b", public=text.format(parts=[0.5, None]))
    result = run_toy(failed, lambda x: 2 * x)["small"]
    assert (result.points, result.message) == (0, "wrong (2 of 2 cases.)")


@pytest.mark.parametrize(
    ("body", "status", "points"),
    [
        ('judge.contract("a list, expected an array")', Status.CONTRACT, 0),
        ('judge.suspect("faster than the roofline")', Status.SUSPECT, 0),
        ('judge.noisy("the interval straddles 1.0", fraction=0.5)', Status.NOISY, 20),
        ('judge.pending("nobody has measured this card", fraction=0.25)', Status.PENDING, 10),
        ('judge.skip("no threshold for this card yet")', Status.SKIPPED, 0),
        ('pytest.fail("said by pytest")', Status.FAIL, 0),
        ('judge.fail("")', Status.ERROR, 0),
    ],
)
def test_run_checks_verdict_maps_to_status(tmp_path: Path, body: str, status: Status, points: float) -> None:
    result = small(tmp_path, body)
    assert (result.status, result.points) == (status, points)
    assert result.message


def test_run_checks_unmet_requirement_skips_before_the_body(tmp_path: Path) -> None:
    toml = LAB_TOML.replace('title = "Small arrays"', 'title = "Small arrays"\nrequires = ["gpu"]')
    course = write_course(tmp_path, lab_toml=toml)
    calls: list[int] = []
    results = run_toy(course, lambda x: calls.append(len(x)) or 2 * x, machine=Machine({"gpu": "needs an NVIDIA GPU"}))
    assert (results["small"].status, results["small"].message) == (Status.SKIPPED, "needs an NVIDIA GPU")
    assert 7 not in calls


def test_run_checks_some_cases_skipped_lets_the_others_decide(tmp_path: Path) -> None:
    text = """\
import pytest
from grader.judge import check

@check("small")
@pytest.mark.parametrize("here", [True, False])
def test_small(judge, here):
    if not here:
        judge.skip("needs a larger card")
"""
    result = run_toy(write_course(tmp_path, public=text), lambda x: 2 * x)["small"]
    assert result.status is Status.PASS
    assert result.message == "1 of 2 cases could not run here: needs a larger card"


@pytest.mark.parametrize(("others", "status"), [("pass", Status.SKIPPED), ("fail", Status.FAIL)])
def test_run_checks_case_that_the_submission_keeps_from_running_is_no_pass(
    tmp_path: Path, others: str, status: Status
) -> None:
    text = f"""\
import pytest
from grader.judge import check
from grader.sandbox.failures import NotInterpretable

@check("small")
@pytest.mark.parametrize("case", [1, 2, 3])
def test_small(judge, case):
    if case == 2:
        raise NotInterpretable("the interpreter can't run tl.nothing, a GPU would")
    if {others == "fail"}:
        judge.fail("wrong")
"""
    result = run_toy(write_course(tmp_path, public=text), lambda x: 2 * x)["small"]
    assert (result.status, result.points) == (status, 0)
    if others == "pass":
        assert result.message == "the interpreter can't run tl.nothing, a GPU would (1 of 3 cases.)"


def test_run_checks_without_hidden_file_skips_hidden(tmp_path: Path) -> None:
    results = run_toy(write_course(tmp_path, hidden=None), lambda x: 2 * x)
    assert results["small"].status is Status.PASS
    assert (results["long"].status, results["long"].message) == (Status.SKIPPED, "not in this copy of the course")


def test_run_checks_public_only_and_selection_leave_out_the_rest(course: Course) -> None:
    results = run_toy(course, lambda x: x, public_only=True)
    assert [r.status for r in results.values()] == [Status.FAIL, Status.SKIPPED, Status.SKIPPED]
    results = run_toy(course, lambda x: x, selected=frozenset({"long"}))
    assert [r.message for r in results.values()] == [
        "not selected",
        "long arrays come out wrong (2 of 2 cases.)",
        "not selected",
    ]


def test_run_checks_progress_tells_start_and_end_of_each_check(course: Course) -> None:
    events: list[tuple[str, Status | None]] = []
    run_checks(make_plan(course, lambda x: 2 * x, progress=lambda id, r: events.append((id, r and r.status))))
    assert events == [(id, status) for id in ("small", "long", "negative") for status in (None, Status.PASS)]


def test_run_checks_progress_agrees_with_results(course: Course) -> None:
    seen: dict[str, CheckResult | None] = {}
    assert run_toy(course, lambda x: x, progress=seen.__setitem__) == seen


@pytest.mark.parametrize(
    ("public", "message"),
    [
        ("def test_small(): pass\n", r"test_public.py: test 'test_small' carries 0 check markers"),
        ('from grader.judge import check\n@check("smal")\ndef test_a(): pass\n', "names check 'smal', which lab.toml"),
        ('from grader.judge import check\n@check("long")\ndef test_a(): pass\n', "decides the hidden check 'long'"),
        ("import no_such_module\n", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = 1\ndef broken(:\n", r"test_public.py:2: the test file cannot be loaded: SyntaxError: invalid syntax"),
        ("x = 1 / 0\n", "cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_run_checks_misused_marker_or_broken_file_is_course_error(tmp_path: Path, public: str, message: str) -> None:
    with pytest.raises(CourseError, match=message) as caught:
        run_toy(write_course(tmp_path, public=public), lambda x: 2 * x)
    assert caught.value.hint.startswith("Restore the file")


def test_run_checks_missing_public_file_is_course_error(course: Course) -> None:
    (course.assignment_dir("lab01_double") / "test_public.py").unlink()
    with pytest.raises(CourseError, match=r"test_public.py: missing"):
        run_toy(course, lambda x: 2 * x)


def test_run_checks_check_without_a_test_is_error_never_pass(tmp_path: Path) -> None:
    hidden = TEST_HIDDEN.replace('@check("negative")', '@check("long")')
    results = run_toy(write_course(tmp_path, hidden=hidden), lambda x: 2 * x)
    assert results["negative"].status is Status.ERROR
    assert "test_hidden.py: no test is bound to this check. Restore the file" in results["negative"].message


def test_run_checks_public_test_that_asks_for_what_is_not_there_is_named(tmp_path: Path) -> None:
    public = TEST_PUBLIC.replace("(submission, judge)", "(submission, jury)").replace("judge.", "jury.")
    results = run_toy(write_course(tmp_path, public=public), lambda x: 2 * x)
    assert results["small"].status is Status.ERROR
    assert "FixtureLookupError at test_public.py (it asks for 'jury')" in results["small"].message
    assert results["long"].status is Status.PASS


def test_run_checks_fault_deeper_than_the_test_blames_no_file(tmp_path: Path) -> None:
    result = small(tmp_path, "judge.no_such_word()")
    assert result.status is Status.ERROR
    assert "test_public.py" in result.message
    deeper = small(tmp_path / "deeper", "import json; json.loads('[')")
    assert "JSONDecodeError in the judge" in deeper.message


def test_run_checks_pytest_ended_early_is_error_for_the_rest(tmp_path: Path) -> None:
    results = run_toy(public_course(tmp_path, "pytest.exit('stop')"), lambda x: 2 * x)
    assert {r.status for r in results.values()} == {Status.ERROR}


def test_run_checks_test_that_exits_is_error_of_its_check(tmp_path: Path) -> None:
    results = run_toy(public_course(tmp_path, "raise SystemExit(0)"), lambda x: 2 * x)
    assert [r.status for r in results.values()] == [Status.ERROR, Status.PASS, Status.PASS]


def test_run_checks_keyboard_interrupt_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path, "raise KeyboardInterrupt")


def test_run_checks_ignores_conftest_ini_and_environment(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = course.assignment_dir("lab01_double")
    for place in (folder, tmp_path / "assignments", tmp_path):
        (place / "conftest.py").write_text("raise SystemExit('conftest was read')\n")
        (place / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only -k nothing")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_plugin")
    results = run_toy(course, lambda x: 2 * x)
    assert {r.status for r in results.values()} == {Status.PASS}
    assert os.environ["PYTEST_ADDOPTS"] == "--collect-only -k nothing"


def test_run_checks_prints_nothing_and_keeps_output_for_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logged: list[str] = []
    small(tmp_path, "print('from a test')", log=logged.append)
    assert capfd.readouterr() == ("", "")
    assert "from a test" in "".join(logged)


@pytest.fixture
def short_budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the check `small` alone: a busy machine needs more for the others."""
    monkeypatch.setattr(
        "grader.judge.plugin.budget_s", lambda spec, limits: 0.3 if spec.title == "Small arrays" else 60.0
    )
    return


@pytest.mark.usefixtures("short_budget")
def test_run_checks_endless_comparison_is_error_and_restarts_the_worker(course: Course) -> None:
    def double(x: Any) -> Any:
        if len(x) == 7:
            time.sleep(20)
        return 2 * x

    submission = LocalSubmission({"double": double})
    results = run_toy(course, submission)
    assert results["small"].status is Status.ERROR
    assert "took longer than 0.3 s" in results["small"].message
    assert submission.closed == 2  # once to be rid of the call under way, once at the end
    assert results["long"].status is Status.PASS


def test_budget_grows_with_the_limit_of_a_call(course: Course) -> None:
    lab = course.lab("lab01_double")
    spec = lab.checks["small"]
    assert guard.budget_s(spec, lab.limits) == 60 + 60 + 20 * 30
    assert guard.budget_s(spec.model_copy(update={"timeout_s": 9.0}), lab.limits) == 60 + 60 + 20 * 9


def reported(node: str, check: str = "small", outcome: str = "passed", **more: Any) -> dict[str, Any]:
    return {"nodeid": node, "outcome": outcome, "metadata": {"check": check}, "teardown": {}, **more}


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ([], "reported 0 times"),
        ([reported("n"), reported("n")], "reported 2 times"),
        ([reported("n", check="long")], "reported for another check"),
        ([reported("n", outcome="failed")], "pytest says 'failed', the record says 'pass'"),
        ([{k: v for k, v in reported("n").items() if k != "teardown"}], "did not run to its end"),
        ([{k: v for k, v in reported("n").items() if k != "metadata"}], "reported for another check"),
    ],
)
def test_reconcile_doubtful_report_is_error(course: Course, tests: list[dict[str, Any]], reason: str) -> None:
    plan = make_plan(course, lambda x: x, selected=frozenset({"small"}))
    passed = TestOutcome(Status.PASS, fraction=1.0)
    result = reconcile(plan, {"small": ["n"]}, {"n": passed}, {"tests": tests}, 0)["small"]
    assert result.status is Status.ERROR
    assert reason in result.message


def test_reconcile_without_report_is_error(course: Course) -> None:
    plan = make_plan(course, lambda x: x, selected=frozenset({"small"}))
    passed = TestOutcome(Status.PASS, fraction=1.0)
    assert reconcile(plan, {"small": ["n"]}, {"n": passed}, None, 3)["small"].status is Status.ERROR
    assert reconcile(plan, {"small": ["n"]}, {"n": passed}, {"tests": [reported("n")]}, 0)["small"].points == 40

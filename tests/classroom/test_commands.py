"""`grade gradebook`, `merge-reports` and `diff` on a class made in memory."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from classroom.factory import LAB06, MONDAY, NEEDS_GPU, WRONG, a_class, graded, lab_report, ungraded
from classroom.toy_class import a_course

from grader.batch.settings import BatchFile
from grader.classroom.records import Record, ResultsFolder
from grader.cli.failure import guarded
from grader.cli.main import invoke
from grader.course import COURSE_ENVIRONMENT_VARIABLE
from grader.report import json as report_json
from grader.report.model import SeedRecord, Status

OPEN = {"speed_sdpa": NEEDS_GPU}


@pytest.fixture(autouse=True)
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = a_course(tmp_path / "course").root
    monkeypatch.setenv(COURSE_ENVIRONMENT_VARIABLE, str(root))
    return root


def results(root: Path, records: list[Record]) -> Path:
    for record in records:
        ResultsFolder(root).write(record)
    return root


def grade(*words: object) -> int:
    return guarded(lambda: invoke([str(word) for word in words]))


def finals(root: Path) -> dict[str, str]:
    table = csv.DictReader(io.StringIO((root / "gradebook.csv").read_text()))
    return {row["student"]: row["final"] for row in table if row["lab"] == LAB06}


def test_gradebook_writes_the_table_and_shows_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = results(tmp_path / "results", a_class())
    assert grade("gradebook", root) == 0
    shown = capsys.readouterr()
    assert finals(root) == {
        **dict.fromkeys(("ada", "dan", "dot", "eve"), "100"),
        **dict.fromkeys(("ben", "cleo", "fay", "gil", "hal"), ""),
    }
    assert "70 + 20?/100" in shown.out
    assert "The archive names ../../etc/passwd" in shown.out
    assert "12 rows: 6 graded, 1 infrastructure, 1 missing, 3 pending, 1 refused; written to" in shown.err


def test_gradebook_takes_the_files_that_lie_with_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = results(tmp_path / "results", [graded("f1", checks={"forward": WRONG}), graded("stranger")])
    (root / "roster.csv").write_text("student\nf1\nf2\n")
    (root / "overrides.toml").write_text(
        'format_version = 1\n[[overrides]]\nstudent = "f1"\nlab = "lab06"\ncheck = "forward"\npoints = 20\n'
        'reason = "the test was wrong"\ndate = 2026-03-01\n'
    )
    assert grade("gradebook", root, "--json", "-") == 0
    shown = capsys.readouterr()
    rows = {row["student"]: row for row in json.loads(shown.out)}
    assert (rows["f1"]["automatic"], rows["f1"]["final"]) == ("80", "100")
    assert (rows["f2"]["status"], rows["stranger"]["notes"]) == ("missing", "not in the roster")
    assert "not in the roster: stranger" in shown.err


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("roster.csv", "name\nx\n", "roster.csv:1: no column `student`"),
        ("overrides.toml", "format_version = 2\n", "overrides.toml: `format_version`"),
        ("rubric.toml", "format_version = 1\n[students.zoe.lab06]\npoints = {}\n", "`students.zoe`: no such student"),
    ],
)
def test_gradebook_wrong_file_is_named_and_the_old_table_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, why: str
) -> None:
    root = results(tmp_path / "results", [graded()])
    assert grade("gradebook", root) == 0
    before = (root / "gradebook.csv").read_bytes()
    (root / name).write_text(text)
    assert grade("gradebook", root) == 2
    assert why in capsys.readouterr().err
    assert (root / "gradebook.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("grading", "why"),
    [
        ("[grading.deadlines]\nlab07 = 2026-03-02T12:00:00\n", "`grading.deadlines.lab07`: no lab 'lab07'"),
        (
            '[[grading.extensions]]\nstudent = "nobody"\nlab = "lab06"\nuntil = 2026-03-02T12:00:00\n',
            "`grading.extensions` entry 1 (student 'nobody'): no student 'nobody' in the roster or the results",
        ),
    ],
)
def test_gradebook_policy_about_nothing_is_named(
    tmp_path: Path, course: Path, capsys: pytest.CaptureFixture[str], grading: str, why: str
) -> None:
    file = course / "assignments" / "course.toml"
    file.write_text(file.read_text() + grading)
    root = results(tmp_path / "results", [graded()])
    (root / "roster.csv").write_text("student\nada\n")
    assert grade("gradebook", root) == 2
    assert why in capsys.readouterr().err


def test_gradebook_of_a_shard_leaves_decisions_on_others_alone(tmp_path: Path, course: Path) -> None:
    file = course / "assignments" / "course.toml"
    extension = '[[grading.extensions]]\nstudent = "zoe"\nlab = "lab06"\nuntil = 2026-03-02T12:00:00\n'
    file.write_text(file.read_text() + extension)
    (course / "rubric.toml").write_text("format_version = 1\n[students.zoe.lab06]\npoints = {}\n")
    (course / "overrides.toml").write_text(
        'format_version = 1\n[[overrides]]\nstudent = "zoe"\nlab = "lab06"\ncheck = "forward"\npoints = 20\n'
        'reason = "-"\ndate = 2026-03-01\n'
    )
    root = results(tmp_path / "results", [graded()])
    assert grade("gradebook", root) == 2
    (root / "batch.json").write_text('{"shard": "1/2"}')
    assert grade("gradebook", root) == 0
    assert finals(root) == {"ada": "100"}


def test_merge_reports_decides_open_checks_once_and_for_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = results(
        tmp_path / "results", [graded("ada", content="a", checks=OPEN), graded("ben", content="b", checks=OPEN)]
    )
    there = tmp_path / "gpu"
    there.mkdir()
    (there / "a.json").write_text(report_json.dumps(lab_report(content="a", device="cuda", device_name="NVIDIA H200")))
    (there / "x.json").write_text(report_json.dumps(lab_report(content="x")))
    (there / "batch.json").write_text("{}")
    assert grade("merge-reports", root, there) == 0
    said = capsys.readouterr().err
    assert "a.json: ada: speed-sdpa" in said
    assert "no record of lab06 has the submission" in said
    assert "batch.json: Not a report" in said
    assert finals(root) == {"ada": "100", "ben": ""}
    assert grade("gradebook", root) == 0
    assert finals(root) == {"ada": "100", "ben": ""}


def test_merge_reports_decides_a_pending_table_and_leaves_a_pending_speed(tmp_path: Path) -> None:
    waiting = {"status": Status.PENDING, "points": 0.0, "message": "What can be seen without its card is right."}
    root = results(
        tmp_path / "results",
        [
            graded("ada", content="a", checks={"benchmark": waiting}),
            graded("ben", content="b", checks={"speed_sdpa": waiting}),
        ],
    )
    there = tmp_path / "gpu"
    there.mkdir()
    for content in "ab":
        (there / f"{content}.json").write_text(report_json.dumps(lab_report(content=content, device="cuda")))
    assert grade("merge-reports", root, there) == 0
    assert finals(root) == {"ada": "100", "ben": ""}


def test_merge_reports_takes_a_batch_of_another_machine(tmp_path: Path) -> None:
    root = results(tmp_path / "here", [graded(content="a", checks=OPEN), ungraded("fay", "refused", "zip-slip")])
    there = results(tmp_path / "there", [graded(content="a", job="gpu"), ungraded("fay", "refused", "zip-slip")])
    assert grade("merge-reports", root, there) == 0
    assert finals(root)["ada"] == "100"


def shards(tmp_path: Path) -> list[Path]:
    """Results of the two halves of a class, of one student each."""
    parts = [results(tmp_path / name, [graded(name, content=name, checks=OPEN)]) for name in ("ada", "ben")]
    for number, part in enumerate(parts, start=1):
        seed = SeedRecord(source="random", key_id="0" * 16, key="ab")
        settings = BatchFile(
            submissions="s",
            shard=f"{number}/2",
            seed=seed,
            time_limit_s=1,
            patience=1,
            conditions=[],
            started_at=MONDAY,
        )
        (part / "batch.json").write_text(settings.model_dump_json())
    return parts


def test_merge_of_shards_takes_the_roster_along_unless_two_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = shards(tmp_path)
    for part in parts:
        (part / "roster.csv").write_text("student\nada\nben\ncy\n")
    assert grade("merge", tmp_path / "whole", *parts) == 0
    assert sorted(finals(tmp_path / "whole")) == ["ada", "ben", "cy"]
    (parts[0] / "roster.csv").write_text("student\nada\nben\n")
    assert grade("merge", tmp_path / "other", *parts) == 2
    assert f"{parts[0] / 'roster.csv'} and {parts[1] / 'roster.csv'} differ" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    (tmp_path / "whole" / "roster.csv").write_text("student\nben\nada\n")
    assert grade("merge", tmp_path / "whole", *parts) == 0
    assert sorted(finals(tmp_path / "whole")) == ["ada", "ben"]


def test_merge_of_shards_keeps_what_other_machines_decided(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    file = tmp_path / "report.json"
    file.write_text(report_json.dumps(lab_report(content="ada")))
    assert grade("merge-reports", parts[0], file) == 0
    assert grade("merge", tmp_path / "whole", *parts) == 0
    assert finals(tmp_path / "whole") == {"ada": "100", "ben": ""}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hashes": lab_report().hashes.model_copy(update={"lab": "9" * 64})}, "its lab06 has the hash 999999999999"),
        ({"checks": lab_report(checks=OPEN).checks}, "it decides no check that is open here"),
    ],
)
def test_merge_reports_that_cannot_help_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], why: str
) -> None:
    root = results(tmp_path / "results", [graded(content="a", checks=OPEN)])
    file = tmp_path / "report.json"
    file.write_text(report_json.dumps(lab_report(content="a").model_copy(update=change)))
    assert grade("merge-reports", root, file) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "Nothing was merged" in said
    assert not (root / "elsewhere").exists()


def test_diff_names_each_changed_score_and_its_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crash = {"forward": {"status": "crash", "message": "SIGSEGV"}}
    old = results(
        tmp_path / "old", [graded("ada", checks={"forward": WRONG}), graded("ben", checks={"forward": WRONG})]
    )
    new = results(tmp_path / "new", [graded("ada"), graded("ben", checks=crash), graded("cleo")])
    assert grade("diff", old, new) == 1
    shown = capsys.readouterr()
    lines = [line.strip() for line in shown.out.splitlines()]
    assert lines == [
        "ada  lab06 80 -> 100",
        "forward: fail 0/20 -> pass 20/20",
        "cleo  lab06 no row -> 100",
    ]
    assert "2 of 3 scores changed" in shown.err


def test_diff_of_equal_results_is_silent_and_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (results(tmp_path / name, a_class()) for name in ("old", "new"))
    assert grade("diff", old, new) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "0 of 12 scores changed\n")


def test_diff_sees_points_that_are_decided_now_and_says_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lab_report(checks=OPEN)
    failed = {"speed_sdpa": {"status": "fail", "message": "slow"}}
    after = lab_report(checks=failed, hashes=before.hashes.model_copy(update={"lab": "8" * 64}))
    for name, report in (("old", before), ("new", after)):
        (tmp_path / f"{name}.json").write_text(report_json.dumps(report))
    assert grade("diff", tmp_path / "old.json", tmp_path / "new.json", "--json", "-") == 1
    shown = capsys.readouterr()
    (change,) = json.loads(shown.out)
    assert (change["old"], change["new"], change["old_status"], change["new_status"]) == (
        "80",
        "80",
        "pending",
        "graded",
    )
    assert change["checks"] == [
        {"id": "speed-sdpa", "old": {"points": 0.0, "status": "skipped"}, "new": {"points": 0.0, "status": "fail"}}
    ]
    assert "differs: lab06: the lab's files" in shown.err


def test_diff_of_a_file_and_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = results(tmp_path / "results", [graded()])
    file = tmp_path / "report.json"
    file.write_text(report_json.dumps(lab_report()))
    assert grade("diff", root, file) == 2
    assert "report.json is a file" in capsys.readouterr().err
    assert grade("diff", file, tmp_path / "none.json") == 2
    assert "none.json: there is no such file" in capsys.readouterr().err

"""A replay draws the very inputs of its report, and refuses what it can't repeat."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_course import LAB_ID, LAB_TOML, TEST_PUBLIC, write_course, write_submission

from grader.classroom.records import Record, ResultsFolder
from grader.cli.failure import guarded
from grader.cli.main import invoke
from grader.course import COURSE_ENVIRONMENT_VARIABLE, Course
from grader.errors import UsageError
from grader.judge.seeds import SECRET_VARIABLE
from grader.replay import ReplayRequest, replay, seeds_of
from grader.report import json as report_json
from grader.report.model import Report, Status
from grader.session import GradeRequest, grade

SECRET = "not to be told to anyone"
DRAWN = TEST_PUBLIC.replace("    error =", '    judge.measure("drawn", x.tolist())\n    error =')
PROVIDED = LAB_TOML.replace('edit = ["double.py"]', 'edit = ["double.py"]\nprovided = ["given.py"]')
HALF = "def double(x):\n    return x * 2 if x.size < 50 else x.copy()\n"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    made = write_course(tmp_path / "course", lab_toml=PROVIDED, public=DRAWN)
    made.starter_dir(LAB_ID).mkdir(parents=True)
    (made.starter_dir(LAB_ID) / "given.py").write_text("GIVEN = 1\n")
    monkeypatch.setenv(COURSE_ENVIRONMENT_VARIABLE, str(made.root))
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    return made


@pytest.fixture
def graded(course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """A report of a submission that doubles short arrays only."""

    def make(*, secret: str | None = None) -> Report:
        submission = write_submission(tmp_path / "work" / LAB_ID, HALF)
        with monkeypatch.context() as patch:
            if secret is not None:
                patch.setenv(SECRET_VARIABLE, secret)
            return grade(GradeRequest(course, LAB_ID, submission))

    return make


def run(*words: object) -> int:
    return guarded(lambda: invoke([str(word) for word in words]))


def test_replay_of_a_secret_draws_the_same_inputs(
    graded: Callable[..., Report], course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = graded(secret=SECRET)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    done = replay(ReplayRequest(course, report, "small or long", Path(report.submission.path)))
    assert done.differs == ()
    assert [(check.then.id, check.then.status, check.same) for check in done.checks] == [
        ("small", Status.PASS, True),
        ("long", Status.FAIL, True),
    ]
    assert done.checks[0].now.measured["drawn"] == done.checks[0].then.measured["drawn"]
    # Another run doesn't draw them by chance.
    monkeypatch.setenv(SECRET_VARIABLE, SECRET[::-1])
    other = grade(GradeRequest(course, LAB_ID, Path(report.submission.path), checks=frozenset({"small"})))
    assert other.checks[0].measured["drawn"] != done.checks[0].then.measured["drawn"]


def test_replay_of_a_random_key_takes_it_from_the_report(graded: Callable[..., Report], course: Course) -> None:
    report = graded()
    done = replay(ReplayRequest(course, report, "small", Path(report.submission.path)))
    assert [check.then.id for check in done.checks] == ["small"]
    assert done.checks[0].now.measured == done.checks[0].then.measured


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (None, "come from a secret (key {key}), and none is set here. Set GRADE_SECRET"),
        ("x" * 20, "come from the secret"),
    ],
)
def test_seeds_of_another_or_no_secret_is_refused(
    monkeypatch: pytest.MonkeyPatch, secret: str | None, why: str
) -> None:
    from report.report_factory import report

    made = report()
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    if secret is not None:
        monkeypatch.setenv(SECRET_VARIABLE, secret)
    with pytest.raises(UsageError) as caught:
        seeds_of(made)
    assert why.format(key=made.seed.key_id) in str(caught.value)
    assert not secret or secret not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "double.py").write_text(HALF + "\n"), "double.py isn't the same"),
        (lambda folder: (folder / "double.py").unlink(), "double.py is missing"),
        (lambda folder: (folder / "more.py").write_text("x = 1\n"), "more.py wasn't there"),
    ],
)
def test_replay_of_other_files_is_refused_before_any_runs(
    course: Course, tmp_path: Path, change: Callable[[Path], object], why: str
) -> None:
    report = made_by_hand(course, tmp_path)
    change(Path(report.submission.path))
    with pytest.raises(UsageError) as caught:
        replay(ReplayRequest(course, report, "small", Path(report.submission.path)))
    assert why in str(caught.value)


def made_by_hand(course: Course, tmp_path: Path) -> Report:
    """A report whose hashes are those of a real submission, without a run."""
    from report.report_factory import outcomes, report

    from grader import provenance
    from grader.sandbox.stage import stage

    folder = write_submission(tmp_path / "hand" / LAB_ID, HALF)
    with stage(folder, course.lab(LAB_ID), course.starter_dir(LAB_ID)) as staged:
        files = {"path": str(folder), "sha256": staged.sha256, "files": dict(staged.files)}
    skipped = outcomes()[0].model_copy(
        update={"id": "negative", "status": Status.SKIPPED, "points": 0.0, "message": "not selected"}
    )
    return report(
        [outcomes()[0].model_copy(update={"id": "small"}), skipped],
        lab={"id": LAB_ID, "number": 1, "title": "Twice"},
        submission=files,
        seed={"source": "random", "key_id": "0" * 16, "key": "ab" * 32},
        profile={"name": "cpu", "title": "CPU", "chosen_by": "course", "sha256": "0" * 64},
        hashes=provenance.look(course).hashes(course, LAB_ID),
    )


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("negative", "skipped that (not selected): there is nothing to repeat"),
        ("long", "The report has no result of long. It has small, negative."),
        ("nothing", "-k 'nothing' picks no check"),
    ],
)
def test_replay_of_what_was_not_run_is_refused(course: Course, tmp_path: Path, expression: str, why: str) -> None:
    report = made_by_hand(course, tmp_path)
    with pytest.raises(UsageError) as caught:
        replay(ReplayRequest(course, report, expression, Path(report.submission.path)))
    assert why in str(caught.value)


def test_replay_in_a_students_copy_is_refused(course: Course, tmp_path: Path) -> None:
    report = made_by_hand(course, tmp_path)
    (course.assignment_dir(LAB_ID) / "test_hidden.py").unlink()
    with pytest.raises(UsageError, match="lacks the hidden tests of lab01: a replay is the instructor's"):
        replay(ReplayRequest(course, report, "small", Path(report.submission.path)))


def test_replay_command_says_what_changed_since(
    graded: Callable[..., Report], course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = graded()
    file = tmp_path / "report.json"
    file.write_text(report_json.dumps(report))
    assert run("replay", file, "-k", "long") == 0
    shown = capsys.readouterr()
    assert "long  the same" in shown.out
    assert "fail 0/35" in shown.out
    assert "changed since that report" not in shown.err
    # The test is mended, and the course's own file has changed.
    hidden = course.assignment_dir(LAB_ID) / "test_hidden.py"
    hidden.write_text(hidden.read_text().replace("[100, 1000]", "[10, 20]"))
    (course.starter_dir(LAB_ID) / "given.py").write_text("GIVEN = 2\n")
    assert run("replay", file, "-k", "long", "--json", tmp_path / "again.json") == 1
    shown = capsys.readouterr()
    assert "long  NOT the same" in shown.out
    assert "pass 35/35" in shown.out
    assert "changed since that report: the provided given.py" in shown.err
    assert "changed since that report: the lab's files" in shown.err
    assert "0 of 1 as before, with the inputs of the key" in shown.err
    assert json.loads((tmp_path / "again.json").read_text())["selection"] == "long"


def test_replay_command_finds_a_records_files_among_the_submissions(
    graded: Callable[..., Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from grader.batch.intake import find_submissions

    report = graded()
    submissions = tmp_path / "submissions"
    shutil.move(tmp_path / "work", submissions / "ada")
    course = Course.find()
    (found,) = find_submissions(submissions, course, [course.lab(LAB_ID)], tmp_path / "unpacked")
    fields = {"student": "ada", "members": ("ada",), "lab": LAB_ID, "outcome": "graded", "report": report}
    results = ResultsFolder(tmp_path / "results")
    path = results.write(Record(**fields, content_sha256=found.content_sha256, job_key="0" * 64))
    assert run("replay", path, "-k", "small") == 2
    assert "aren't at" in capsys.readouterr().err
    results.write_file("batch.json", json.dumps({"submissions": str(submissions)}))
    assert run("replay", path, "-k", "small") == 0
    assert run("replay", path, "-k", "small", "--submission", tmp_path / "nowhere") == 2
    assert "No submission at" in capsys.readouterr().err

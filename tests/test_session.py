"""One submission end to end, on a toy lab behind the real boundary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from toy_course import LAB_ID, LAB_TOML, REFERENCE, write_course, write_submission

from grader import provenance
from grader.course import Course
from grader.errors import InfrastructureError, UsageError
from grader.judge.seeds import Seeds
from grader.profiles import load_profile
from grader.report.model import CheckResult, Report, Status
from grader.session import GradeRequest, grade, held_to
from grader.starter import write_starter

SEEDS = Seeds(b"the grader's own tests", "secret")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path / "course")


def graded(course: Course, submission: Path, **changes: Any) -> Report:
    return grade(GradeRequest(course, LAB_ID, submission, **{"device": "cpu", "seeds": SEEDS, **changes}))


def reference(course: Course) -> Path:
    return course.solution_dir(LAB_ID) / "reference"


def by_id(report: Report) -> dict[str, CheckResult]:
    return {check.id: check for check in report.checks}


def test_grade_reference_gets_full_marks_and_tells_how(course: Course) -> None:
    report = graded(course, reference(course))
    assert (report.score.points, report.score.gradable, report.public_score.points) == (100, 100, 40)
    assert report.submission.files == {"double.py": hashlib.sha256(REFERENCE.encode()).hexdigest()}
    assert (report.device, report.profile.name, report.profile.chosen_by) == ("cpu", "cpu", "course")
    assert report.seed.source == "secret"
    assert [(t.check, t.name, t.value, t.source) for t in report.thresholds] == [("small", "atol", 0.001, "lab.toml")]
    assert report.hashes.lab == course.lab_sha256(LAB_ID)
    assert {"grader", "python", "numpy"} <= set(report.versions)
    assert not report.public_only
    assert report.duration_s > 0


def test_grade_same_secret_gives_the_same_report_but_for_time(course: Course) -> None:
    def timeless(report: Report) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(report.model_dump_json())
        del document["started_at"], document["duration_s"]
        for check in document["checks"]:
            del check["duration_s"]
        return document

    assert timeless(graded(course, reference(course))) == timeless(graded(course, reference(course)))


def test_grade_starter_loses_everything(course: Course) -> None:
    write_starter(course, LAB_ID)
    report = graded(course, course.starter_dir(LAB_ID))
    assert (report.score.points, report.score.gradable) == (0, 100)
    results = by_id(report)
    assert "TODO: double x" in results["small"].message
    assert results["long"].message.startswith("Not written yet: double.py:8 raised NotImplementedError.")


def test_grade_student_copy_without_hidden_tests_says_so(tmp_path: Path) -> None:
    course = write_course(tmp_path, hidden=None)
    report = graded(course, reference(course))
    assert report.public_only
    assert (report.score.points, report.score.gradable, report.score.total) == (40, 40, 100)


def test_grade_checks_runs_exactly_those(course: Course) -> None:
    report = graded(course, reference(course), checks=frozenset({"negative"}))
    assert [check.status for check in report.checks] == [Status.SKIPPED, Status.SKIPPED, Status.PASS]
    assert report.selection == "negative"
    with pytest.raises(UsageError, match="lab01 has no check 'nothing'"):
        graded(course, reference(course), checks=frozenset({"nothing"}))


def test_grade_missing_file_is_named(course: Course, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    results = by_id(graded(course, tmp_path / "empty"))
    assert {result.status for result in results.values()} == {Status.FAIL}
    assert "double.py" in results["small"].message
    assert results["negative"].message == "Missing: double.py."


def test_grade_no_such_submission_is_usage_error(course: Course, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No submission at"):
        graded(course, tmp_path / "nowhere")


def test_grade_provided_file_of_the_student_gives_way(tmp_path: Path) -> None:
    toml = LAB_TOML.replace('edit = ["double.py"]', 'edit = ["double.py"]\nprovided = ["factor.py"]')
    course = write_course(tmp_path / "course", lab_toml=toml)
    course.starter_dir(LAB_ID).mkdir(parents=True)
    (course.starter_dir(LAB_ID) / "factor.py").write_text("FACTOR = 2\n")
    submission = write_submission(tmp_path / "s", "from factor import FACTOR\ndef double(x):\n    return FACTOR * x\n")
    (submission / "factor.py").write_text("FACTOR = 3\n")
    assert graded(course, submission).score.points == 100


def test_grade_unknown_isolation_is_usage_error(course: Course) -> None:
    with pytest.raises(UsageError, match="Unknown isolation level 'strong'"):
        graded(course, reference(course), isolation="strong")


def test_grade_grader_fault_goes_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = 'from grader.judge import check\n@check("small")\ndef test_small():\n    {}["expected 42"]\n'
    course = write_course(tmp_path / "course", public=public)
    monkeypatch.setenv("GRADE_LOG", str(tmp_path / "log"))
    result = by_id(graded(course, reference(course)))["small"]
    assert result.status is Status.ERROR
    assert "expected 42" not in result.message
    assert "KeyError: 'expected 42'" in (tmp_path / "log").read_text()


def test_grade_sandbox_that_cannot_start_is_grader_fault(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise InfrastructureError("no namespaces here.")

    monkeypatch.setattr("grader.session.Submission._ready", broken)
    results = by_id(graded(course, reference(course)))
    assert {result.status for result in results.values()} == {Status.ERROR}
    assert "no namespaces here" in results["small"].message


def test_held_to_profile_threshold_replaces_the_labs(course: Course) -> None:
    lab = course.lab(LAB_ID)
    own = {LAB_ID: {"small": {"atol": 0.5, "ratio": 0.8}}, "lab09_other": {"small": {"atol": 9.0}}}
    profile = load_profile(course.root, "h200").model_copy(update={"thresholds": own})
    assert [(t.name, t.value, t.source) for t in held_to(lab, profile)] == [
        ("atol", 0.5, "hardware_profiles/h200.toml"),
        ("ratio", 0.8, "hardware_profiles/h200.toml"),
    ]


def test_tree_sha256_changes_with_a_byte_and_with_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = provenance.tree_sha256(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    second = provenance.tree_sha256(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, provenance.tree_sha256(tmp_path)}) == 3


def test_constraints_sha256_without_the_file_is_of_installed_versions(tmp_path: Path) -> None:
    installed = provenance.constraints_sha256(tmp_path)
    (tmp_path / "constraints.txt").write_text("numpy==2.0\n")
    assert provenance.constraints_sha256(tmp_path) != installed

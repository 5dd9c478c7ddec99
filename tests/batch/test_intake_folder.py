"""Folders that are no class's are refused before their folders become students."""

from __future__ import annotations

from pathlib import Path

import pytest
from batch_tools import PROJECT, run_grade
from toy_course import write_course

from grader.batch.intake.folder import check_submissions
from grader.errors import ExitCode, UsageError


@pytest.mark.parametrize(
    ("below", "what"),
    [
        (".", "is the folder of a course, or of a students' bundle"),
        ("starter", "is the `starter` of a course"),
        ("solutions/lab02_online_softmax", "is the `solutions` of a course"),
        ("assignments", "is the `assignments` of a course"),
        ("README.md", "the folder of submissions can't be read"),
        ("nowhere", "the folder of submissions can't be read"),
    ],
)
def test_folder_of_a_course_is_refused(below: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        check_submissions(PROJECT / below)


def test_archive_of_a_class_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "submissions.zip").write_bytes(b"PK")
    with pytest.raises(UsageError, match="an archive, expected a folder"):
        check_submissions(tmp_path / "submissions.zip")


def test_folder_of_submissions_inside_a_course_is_taken(tmp_path: Path) -> None:
    course = write_course(tmp_path / "course")
    (course.root / "submissions" / "ada").mkdir(parents=True)
    check_submissions(course.root / "submissions")


@pytest.mark.parametrize("command", ["batch", "similar"])
def test_command_on_the_course_ends_with_2_and_writes_nothing(tmp_path: Path, command: str) -> None:
    course = write_course(tmp_path / "course")
    done = run_grade(course, tmp_path / "tmp", command, course.root, "-o", course.root / "results")
    assert done.returncode == ExitCode.USAGE
    assert "is the folder of a course" in done.stderr
    assert "Name the folder that holds one folder or archive a student." in done.stderr
    assert not (course.root / "results").exists()

"""`grade init`: lays the starters out once, and never touches work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from toy_course import LAB_ID, write_course

from grader.cli.main import invoke
from grader.cli.submission import find_submission
from grader.course import WORKING_FOLDER, Course
from grader.errors import CourseError, UsageError
from grader.starter import write_starter


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = write_course(tmp_path / "course")
    write_starter(course, LAB_ID)
    monkeypatch.chdir(course.root)
    return course


def test_init_lays_out_the_working_folder(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["init"]) == 0
    work = course.root / WORKING_FOLDER / LAB_ID
    assert (work / "double.py").read_bytes() == (course.starter_dir(LAB_ID) / "double.py").read_bytes()
    assert capsys.readouterr().out == f"lab01  flash-attn-course/{LAB_ID}: 1 file made\nnext: grade lab01\n"
    assert find_submission(course, course.lab(LAB_ID), None) == work


def test_init_again_keeps_every_byte_of_work(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    invoke(["init"])
    work = course.root / WORKING_FOLDER / LAB_ID / "double.py"
    work.write_text("mine = 1\n")
    capsys.readouterr()
    assert invoke(["init"]) == 0
    assert work.read_text() == "mine = 1\n"
    assert "0 files made, 1 there already and left as they are" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder"])
def test_init_leaves_what_is_no_file_alone(course: Course, tmp_path: Path, kind: str) -> None:
    place = course.root / WORKING_FOLDER / LAB_ID / "double.py"
    place.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.py"
    if kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.write_text("mine = 1\n")
    assert invoke(["init"]) == 0
    assert place.is_symlink() or place.is_dir()
    assert elsewhere.exists() == (kind == "link")


def test_init_elsewhere_says_how_to_grade_there(
    course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "my work"
    assert invoke(["init", str(target)]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"next: export GRADE_COURSE={course.root} && cd '{target}' && grade lab01\n")
    monkeypatch.setenv("GRADE_COURSE", str(course.root))
    monkeypatch.chdir(target)
    assert find_submission(Course.find(), course.lab(LAB_ID), None) == target / LAB_ID
    monkeypatch.chdir(target / LAB_ID)
    assert find_submission(Course.find(), course.lab(LAB_ID), None) == target / LAB_ID


def test_init_into_a_file_is_a_usage_error(course: Course) -> None:
    (course.root / "work").write_text("")
    with pytest.raises(UsageError, match="work is a file, expected a folder"):
        invoke(["init", "work"])


def test_init_into_the_starters_is_a_usage_error(course: Course) -> None:
    with pytest.raises(UsageError, match="holds the starters themselves"):
        invoke(["init", "starter"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_init_where_it_may_not_write_is_a_usage_error(course: Course) -> None:
    (course.root / "locked").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        invoke(["init", "locked"])


def test_init_without_a_starter_is_a_course_error(course: Course) -> None:
    (course.starter_dir(LAB_ID) / "double.py").unlink()
    with pytest.raises(CourseError, match=r"double\.py: cannot be read"):
        invoke(["init"])

"""Every file that students must not get carries its own mark, and none that they get does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from toy_course import LAB_ID, write_course

from grader.canary import MARK, PREFIX, kept_files, mark_of, plant, planted, takes_mark, unmarked, unplanted
from grader.course import Course
from grader.errors import CourseError
from grader.judge.png import inspect_png
from grader.starter import build_starter, strip

COURSE = Course.find(Path(__file__))
PNG = COURSE.solution_dir("lab03_fa1_io") / "reference" / "io.png"


def test_course_marks_every_file_that_students_must_not_get() -> None:
    assert not unplanted(COURSE), "run `make starters`"
    kept = list(kept_files(COURSE))
    assert {name.rpartition(".")[2] for name in kept} >= {"py", "toml", "ipynb", "png", "csv", "cu", "md"}
    assert all(f"assignments/{lab_id}/test_hidden.py" in kept for lab_id in COURSE.lab_ids())
    marks = [mark_of(name) for name in kept]
    assert len(set(marks)) == len(marks) > 300


@pytest.mark.parametrize("lab_id", COURSE.lab_ids())
def test_starter_of_lab_has_no_mark(lab_id: str) -> None:
    assert not [name for name, raw in build_starter(COURSE, lab_id).items() if MARK.search(raw)]


def test_planted_gzip_keeps_its_content_and_has_one_mark() -> None:
    plain = gzip.compress(b"text" * 50, mtime=0)
    raw = planted("a.json.gz", plain)
    assert gzip.decompress(raw) == b"text" * 50
    assert MARK.findall(raw) == [mark_of("a.json.gz").encode()]
    assert planted("a.json.gz", raw) == raw
    assert MARK.findall(planted("b.json.gz", raw)) == [mark_of("b.json.gz").encode()]


def test_planted_gzip_with_another_header_is_refused() -> None:
    raw = gzip.compress(b"text", mtime=0)
    with pytest.raises(CourseError, match="no way is known"):
        planted("a.gz", raw[:3] + b"\x08" + raw[4:10] + b"name\0" + raw[10:])


def test_kept_files_leaves_provided_ones_out() -> None:
    assert "solutions/lab03_fa1_io/reference/machine.py" not in set(kept_files(COURSE))
    assert "solutions/lab03_fa1_io/reference/fa1.py" in set(kept_files(COURSE))


@pytest.mark.parametrize(
    ("name", "line"),
    [("a.py", "# {}"), ("a.toml", "# {}"), ("a.cu", "// {}"), ("a.c", "// {}"), ("a.md", "<!-- {} -->")],
)
def test_planted_source_ends_with_one_mark_and_strips_again(name: str, line: str) -> None:
    raw = planted(name, b"x = 1")
    assert raw.decode() == f"x = 1\n{line.format(mark_of(name))}\n"
    assert planted(name, raw) == raw
    assert unmarked(raw.decode()) == strip(raw.decode()) == "x = 1\n"


def test_planted_behind_a_function_stays_formatted_and_strips_again() -> None:
    text = "def f():\n    return 1\n"
    raw = planted("a.py", text.encode())
    assert raw.decode() == f"{text}\n\n# {mark_of('a.py')}\n"
    assert planted("a.py", raw) == raw
    assert unmarked(raw.decode()) == strip(raw.decode()) == text


def test_planted_copy_of_a_marked_file_gets_its_own_mark() -> None:
    assert MARK.findall(planted("b.py", planted("a.py", b"x = 1\n"))) == [mark_of("b.py").encode()]


def test_planted_notebook_has_the_mark_in_its_metadata() -> None:
    raw = planted("a.ipynb", json.dumps({"cells": [], "metadata": {"kernelspec": {}}}).encode())
    assert json.loads(raw)["metadata"] == {"kernelspec": {}, "canary": mark_of("a.ipynb")}


def test_planted_picture_is_whole_and_shows_the_same() -> None:
    raw = planted("a.png", PNG.read_bytes())
    assert MARK.findall(raw) == [mark_of("a.png").encode()]
    assert planted("a.png", raw) == raw
    assert inspect_png(raw) == inspect_png(PNG.read_bytes())


def test_planted_unknown_kind_is_course_error() -> None:
    with pytest.raises(CourseError, match=r"a\.npz: no way is known to mark a \.npz file"):
        planted("a.npz", b"PK")
    assert not takes_mark("a.csv")


def test_plant_marks_what_is_new_and_nothing_else(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    hidden = f"assignments/{LAB_ID}/test_hidden.py"
    assert plant(course) == [
        hidden,
        f"solutions/{LAB_ID}/reference/double.py",
        f"solutions/{LAB_ID}/wrong/forgotten.toml",
    ]
    assert plant(course) == []
    assert PREFIX not in (tmp_path / "assignments" / LAB_ID / "test_public.py").read_text()
    (tmp_path / hidden).write_text("x = 1\n")
    assert unplanted(course) == [hidden]

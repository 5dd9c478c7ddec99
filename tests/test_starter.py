"""Starters: the reference without what lies between the markers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from toy_course import LAB_ID, LAB_TOML, write_course

from grader.course import Course
from grader.errors import CourseError
from grader.starter import build_starter, has_region, strip, strip_notebook, write_starter

COURSE = Course.find(Path(__file__).parent)
LABS = [lab_id for lab_id in COURSE.lab_ids() if (COURSE.solution_dir(lab_id) / "reference").is_dir()]


def test_strip_region_becomes_its_starter_lines_at_its_indent() -> None:
    text = (
        "def f(x):\n"
        "    # BEGIN SOLUTION\n"
        "    # STARTER: # TODO: loop over the blocks\n"
        "    # STARTER: for block in x:\n"
        "    # STARTER:     raise NotImplementedError\n"
        "    return sum(x)\n"
        "    # END SOLUTION\n"
    )
    assert strip(text) == (
        "def f(x):\n    # TODO: loop over the blocks\n    for block in x:\n        raise NotImplementedError\n"
    )


@pytest.mark.parametrize(
    ("opening", "closing"), [("### ", ""), ("// ", ""), ("<!-- ", " -->"), ("/* ", " */"), ("-- ", ""), ("% ", "")]
)
def test_strip_any_comment_prefix_works(opening: str, closing: str) -> None:
    def mark(words: str) -> str:
        return f"{opening}{words}{closing}\n"

    text = f"above\n{mark('BEGIN SOLUTION')}{mark('STARTER: TODO')}answer\n{mark('END SOLUTION')}below\n"
    assert strip(text) == "above\nTODO\nbelow\n"


def test_strip_region_at_the_margin_may_vanish() -> None:
    assert strip("a = 1\n# BEGIN SOLUTION\ndef helper(): ...\n# END SOLUTION\nb = 2\n") == "a = 1\nb = 2\n"


def test_strip_text_without_markers_is_unchanged() -> None:
    text = "# STARTER: outside a region is a comment\nx = 'BEGIN SOLUTION'\r\nlast line"
    assert strip(text) == text
    assert not has_region(text)


def test_strip_empty_starter_line_is_an_empty_line() -> None:
    assert strip("    # BEGIN SOLUTION\n    # STARTER:\n    # STARTER: x\n    # END SOLUTION\n") == "\n    x\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# BEGIN SOLUTION\nx\n", r"a.py:1: BEGIN SOLUTION without an END SOLUTION"),
        ("x\n# END SOLUTION\n", r"a.py:2: END SOLUTION without a BEGIN SOLUTION"),
        ("# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION\n", r"a.py:2: BEGIN SOLUTION inside the region"),
        ("    # BEGIN SOLUTION\n    x\n    # END SOLUTION\n", r"a.py:1: the region has no `STARTER:` line"),
        ("# BEGIN SOLUTION\nx\n# STARTER: y\n# END SOLUTION\n", r"a.py:3: a STARTER line below the solution"),
    ],
)
def test_strip_misplaced_marker_is_course_error_that_names_the_line(text: str, message: str) -> None:
    with pytest.raises(CourseError, match=message):
        strip(text, "a.py")


def test_strip_notebook_strips_cells_and_outputs() -> None:
    cell = {
        "cell_type": "code",
        "execution_count": 3,
        "metadata": {},
        "outputs": [{"text": "42"}],
        "source": [
            "# BEGIN SOLUTION\n",
            "# STARTER: answer = ...\n",
            "answer = 42\n",
            "# END SOLUTION\n",
            "print(answer)",
        ],
    }
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    stripped = json.loads(strip_notebook(text))["cells"][0]
    assert "".join(stripped["source"]) == "answer = ...\nprint(answer)"
    assert (stripped["outputs"], stripped["execution_count"]) == ([], None)


def test_write_starter_writes_what_changed_and_removes_the_rest(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    folder = course.starter_dir(LAB_ID)
    folder.mkdir(parents=True)
    (folder / "old.py").write_text("left over")
    assert {path.name for path in write_starter(course, LAB_ID)} == {"double.py", "old.py"}
    assert 'raise NotImplementedError("TODO: double x")' in (folder / "double.py").read_text()
    assert "x * 2" not in (folder / "double.py").read_text()
    assert write_starter(course, LAB_ID) == []


def test_build_starter_takes_provided_files_from_reference_else_starter(tmp_path: Path) -> None:
    toml = LAB_TOML.replace('edit = ["double.py"]', 'edit = ["double.py"]\nprovided = ["data.csv"]')
    course = write_course(tmp_path, lab_toml=toml)
    with pytest.raises(CourseError, match=r"data.csv: missing, but lab.toml lists it under files.provided"):
        build_starter(course, LAB_ID)
    course.starter_dir(LAB_ID).mkdir(parents=True)
    (course.starter_dir(LAB_ID) / "data.csv").write_text("from starter")
    assert build_starter(course, LAB_ID)["data.csv"] == b"from starter"
    (course.solution_dir(LAB_ID) / "reference/data.csv").write_text("from reference")
    assert build_starter(course, LAB_ID)["data.csv"] == b"from reference"


def test_build_starter_without_a_region_is_course_error(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    (course.solution_dir(LAB_ID) / "reference/double.py").write_text("def double(x):\n    return 2 * x\n")
    with pytest.raises(CourseError, match="the starter would be the solution"):
        build_starter(course, LAB_ID)


@pytest.mark.parametrize("lab_id", LABS)
def test_starter_of_lab_equals_stripped_reference(lab_id: str) -> None:
    folder = COURSE.starter_dir(lab_id)
    present = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted = build_starter(COURSE, lab_id)
    assert sorted(present) == sorted(wanted), "run `make starters`"
    assert [name for name in wanted if present[name] != wanted[name]] == [], "run `make starters`"


@pytest.mark.parametrize("lab_id", LABS)
def test_starter_of_lab_has_todos_and_no_marker(lab_id: str) -> None:
    starter = {name: content.decode(errors="replace") for name, content in build_starter(COURSE, lab_id).items()}
    assert not [name for name, text in starter.items() if "SOLUTION" in text or "STARTER:" in text]
    assert any("TODO" in starter[name] for name in COURSE.lab(lab_id).files.edit)


@pytest.mark.parametrize("lab_id", LABS)
def test_starter_of_lab_compiles(lab_id: str) -> None:
    for name, content in build_starter(COURSE, lab_id).items():
        if name.endswith(".py"):
            compile(content, name, "exec")


def test_main_names_an_unknown_lab() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grader.starter", "lab77"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert "Unknown lab 'lab77'" in done.stderr


def test_strip_region_that_leaves_nothing_leaves_one_gap() -> None:
    text = "import x\n\n\n# BEGIN SOLUTION\ndef helper():\n    pass\n\n\n# END SOLUTION\n\n\ndef f():\n    pass\n"
    assert strip(text) == "import x\n\n\ndef f():\n    pass\n"


def test_strip_region_at_the_end_leaves_no_gap() -> None:
    text = "def asked(): ...\n\n\n# BEGIN SOLUTION\ndef helper(): ...\n\n\n# END SOLUTION\n"
    assert strip(text) == "def asked(): ...\n"

"""overrides.toml and rubric.toml: what they hold, and the errors that name the entry."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from classroom.factory import LAB06
from classroom.toy_class import a_course

from grader.classroom.decisions import read_overrides, read_rubric
from grader.errors import GraderError

STUDENTS = {"ada", "ben"}
ENTRY = """\
[[overrides]]
student = "ada"
lab = "lab06"
check = "forward"
points = 12.5
reason = "r"
date = 2026-03-01
"""
NO_LAB = ENTRY.replace('lab = "lab06"\n', "")


def overrides(tmp_path: Path, text: str) -> tuple:
    path = tmp_path / "overrides.toml"
    path.write_text("format_version = 1\n" + text)
    return read_overrides(path, a_course(tmp_path / "course", rubric=True), STUDENTS)


def test_read_overrides_later_date_holds_and_lab_is_named_in_full(tmp_path: Path) -> None:
    later = ENTRY.replace("forward", "traffic").replace("12.5", "3").replace("03-01", "03-02")
    earlier = ENTRY.replace("forward", "traffic").replace("12.5", "4")
    (found,) = overrides(tmp_path, later + earlier)
    assert (found.lab, found.points, found.date.day) == (LAB06, Decimal(3), 2)


def test_read_overrides_lab_may_be_left_out_where_the_check_says_it(tmp_path: Path) -> None:
    (found,) = overrides(tmp_path, NO_LAB.replace("forward", "focus"))
    assert (found.lab, found.check) == (LAB06, "focus")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            ENTRY.replace("ada", "adda"),
            "`overrides` entry 1 (student 'adda'): no student 'adda' in the roster or the results. Did you",
        ),
        (
            ENTRY.replace("forward", "trafic"),
            "`overrides` entry 1 (student 'ada'): lab06 has no check 'trafic'. Did you mean 'traffic'?",
        ),
        (
            ENTRY.replace("12.5", '"7"'),
            "`points` of `overrides` entry 1 (student 'ada'): input should be a number, found '7'",
        ),
        (ENTRY.replace("lab06", "lab07"), "entry 1 (student 'ada'): no lab 'lab07' in this course"),
        (NO_LAB.replace("forward", "traffic"), "may be of lab02, lab06. Add `lab"),
        (
            NO_LAB.replace("forward", "fooward"),
            "no lab has a check 'fooward'. Did you mean",
        ),
        (ENTRY.replace("forward", "traffic"), "entry 1 (student 'ada'): 12.5 points for traffic, which has 10"),
        (
            ENTRY.replace("forward", "focus") * 2,
            "`overrides` entry 2 (student 'ada'): a second one of 2026-03-01 for ada, lab06, focus",
        ),
        (
            ENTRY.replace("12.5", "-1"),
            "`points` of `overrides` entry 1 (student 'ada'): input should be greater than or equal to 0",
        ),
        (ENTRY.replace("12.5", '"12"'), "`points` of `overrides` entry 1 (student 'ada')"),
        (ENTRY.replace('reason = "r"\n', ""), "`reason` of `overrides` entry 1 (student 'ada') is missing"),
        (ENTRY.replace("2026-03-01", '"yesterday"'), "`date` of `overrides` entry 1 (student 'ada')"),
        (ENTRY.replace("points", "point"), "`point` of `overrides` entry 1 (student 'ada') is not a key"),
        ("[[overrides]\n", "not valid TOML"),
    ],
)
def test_read_overrides_fault_names_file_entry_and_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(GraderError) as caught:
        overrides(tmp_path, text)
    assert "overrides.toml" in str(caught.value)
    assert why in str(caught.value)
    assert caught.value.exit_code == 2


def rubric(tmp_path: Path, text: str) -> object:
    path = tmp_path / "rubric.toml"
    path.write_text("format_version = 1\n" + text)
    return read_rubric(path, a_course(tmp_path / "course", rubric=True), STUDENTS)


def test_read_rubric_by_student_and_lab(tmp_path: Path) -> None:
    found = rubric(tmp_path, '[students.ada.lab06]\nnote = "clear"\npoints = { focus = 12.5, why = 10 }\n')
    assert found["ada", LAB06].points == {"focus": Decimal("12.5"), "why": Decimal(10)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[students.adda.lab06]\npoints = { focus = 1 }\n", "`students.adda`: no such student in the roster"),
        ("[students.ada.lab06]\npoints = { focsu = 1 }\n", "rubric of lab06 has no 'focsu'. Did you mean 'focus'?"),
        ("[students.ada.lab02]\npoints = { focus = 1 }\n", "rubric of lab02 has no 'focus'. Known: none."),
        ("[students.ada.lab10]\npoints = { focus = 1 }\n", "no lab 'lab10'"),
        ("[students.ada.lab06]\npoints = { why = 11 }\n", "11 points for why, which has 10"),
        ("[students.ada.lab06]\nfocus = 3\n", "`students.ada.lab06.focus` is not a key"),
    ],
)
def test_read_rubric_fault_names_file_entry_and_reason(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(GraderError) as caught:
        rubric(tmp_path, text)
    assert "rubric.toml" in str(caught.value)
    assert why in str(caught.value)

"""Entries of overrides.toml, rubric.toml and course.toml that change nothing are told, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from classroom.factory import LAB02, MONDAY, WRONG, graded, ungraded
from classroom.toy_class import a_course

from grader.classroom.book import Book, open_book
from grader.classroom.records import Record, ResultsFolder
from grader.errors import UsageError

LATE = "[grading.late]\nrefuse_after_hours = 1\n[grading.deadlines]\nlab02 = 2026-03-01T12:00:00\n"
CLASS = [
    graded("ada", attempt=1, checks={"forward": WRONG}),
    graded("ada", attempt=2),
    graded("cy", LAB02, received_at=MONDAY),
    graded("duo", members=("dan", "dot")),
    ungraded("fay", "refused", "A bomb."),
]


def book(tmp_path: Path, files: dict[str, str], records: list[Record] = CLASS, *, lenient: bool = False) -> Book:
    course = a_course(tmp_path / "course", LATE + files.pop("course.toml", ""), rubric=True)
    for record in records:
        ResultsFolder(tmp_path / "results").write(record)
    for name, text in files.items():
        (tmp_path / "results" / name).write_text(text)
    return open_book(tmp_path / "results", course, lenient=lenient)


def override(student: str, *, lab: str = "lab06", check: str = "traffic", attempt: str = "", points: str = "1") -> str:
    said = f'[[overrides]]\nstudent = "{student}"\nlab = "{lab}"\ncheck = "{check}"\npoints = {points}\n'
    return said + f'reason = "r"\ndate = 2026-03-10\n{attempt}\n'


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (override("ada"), ""),
        (override("ada", attempt="attempt = 2"), ""),
        (override("dot"), ""),
        (override("duo"), ""),
        (override("fay", check="total"), ""),
        (override("ada", attempt="attempt = 7"), "there is no attempt 7 (1, 2 handed in)."),
        (override("ada", attempt="attempt = 1", points="0"), "attempt 2 counts, not 1."),
        (override("ada", lab="lab02"), "ada handed in nothing of lab02."),
        (override("fay"), "nothing was graded (refused); only `total` counts then."),
        (override("cy", lab="lab02"), "it came too late to count; only `total` changes that."),
        # The records were made when `forward` had no rubric item in its place.
        (override("ada", check="focus"), ""),
        (override("ada", points="2") + override("ada", attempt="attempt = 2"), "another entry on the same check goes"),
    ],
)
def test_override_without_effect_is_told_with_file_entry_and_reason(tmp_path: Path, entry: str, why: str) -> None:
    warnings = book(tmp_path, {"overrides.toml": "format_version = 1\n" + entry}).warnings
    if not why:
        assert warnings == ()
        return
    (said,) = warnings
    assert said.startswith(f"{tmp_path / 'results' / 'overrides.toml'}: `overrides` entry 1 (student '")
    assert f"no effect: {why}" in said


def test_override_of_a_stranger_is_an_error_or_where_lenient_a_warning(tmp_path: Path) -> None:
    files = {"overrides.toml": "format_version = 1\n" + override("ada") + override("adda")}
    with pytest.raises(UsageError, match="entry 2 \\(student 'adda'\\): no student 'adda'"):
        book(tmp_path, dict(files))
    found = open_book(tmp_path / "results", a_course(tmp_path / "again", rubric=True), lenient=True)
    (said,) = found.warnings
    assert "entry 2 (student 'adda'): no effect: no student 'adda' in the roster or the results; did you mean" in said
    assert [row.overrides[0].check for row in found.rows if row.student == "ada"] == ["traffic"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("[students.ada.lab06]\npoints = { focus = 1 }\n", ""),
        ("[students.duo.lab06]\npoints = { focus = 1 }\n", ""),
        ("[students.cy.lab06]\nnote = 'not yet'\n", ""),
        ("[students.cy.lab06]\npoints = { focus = 1 }\n", "`students.cy.lab06`: no effect: cy handed in nothing of"),
        ("[students.fay.lab06]\npoints = { focus = 1 }\n", "`students.fay.lab06`: no effect: nothing was graded (ref"),
    ],
)
def test_rubric_points_that_reach_no_row_are_told(tmp_path: Path, entry: str, why: str) -> None:
    warnings = book(tmp_path, {"rubric.toml": "format_version = 1\n" + entry}).warnings
    assert [why in said for said in warnings] == ([True] if why else [])


@pytest.mark.parametrize(
    ("student", "lab", "until", "why"),
    [
        ("cy", "lab02", "2026-03-05T12:00:00", ""),
        ("cy", "lab02", "2026-02-05T12:00:00", "it isn't later than the deadline of all (2026-03-01T12:00+00:00)"),
        ("cy", "lab06", "2026-03-05T12:00:00", "lab06 has no deadline in `grading.deadlines`"),
        ("cyd", "lab02", "2026-03-05T12:00:00", "no student 'cyd' in the roster or the results; did you mean 'cy'?"),
    ],
)
def test_extension_without_effect_is_told(tmp_path: Path, student: str, lab: str, until: str, why: str) -> None:
    entry = f'[[grading.extensions]]\nstudent = "{student}"\nlab = "{lab}"\nuntil = {until}\n'
    warnings = book(tmp_path, {"course.toml": entry}).warnings
    expected = f"course.toml: `grading.extensions` entry 1 (student '{student}'): no effect: {why}"
    assert [expected in said for said in warnings] == ([True] if why else [])


def test_entries_of_another_shard_are_left_alone_and_those_of_this_one_told(tmp_path: Path) -> None:
    shard = {"batch.json": '{"shard": "1/2"}'}
    text = "format_version = 1\n" + override("zoe", attempt="attempt = 9") + override("ada", attempt="attempt = 9")
    (said,) = book(tmp_path, {"overrides.toml": text, **shard}).warnings
    assert "entry 2 (student 'ada'): no effect: there is no attempt 9" in said

"""What `grade rubric` does: shows whose points are open, asks for them, writes them down, tells what is still open."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

from grader.classroom.accepting import accept, waiting
from grader.classroom.book import OVERRIDES_FILE, RUBRIC_FILE, Book, ClassFiles, open_book, placed
from grader.classroom.decisions import RubricGrade
from grader.classroom.entering import enter, lacking, parse_points, parse_setting
from grader.cli.console import STDOUT, say
from grader.cli.listing import emit
from grader.course import Course, Lab
from grader.errors import ExitCode, UsageError
from grader.report.model import TO_READ
from grader.report.text import count, one_line

ACCEPTED = "accepted without the card that the table names"
"""The reason of an override where no --note was given."""


@dataclass(frozen=True)
class Entry:
    """What was asked for; see `grade rubric --help`."""

    results: Path
    lab: str
    student: str | None
    settings: tuple[str, ...]
    accept: tuple[str, ...]
    note: str | None
    file: Path | None
    roster: Path | None


def enter_points(entry: Entry, *, json_target: str | None) -> int:
    """Enter what was given, or ask; then say whose points are still open.

    Raises:
        UsageError: no rubric in that lab, no such student, a value that isn't possible; nothing is written then.
    """
    course = Course.find()
    lab = course.lab(entry.lab)
    if entry.accept:
        return _accept(entry, course, lab, json_target)
    if not lab.rubric:
        having = [course.lab(name).short_id for name in course.lab_ids() if course.lab(name).rubric]
        raise UsageError(
            f"{lab.short_id} has no rubric: all its points are automatic.",
            hint=f"Labs with one: {', '.join(having) or 'none'}.",
        )
    path = entry.file or _file(entry.results, course)
    there = path if path.is_file() else None
    book = open_book(entry.results, course, ClassFiles(entry.roster, None, there))
    students = _students(book, lab, entry.student)
    if entry.settings or entry.note is not None:
        _enter_given(entry, lab, students, path)
    elif json_target is None and sys.stdin.isatty():
        _ask(book, lab, students, path)
    elif json_target is None:
        raise UsageError(
            "There is nobody to ask here, and nothing was given.", hint="Give --student ID and --set ITEM=POINTS."
        )
    return _tell(entry, course, lab, students, path, json_target)


def _accept(entry: Entry, course: Course, lab: Lab, json_target: str | None) -> int:
    """Give the points of pending checks, and make gradebook.csv anew."""
    book = open_book(entry.results, course, ClassFiles(entry.roster))
    found = waiting(book.rows, lab, _students(book, lab, entry.student), entry.accept)
    path = placed(None, OVERRIDES_FILE, (entry.results, course.root)) or entry.results / OVERRIDES_FILE
    if found:
        accept(path, lab, found, entry.note or ACCEPTED, date.today())
        book = open_book(entry.results, course, ClassFiles(entry.roster))
    if json_target is not None:
        told = [{"student": one.student, "check": one.check.id, "points": one.check.max_points} for one in found]
        emit(told, json_target)
    if json_target != STDOUT:
        for one in found:
            print(f"{one_line(one.student)}: {one.check.id} {one.check.max_points:g}")
    say(
        f"{count(len(found), 'check')} accepted; written to {path} and {book.write()}"
        if found
        else "nothing is pending"
    )
    return int(ExitCode.OK)


def _file(results: Path, course: Course) -> Path:
    """Where a gradebook of these results looks: a new file is made in RESULTS."""
    places = (results / RUBRIC_FILE, course.root / RUBRIC_FILE)
    return next((path for path in places if path.is_file()), places[0])


def _students(book: Book, lab: Lab, asked: str | None) -> list[str]:
    """Those who handed the lab in, or the one who was named."""
    handed_in = list(dict.fromkeys(row.student for row in book.rows if row.lab == lab.id))
    if asked is None:
        return handed_in
    known = {*handed_in, *(row.group for row in book.rows if row.lab == lab.id and row.group)}
    if asked not in known:
        shown = ", ".join(one_line(student) for student in sorted(known)[:30]) or "nobody"
        raise UsageError(f"{one_line(asked)!r} has no row of {lab.short_id} here.", hint=f"Known: {shown}.")
    return [asked]


def _enter_given(entry: Entry, lab: Lab, students: list[str], path: Path) -> None:
    if entry.student is None:
        raise UsageError("--set and --note are about one student.", hint="Name one with --student ID.")
    points = dict(parse_setting(lab, text) for text in entry.settings)
    enter(path, lab, students[0], points, entry.note)


def _ask(book: Book, lab: Lab, students: list[str], path: Path) -> None:
    """Ask for every item that is open, student after student; an empty answer leaves it open."""
    for student in students:
        grade = book.rubric.get((student, lab.id))
        open_items = lacking(lab, grade)
        if not open_items:
            continue
        for text in _to_read(book, lab, student):
            say(f"  {text}")
        say(f"{one_line(student)}, {lab.short_id}: an empty answer leaves an item open, q ends")
        points: dict[str, Decimal] = {}
        for item in open_items:
            answer = _answer(lab, item)
            if answer is None:
                break
            points |= {item: answer} if answer >= 0 else {}
        else:
            enter(path, lab, student, points, None)
            continue
        if points:
            enter(path, lab, student, points, None)
        return


def _to_read(book: Book, lab: Lab, student: str) -> list[str]:
    """What a lab's checks leave for whoever judges by hand: figures in the prose that its table doesn't have."""
    reports = [row.report for row in book.rows if row.lab == lab.id and row.student == student]
    listed = [check.measured.get(TO_READ) for report in reports if report is not None for check in report.checks]
    return [f"{TO_READ}: {one_line(str(text))}" for texts in listed if isinstance(texts, list) for text in texts]


def _answer(lab: Lab, item: str) -> Decimal | None:
    """The points given; -1 for none, None for the end."""
    known = lab.rubric[item]
    while True:
        try:
            text = input(f"  {item} (0 to {known.points:g}) {known.title}: ").strip()
        except EOFError:
            return None
        if text in ("q", "quit"):
            return None
        if not text:
            return Decimal(-1)
        try:
            return parse_points(lab, item, text)
        except UsageError as error:
            say(f"  {error}")


def _tell(entry: Entry, course: Course, lab: Lab, students: list[str], path: Path, json_target: str | None) -> int:
    """Everybody's points and what is open; gradebook.csv is made anew where the file is the results' own."""
    there = path if path.is_file() else None
    book = open_book(entry.results, course, ClassFiles(entry.roster, None, there))
    found = {student: book.rubric.get((student, lab.id)) for student in students}
    if json_target is not None:
        emit(
            [_as_dict(lab, student, grade, _to_read(book, lab, student)) for student, grade in found.items()],
            json_target,
        )
    if json_target != STDOUT:
        for student, grade in found.items():
            print(_line(lab, student, grade))
            for text in _to_read(book, lab, student):
                print(f"  {text}")
        for item, known in lab.rubric.items():
            print(f"  {item}: {known.title} ({known.points:g})")
    if entry.file is None and there is not None:
        say(f"written to {path} and {book.write()}")
    return int(ExitCode.OK)


def _line(lab: Lab, student: str, grade: RubricGrade | None) -> str:
    given: Mapping[str, Decimal] = grade.points if grade is not None else {}
    parts = [f"{item} {given.get(item, 'pending')}" for item in lab.rubric]
    return f"{one_line(student)}: {', '.join(parts)}"


def _as_dict(lab: Lab, student: str, grade: RubricGrade | None, to_read: list[str]) -> dict[str, object]:
    given = grade.points if grade is not None else {}
    return {
        "student": student,
        "lab": lab.id,
        "points": {item: float(value) for item, value in given.items()},
        "pending": lacking(lab, grade),
        "note": grade.note if grade is not None else "",
        "to_read": to_read,
    }

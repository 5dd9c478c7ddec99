"""`roster.csv`: who is in the class, and by which ids Canvas, Gradescope and the folders know them."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from grader.errors import UsageError
from grader.report.text import one_line

Column = Literal[
    "student", "name", "email", "folder", "group", "canvas_id", "canvas_sis_id", "canvas_login", "gradescope_id",
    "section", "pseudonym",
]  # fmt: skip
COLUMNS: tuple[Column, ...] = get_args(Column)
IDS: tuple[Column, ...] = (
    "student", "folder", "email", "canvas_id", "canvas_sis_id", "canvas_login", "gradescope_id",
)  # fmt: skip
"""Columns that find a student, in the order in which they are asked."""

_ALIASES: dict[str, Column] = {
    "student_id": "student",
    "id": "canvas_id",
    "sis_user_id": "canvas_sis_id",
    "sis_login_id": "canvas_login",
    "sid": "gradescope_id",
    "full_name": "name",
    "e_mail": "email",
    "sections": "section",
}
"""Headers of Canvas's and Gradescope's own lists."""

LONGEST_PSEUDONYM = 40


@dataclass(frozen=True)
class Student:
    """One line of the roster. An empty field means that the roster doesn't say.

    Attributes:
        student: the id by which every result names this student.
        folder: the folder's name under SUBMISSIONS where it isn't `student`.
        group: name of the group that hands in together.
        pseudonym: what the leaderboard shows; only who chose one appears there by a name.
    """

    student: str
    name: str = ""
    email: str = ""
    folder: str = ""
    group: str = ""
    canvas_id: str = ""
    canvas_sis_id: str = ""
    canvas_login: str = ""
    gradescope_id: str = ""
    section: str = ""
    pseudonym: str = ""


@dataclass(frozen=True)
class Roster:
    """The class, sorted by student id."""

    students: tuple[Student, ...]
    _index: dict[tuple[Column, str], Student] = field(init=False, repr=False, compare=False)
    _groups: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index: dict[tuple[Column, str], Student] = {}
        groups: dict[str, tuple[str, ...]] = {}
        for student in self.students:
            for column in IDS:
                value = getattr(student, column)
                if value:
                    index[column, _key(column, value)] = student
            if student.group:
                groups[student.group] = (*groups.get(student.group, ()), student.student)
        object.__setattr__(self, "_index", index)
        object.__setattr__(self, "_groups", groups)

    def find(self, identifier: str, columns: Sequence[Column] = IDS) -> Student | None:
        """The student whom one of `columns` knows by `identifier`, asked in their order; None: not in the roster."""
        for column in columns:
            found = self._index.get((column, _key(column, identifier)))
            if found is not None:
                return found
        return None

    def student_of(self, identifier: str) -> str | None:
        """Id of the student whom a folder, an e-mail address or an id of Canvas or Gradescope names."""
        found = self.find(identifier)
        return found.student if found is not None else None

    def members_of(self, identifier: str) -> tuple[str, ...]:
        """Ids of all in the group called `identifier`; empty when no group is."""
        return self._groups.get(identifier, ())


def _key(column: Column, value: str) -> str:
    return value.casefold() if column in ("email", "canvas_login") else value


def read_roster(path: Path) -> Roster:
    """Read a roster: CSV with a header, UTF-8, separated by commas, semicolons or tabs.

    Raises:
        UsageError: it can't be read, a column is unknown or missing, or two lines claim the same id; names the line.
    """
    return parse_roster(roster_text(path), str(path))


def roster_text(path: Path) -> str:
    """The text of a roster's file.

    Raises:
        UsageError: it can't be read, or isn't UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).", hint="Name it with --roster.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}).", hint="Save it as CSV UTF-8.") from error


def parse_roster(text: str, name: str = "roster.csv") -> Roster:
    """As `read_roster`, from the file's text."""
    first = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UsageError(f"{name}:{reader.line_num}: not valid CSV ({error}).") from error
    if not lines:
        raise UsageError(f"{name}: empty.", hint=f"Expected a header with `student` and any of {', '.join(COLUMNS)}.")
    columns = _header(lines[0][1], name)
    students = [_student(row, columns, f"{name}:{number}") for number, row in lines[1:]]
    _reject_duplicates(students, [number for number, _ in lines[1:]], name)
    return Roster(tuple(sorted(students, key=lambda student: student.student)))


def _header(cells: Sequence[str], name: str) -> list[Column | None]:
    """The column that each cell heads; None for one of the instructor's own."""
    columns: list[Column | None] = []
    for cell in cells:
        plain = re.sub(r"[^a-z0-9]+", "_", cell.strip().lower()).strip("_")
        column = next((known for known in COLUMNS if known == plain), None) or _ALIASES.get(plain)
        if column is None and (close := difflib.get_close_matches(plain, COLUMNS, n=1, cutoff=0.75)):
            raise UsageError(f"{name}:1: unknown column {cell.strip()!r}.", hint=f"Did you mean {close[0]!r}?")
        if column is not None and column in columns:
            raise UsageError(f"{name}:1: two columns for `{column}`.", hint="Keep one of them.")
        columns.append(column)
    if "student" not in columns:
        raise UsageError(
            f"{name}:1: no column `student`.", hint=f"The first line names the columns: {', '.join(COLUMNS)}."
        )
    return columns


def _student(row: Sequence[str], columns: Sequence[Column | None], place: str) -> Student:
    if len(row) > len(columns) and any(cell.strip() for cell in row[len(columns) :]):
        raise UsageError(f"{place}: {len(row)} cells, expected {len(columns)}.", hint="Quote a cell with a separator.")
    values = {column: cell.strip() for column, cell in zip(columns, row, strict=False) if column is not None}
    if not values.get("student"):
        raise UsageError(f"{place}: no id in the column `student`.")
    pseudonym = re.sub(" +", " ", values.get("pseudonym", ""))
    if pseudonym != one_line(pseudonym, max_characters=LONGEST_PSEUDONYM):
        raise UsageError(
            f"{place}: the pseudonym has control characters or more than {LONGEST_PSEUDONYM} characters.",
            hint="Ask for another one.",
        )
    return Student(**{**values, "pseudonym": pseudonym})


def _reject_duplicates(students: Sequence[Student], numbers: Sequence[int], name: str) -> None:
    """Raise where two lines claim the same id, or a pseudonym says who somebody is."""
    numbered = list(zip(students, numbers, strict=True))
    for column in (*IDS, "pseudonym"):
        _reject_twice(((getattr(student, column), number) for student, number in numbered), column, name)
    # A folder is looked up among students, folders and groups alike: one name, one meaning.
    owners: dict[str, tuple[str, int]] = {}
    for student, number in numbered:
        for value in filter(None, (student.student, student.folder)):
            owner, line = owners.setdefault(value, (student.student, number))
            if owner != student.student:
                raise UsageError(f"{name}:{number}: {value!r} is a folder or id of line {line} already.")
    for student, number in numbered:
        if student.group in owners:
            raise UsageError(f"{name}:{number}: the group {student.group!r} is the id of a student too.")
    known = {_plain(v) for s in students for v in (s.student, s.name, s.email, s.canvas_login) if v}
    for student, number in numbered:
        if student.pseudonym and _plain(student.pseudonym) in known:
            raise UsageError(
                f"{name}:{number}: the pseudonym {student.pseudonym!r} is the name or id of somebody in the class.",
                hint="Ask for another one, or leave it empty.",
            )


def _reject_twice(values: Iterable[tuple[str, int]], column: Column, name: str) -> None:
    seen: dict[str, int] = {}
    for value, number in values:
        if not value:
            continue
        key = _key(column, value) if column != "pseudonym" else _plain(value)
        if key in seen:
            raise UsageError(f"{name}:{number}: {column} {value!r} is that of line {seen[key]} already.")
        seen[key] = number


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())

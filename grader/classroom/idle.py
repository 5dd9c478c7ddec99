"""Entries of the instructor's files that change nothing, and why: a silent one would be taken for applied."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.classroom.decisions import TOTAL, Override, Rubric
from grader.classroom.gradebook import Row
from grader.classroom.records import Record
from grader.classroom.roster import Roster
from grader.grading import Extension, Grading

UNGRADED = ("missing", "refused", "infrastructure")


@dataclass(frozen=True)
class Class:
    """What is known of a class.

    Attributes:
        students: every id that a decision may name; None where only a part of the class is known, so that nothing is
            said of the others.
    """

    rows: Sequence[Row]
    records: Sequence[Record]
    students: Collection[str] | None

    def rows_of(self, name: str, lab: str) -> list[Row]:
        """The rows of a student, or of all in the group of that name."""
        return [row for row in self.rows if row.lab == lab and name in (row.student, row.group)]

    def attempts_of(self, name: str, lab: str) -> list[int]:
        """Numbers of what was handed in."""
        own = (r for r in self.records if r.lab == lab and name in (r.student, *r.members) and r.outcome != "missing")
        return sorted({record.attempt for record in own})

    def passed_over(self, name: str) -> bool:
        """Whether the name may well be of another part of the class."""
        return self.students is None and not any(name in (row.student, row.group) for row in self.rows)

    def stranger(self, name: str) -> str:
        """Why nobody is called that; empty when somebody is."""
        if self.students is None or name in self.students:
            return ""
        close = difflib.get_close_matches(name, list(self.students), n=1, cutoff=0.5)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        return f"no student {name!r} in the roster or the results{meant}"


def known_students(records: Sequence[Record], roster: Roster | None) -> set[str]:
    """Ids that a decision may name: students, members of groups, groups."""
    known = {name for record in records for name in (record.student, *record.members)}
    for student in roster.students if roster is not None else ():
        known |= {student.student, *([student.group] if student.group else [])}
    return known


def idle_overrides(path: Path, overrides: Sequence[Override], known: Class) -> Iterator[str]:
    """A line for each override that changes no row."""
    for override in overrides:
        if known.passed_over(override.student):
            continue
        why = known.stranger(override.student) or _why_not(override, known)
        if why:
            yield f"{path}: {override.place}: no effect: {why}."


def _why_not(override: Override, known: Class) -> str:
    lab = override.lab or ""
    rows = known.rows_of(override.student, lab)
    if any(_applied(override, row) for row in rows):
        return ""
    attempts = known.attempts_of(override.student, lab)
    if not attempts:
        # A person's word on the total may stand in for work that never came, but only in a row.
        return f"{override.student} handed in nothing of {lab[:5]}" + (" (`total` would count)" if rows else "")
    if override.attempt is not None and override.attempt not in attempts:
        return f"there is no attempt {override.attempt} ({', '.join(map(str, attempts))} handed in)"
    row = rows[0]
    if override.attempt not in (None, row.attempt):
        return f"attempt {row.attempt} counts, not {override.attempt}"
    if row.status in UNGRADED:
        return f"nothing was graded ({row.status}); only `total` counts then"
    if row.status == "too late":
        return "it came too late to count; only `total` changes that"
    if row.report is not None and override.check not in {check.id for check in row.report.checks}:
        return f"the graded report has no check {override.check!r}; grade again"
    return "another entry on the same check goes before it"


def _applied(override: Override, row: Row) -> bool:
    said = (override.check, override.points, override.reason, override.date)
    return any(said == (done.check, done.after, done.reason, done.date) for done in row.overrides)


def idle_rubric(path: Path, rubric: Rubric, known: Class) -> Iterator[str]:
    """A line for each student and lab whose points by hand reach no row."""
    for (student, lab), grade in rubric.items():
        if not grade.points or known.passed_over(student):
            continue
        rows = known.rows_of(student, lab)
        why = known.stranger(student)
        if not why and not any(row.report is not None for row in rows):
            why = (
                f"nothing was graded ({rows[0].status})" if rows else f"{student} handed in nothing of {lab[:5]}"
            ) + f"; only an override of {TOTAL!r} gives points then"
        if why:
            yield f"{path}: `students.{student}.{lab[:5]}`: no effect: {why}."


def idle_extensions(path: Path, grading: Grading, known: Class) -> Iterator[str]:
    """A line for each extension that makes no deadline later."""
    for number, extension in enumerate(grading.extensions, start=1):
        why = known.stranger(extension.student) or _no_later(grading, extension)
        if why:
            yield f"{path}: {extension_place(number, extension)}: no effect: {why}."


def _no_later(grading: Grading, extension: Extension) -> str:
    common = grading.deadline(extension.lab)
    if common is None:
        return f"{extension.lab[:5]} has no deadline in `grading.deadlines`"
    if grading.deadline(extension.lab, extension.student) == common:
        return f"it isn't later than the deadline of all ({common.isoformat(timespec='minutes')})"
    return ""


def extension_place(number: int, extension: Extension) -> str:
    """How an extension is called in messages."""
    return f"`grading.extensions` entry {number} (student {extension.student!r})"

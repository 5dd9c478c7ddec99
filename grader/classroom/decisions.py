"""What people decided: `overrides.toml` (a check's or a lab's points) and `rubric.toml` (points given by hand)."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from grader.course import Course, Lab, load_toml
from grader.errors import UsageError
from grader.grading import Exact, LabName, Section

TOTAL = "total"
"""In place of a check's id: the whole lab's points, late work and all."""


class Override(Section):
    """A person's word on one check of one student.

    Attributes:
        check: a check's or rubric item's id, or `total` for the lab as a whole.
        points: what it's worth now, before anything is lost for lateness; with `total` the final points.
        date: of the decision; of two on the same check the later one holds.
        lab: may be left out where only one lab has a check of that id.
        attempt: the only attempt that it's about; all when left out.
    """

    student: Annotated[str, Field(min_length=1)]
    check: Annotated[str, Field(min_length=1)]
    points: Annotated[Exact, Field(ge=0)]
    reason: Annotated[str, Field(min_length=1)]
    date: date
    lab: LabName | None = None
    attempt: Annotated[int, Field(ge=1)] | None = None
    _number: int = PrivateAttr(default=0)

    @property
    def place(self) -> str:
        """How the entry is called in messages: its number in the file, from 1, and its student."""
        return f"`overrides` entry {self._number} (student {self.student!r})"


class _OverridesFile(Section):
    format_version: Literal[1]
    overrides: tuple[Override, ...] = ()

    @field_validator("overrides", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        for number, override in enumerate(self.overrides, start=1):
            override._number = number
        return self


class RubricGrade(Section):
    """One student's points at one lab: rubric item → points. An item that isn't here is still to be judged."""

    points: dict[str, Annotated[Exact, Field(ge=0)]] = Field(default_factory=dict)
    note: str = ""


class _RubricFile(Section):
    format_version: Literal[1]
    students: dict[str, dict[LabName, RubricGrade]] = Field(default_factory=dict)


Rubric = Mapping[tuple[str, str], RubricGrade]
"""(student, lab's full id) → the points given."""


def read_overrides(path: Path, course: Course, students: Collection[str] | None) -> tuple[Override, ...]:
    """The overrides of a class, each with its lab's full id.

    Args:
        students: ids of the roster and of the records; None when only some of them are known.

    Raises:
        CourseError: the file is wrong. UsageError: an entry names a student, lab or check that isn't there, gives more
            points than there are, or contradicts another; names the entry.
    """
    labs = _labs(course)
    kept: dict[tuple[str, str, str, int | None], Override] = {}
    for override in load_toml(path, _OverridesFile).overrides:
        place = f"{path}: {override.place}"
        _require(override.student, students, f"{place}: no student {override.student!r} in the roster or the results")
        lab = _lab_of(override, labs, place)
        most = _most(override.check, lab)
        if most is None:
            known = [*lab.checks, *lab.rubric, TOTAL]
            raise _unknown(override.check, known, f"{place}: {lab.short_id} has no check {override.check!r}")
        if override.points > most:
            raise UsageError(f"{place}: {override.points} points for {override.check}, which has {most} at most.")
        key = (override.student, lab.id, override.check, override.attempt)
        earlier = kept.get(key)
        if earlier is not None and earlier.date == override.date:
            raise UsageError(
                f"{place}: a second one of {override.date} for {override.student}, {lab.short_id}, {override.check}.",
                hint="Keep one of them, or correct a date.",
            )
        if earlier is None or earlier.date < override.date:
            kept[key] = override.model_copy(update={"lab": lab.id})
    return tuple(kept[key] for key in sorted(kept, key=lambda key: (*key[:3], key[3] or 0)))


def read_rubric(path: Path, course: Course, students: Collection[str] | None) -> Rubric:
    """The points that people gave.

    Raises:
        CourseError: the file is wrong. UsageError: as `read_overrides`.
    """
    labs = _labs(course)
    rubric: dict[tuple[str, str], RubricGrade] = {}
    for student, by_lab in load_toml(path, _RubricFile).students.items():
        place = f"{path}: `students.{student}`"
        _require(student, students, f"{place}: no such student in the roster or the results")
        for name, grade in by_lab.items():
            lab = _lab_named(name, labs, place)
            for item, given in grade.points.items():
                if item not in lab.rubric:
                    raise _unknown(item, lab.rubric, f"{place}, {name}: the rubric of {lab.short_id} has no {item!r}")
                most = Decimal(str(lab.rubric[item].points))
                if given > most:
                    raise UsageError(f"{place}, {name}: {given} points for {item}, which has {most} at most.")
            rubric[student, lab.id] = grade
    return rubric


def _labs(course: Course) -> dict[str, Lab]:
    return {lab_id: course.lab(lab_id) for lab_id in course.lab_ids()}


def _most(check: str, lab: Lab) -> Decimal | None:
    """The points that `check` can have; None when the lab knows no such id."""
    if check in lab.checks:
        return Decimal(str(lab.checks[check].points))
    if check in lab.rubric:
        return Decimal(str(lab.rubric[check].points))
    return Decimal(100) if check == TOTAL else None


def _lab_of(override: Override, labs: Mapping[str, Lab], place: str) -> Lab:
    if override.lab is not None:
        return _lab_named(override.lab, labs, place)
    having = [lab for lab in labs.values() if override.check in lab.checks or override.check in lab.rubric]
    if len(having) == 1:
        return having[0]
    if not having and override.check != TOTAL:
        known = [check for lab in labs.values() for check in (*lab.checks, *lab.rubric)]
        raise _unknown(override.check, known, f"{place}: no lab has a check {override.check!r}")
    where = ", ".join(lab.short_id for lab in (having or labs.values()))
    raise UsageError(f"{place}: {override.check!r} may be of {where}.", hint='Add `lab = "labNN"`.')


def _lab_named(name: str, labs: Mapping[str, Lab], place: str) -> Lab:
    for lab in labs.values():
        if name in (lab.id, lab.short_id):
            return lab
    raise _unknown(name, [lab.short_id for lab in labs.values()], f"{place}: no lab {name!r} in this course")


def _require(name: str, known: Collection[str] | None, message: str) -> None:
    if known is not None and name not in known:
        raise _unknown(name, known, message)


def _unknown(name: str, known: Collection[str], message: str) -> UsageError:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    shown = ", ".join(sorted(known)[:30]) or "none"
    return UsageError(f"{message}.", hint=f"Did you mean {close[0]!r}?" if close else f"Known: {shown}.")

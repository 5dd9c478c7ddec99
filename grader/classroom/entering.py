"""Enters points that a person gives into rubric.toml, leaving whatever else stands there as it is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from grader.classroom.decisions import RubricGrade
from grader.course import Lab
from grader.editing import edited
from grader.errors import UsageError


def parse_points(lab: Lab, item: str, text: str) -> Decimal:
    """What `text` gives for an item of the lab's rubric.

    Raises:
        UsageError: no such item, no number, or more than the item has.
    """
    if item not in lab.rubric:
        close = difflib.get_close_matches(item, lab.rubric, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]!r}?" if close else f"Its items: {', '.join(lab.rubric) or 'none'}."
        raise UsageError(f"The rubric of {lab.short_id} has no {item!r}.", hint=hint)
    most = Decimal(str(lab.rubric[item].points))
    try:
        points = Decimal(text.strip())
    except InvalidOperation:
        raise UsageError(f"{item}: {text.strip()[:40]!r} is no number.", hint=f"Give 0 to {most}.") from None
    if not points.is_finite() or not 0 <= points <= most:
        raise UsageError(f"{item}: {text.strip()[:40]} points, expected 0 to {most}.")
    return points


def parse_setting(lab: Lab, text: str) -> tuple[str, Decimal]:
    """(item, points) of ``item=points``.

    Raises:
        UsageError: it isn't of that form, or see `parse_points`.
    """
    item, equals, points = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text[:60]!r}: expected ITEM=POINTS.", hint=f"For example --set {_example(lab)}.")
    return item.strip(), parse_points(lab, item.strip(), points)


def _example(lab: Lab) -> str:
    return next((f"{name}={item.points:g}" for name, item in lab.rubric.items()), "item=1")


def lacking(lab: Lab, grade: RubricGrade | None) -> list[str]:
    """Items without points so far."""
    given = grade.points if grade is not None else {}
    return [item for item in lab.rubric if item not in given]


def enter(path: Path, lab: Lab, student: str, points: Mapping[str, Decimal], note: str | None) -> None:
    """Put the points into the file, which is made when it isn't there; comments and other students stay.

    Args:
        note: None leaves an earlier one.

    Raises:
        UsageError: the file can't be read as TOML, or can't be written. InfrastructureError: tomlkit is missing.
    """
    with edited(path, "a rubric", elsewhere="Name another with --rubric.") as document:
        given = _table(_lab_table(_table(document, "students"), student, lab), "points")
        for item, value in points.items():
            given[item] = int(value) if value == value.to_integral_value() else float(value)
        if note is not None:
            document["students"][student][_key(document["students"][student], lab)]["note"] = note


def _key(student: Any, lab: Lab) -> str:
    """The name under which a student's table has the lab: its full id where somebody wrote that."""
    return lab.id if lab.id in student else lab.short_id


def _lab_table(students: Any, student: str, lab: Lab) -> Any:
    own = _table(students, student)
    return _table(own, _key(own, lab))


def _table(parent: Any, name: str) -> Any:
    import tomlkit

    if name not in parent:
        parent[name] = tomlkit.table(is_super_table=name == "students")
    if not isinstance(parent[name], dict):
        raise TypeError(f"`{name}` is no table")
    return parent[name]

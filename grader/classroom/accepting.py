"""What a machine without the card left pending, accepted by a person: full points, as overrides, for many at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from grader.classroom.gradebook import Row
from grader.course import Lab
from grader.editing import edited
from grader.errors import UsageError
from grader.report.model import CheckResult, Kind, Status

ALL = "pending"
"""In place of a check's id: every check that is pending for want of a card or of room."""


@dataclass(frozen=True)
class Waiting:
    """A student's check whose points wait for a person."""

    student: str
    check: CheckResult


def waiting(rows: Iterable[Row], lab: Lab, students: Collection[str], checks: Collection[str]) -> list[Waiting]:
    """Pending checks of these students that no override has decided yet. A speed waits for thresholds, not for a word.

    Raises:
        UsageError: the lab has no such check.
    """
    unknown = next((name for name in checks if name != ALL and name not in lab.checks), None)
    if unknown is not None:
        raise UsageError(
            f"{lab.short_id} has no check {unknown!r}.",
            hint=f"Its checks: {', '.join(lab.checks)}; or {ALL!r} for all.",
        )
    return [
        Waiting(row.student, check)
        for row in rows
        if row.lab == lab.id and row.student in students and row.report is not None
        for check in row.report.checks
        if check.status is Status.PENDING
        and check.kind is not Kind.SPEED
        and (ALL in checks or check.id in checks)
        and check.id not in {applied.check for applied in row.overrides}
    ]


def accept(path: Path, lab: Lab, found: Iterable[Waiting], reason: str, today: date) -> None:
    """Append an override of full points for each to overrides.toml, which is made when it isn't there.

    Raises:
        UsageError: the file can't be read as TOML, or can't be written. InfrastructureError: tomlkit is missing.
    """
    with edited(path, "overrides") as document:
        import tomlkit

        if "overrides" not in document:
            document["overrides"] = tomlkit.aot()
        for one in found:
            entry = tomlkit.table()
            most = one.check.max_points
            points = int(most) if float(most).is_integer() else most
            told = {"student": one.student, "lab": lab.short_id, "check": one.check.id, "points": points}
            entry.update(told | {"reason": reason, "date": today})
            document["overrides"].append(entry)

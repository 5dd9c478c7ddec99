"""What one attempt is worth: the points of its checks and its rubric, in exact decimals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Literal

from grader.classroom.decisions import TOTAL, Override, RubricGrade
from grader.course import Lab
from grader.report.model import Report, Status

QUANTUM = Decimal("0.000001")
"""Points are kept to six decimals, as a report's totals are."""

State = Literal["decided", "ungraded", "waiting"]
ZERO = Decimal(0)


def exact(value: float) -> Decimal:
    """A report's number as the decimal that it's written as."""
    return Decimal(str(value)).quantize(QUANTUM)


@dataclass(frozen=True)
class Item:
    """One check, or one line of the rubric.

    Attributes:
        state: `ungraded` couldn't run on this machine; `waiting` needs a person, or a grader that works.
    """

    id: str
    earned: Decimal
    most: Decimal
    state: State


@dataclass(frozen=True)
class Applied:
    """An override that took effect: the points before and after, and why.

    Attributes:
        before: None where nothing was decided before.
    """

    check: str
    before: Decimal | None
    after: Decimal
    reason: str
    date: date


@dataclass(frozen=True)
class Points:
    """Points before anything is lost for lateness.

    Attributes:
        raw: earned, of the points that were decided (`gradable`).
        pending: at stake and not decided yet, by the course's policy.
        score: `raw`, scaled up where the policy leaves ungraded points out.
        total: all points of the lab.
    """

    raw: Decimal
    gradable: Decimal
    pending: Decimal
    score: Decimal
    total: Decimal


_STATES: dict[Status, State] = {
    Status.SKIPPED: "ungraded",
    # Held for a person, or the grader's own failure: no policy may turn these into lost points.
    Status.SUSPECT: "waiting",
    Status.ERROR: "waiting",
    # What it earned counts; the rest waits until somebody has measured that card's thresholds.
    Status.PENDING: "waiting",
}

OPEN_STATUSES = frozenset(_STATES)
"""Statuses whose points nobody has decided yet."""


def items(report: Report, lab: Lab | None, grade: RubricGrade | None) -> list[Item]:
    """The report's checks, then the lab's rubric; `grade` has what a person gave so far."""
    found = [
        Item(check.id, exact(check.points), exact(check.max_points), _STATES.get(check.status, "decided"))
        for check in report.checks
    ]
    for item_id, item in (lab.rubric if lab is not None else {}).items():
        given = grade.points.get(item_id) if grade is not None else None
        state: State = "waiting" if given is None else "decided"
        found.append(Item(item_id, given or ZERO, exact(item.points), state))
    return found


def overridden(found: Sequence[Item], overrides: Iterable[Override]) -> tuple[list[Item], list[Applied]]:
    """The items as people decided them; an override of the total is left to whoever knows the final score."""
    by_check = {override.check: override for override in overrides if override.check != TOTAL}
    changed: list[Item] = []
    applied: list[Applied] = []
    for item in found:
        override = by_check.get(item.id)
        if override is None:
            changed.append(item)
            continue
        changed.append(replace(item, earned=override.points, state="decided"))
        before = item.earned if item.state == "decided" else None
        applied.append(Applied(item.id, before, override.points, override.reason, override.date))
    return changed, applied


def count(found: Iterable[Item], ungradable: Literal["pending", "excluded", "zero"]) -> Points:
    """Add up. Ungraded points are pending, left out or lost by the policy; waiting ones are pending in any case."""
    raw = gradable = ungraded = waiting = ZERO
    for item in found:
        if item.state == "decided":
            raw, gradable = raw + item.earned, gradable + item.most
            continue
        # Points that are earned already are, whatever becomes of the rest.
        raw, gradable, open_points = raw + item.earned, gradable + item.earned, item.most - item.earned
        if item.state == "ungraded":
            ungraded += open_points
        else:
            waiting += open_points
    total = gradable + ungraded + waiting
    counted = total - ungraded
    if ungradable == "pending" or not counted:
        # Where nothing at all could be graded there is nothing to scale up, and no reason to call it zero.
        return Points(raw, gradable, waiting + ungraded, raw, total)
    score = (raw * total / counted).quantize(QUANTUM) if ungradable == "excluded" else raw
    return Points(raw, gradable, waiting, score, total)


def plain(value: Decimal) -> str:
    """``62.5``: no exponent, no needless zeros, the same text for the same number."""
    text = f"{value.quantize(QUANTUM):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""What changed between two gradings of the same work: every score, with the checks that moved it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from grader.classroom.gradebook import Row, RowStatus
from grader.classroom.points import OPEN_STATUSES, exact, plain
from grader.report.model import CheckResult, Hashes, Report


@dataclass(frozen=True)
class CheckChange:
    """One check before and after; None on the side that doesn't have it."""

    check: str
    old: CheckResult | None
    new: CheckResult | None

    def __str__(self) -> str:
        return f"{self.check}: {_shown(self.old)} -> {_shown(self.new)}"


@dataclass(frozen=True)
class ScoreChange:
    """One student's score at one lab before and after.

    Attributes:
        old, new: what is decided by then; None on the side that has no such row.
        old_status, new_status: of the rows; empty where there is none.
        another_submission: the two sides graded different files.
    """

    student: str
    lab: str
    old: Decimal | None
    new: Decimal | None
    old_status: RowStatus | str
    new_status: RowStatus | str
    checks: tuple[CheckChange, ...]
    another_submission: bool = False

    def __str__(self) -> str:
        score = f"{_score(self.old, self.old_status)} -> {_score(self.new, self.new_status)}"
        return f"{self.lab[:5]} {score}" + (" (another submission)" if self.another_submission else "")


@dataclass(frozen=True)
class Comparison:
    """Attributes:
    versions: what made the two results, where that differs, e.g. ``lab06: the lab's files``.
    """

    changes: tuple[ScoreChange, ...]
    compared: int
    versions: tuple[str, ...]


def compare(old: Sequence[Row], new: Sequence[Row]) -> Comparison:
    """The rows of two gradebooks whose score, standing or open points differ, sorted by student and lab."""
    before = {(row.student, row.lab): row for row in old}
    after = {(row.student, row.lab): row for row in new}
    keys = sorted(before.keys() | after.keys())
    found = (_change(key, before.get(key), after.get(key)) for key in keys)
    reports = [(before[key].report, after[key].report) for key in keys if key in before and key in after]
    return Comparison(tuple(change for change in found if change is not None), len(keys), _versions(reports))


def _change(key: tuple[str, str], old: Row | None, new: Row | None) -> ScoreChange | None:
    if old is not None and new is not None and _standing(old) == _standing(new):
        return None
    return ScoreChange(
        student=key[0],
        lab=key[1],
        old=old.so_far if old is not None else None,
        new=new.so_far if new is not None else None,
        old_status=old.status if old is not None else "",
        new_status=new.status if new is not None else "",
        checks=changed_checks(old.report if old is not None else None, new.report if new is not None else None),
        another_submission=bool(old and new and old.submission_sha256 != new.submission_sha256),
    )


def _standing(row: Row) -> tuple[object, ...]:
    """What a student would notice; a check that fails in another way for the same points isn't."""
    checks = {check.id: _worth(check) for check in row.report.checks} if row.report is not None else {}
    return row.status, row.so_far, row.final, row.pending, row.raw, row.total, checks


def _worth(check: CheckResult) -> tuple[object, ...]:
    return check.points, check.max_points, check.status in OPEN_STATUSES


def changed_checks(old: Report | None, new: Report | None) -> tuple[CheckChange, ...]:
    """The checks whose points, or whose being decided, differ; in the order of the newer report."""
    if old is None or new is None:
        return ()
    before = {check.id: check for check in old.checks}
    after = {check.id: check for check in new.checks}
    changed = []
    for check_id in [*after, *(check_id for check_id in before if check_id not in after)]:
        left, right = before.get(check_id), after.get(check_id)
        if left is None or right is None or _worth(left) != _worth(right):
            changed.append(CheckChange(check_id, left, right))
    return tuple(changed)


def _versions(pairs: Iterable[tuple[Report | None, Report | None]]) -> tuple[str, ...]:
    found: set[str] = set()
    for old, new in pairs:
        if old is not None and new is not None:
            found |= {f"{old.lab.id[:5]}: {what}" for what in differing(old, new)}
    return tuple(sorted(found))


_NAMES = {"grader": "the grader", "lab": "the lab's files", "constraints": "the pinned versions"}


def differing(old: Report, new: Report) -> list[str]:
    """What decided the two reports and isn't the same in both, in words."""
    return [
        *differing_hashes(old.hashes, new.hashes),
        *(["the profile"] if old.profile.sha256 != new.profile.sha256 else []),
        *(["the key of the inputs"] if old.seed.key_id != new.seed.key_id else []),
        *(["the device"] if _card(old) != _card(new) else []),
    ]


def _card(report: Report) -> str:
    """The device that a report's figures hang on; which CPU it was, or why no GPU, decides nothing."""
    return report.device_name if report.device == "cuda" else report.device


def differing_hashes(old: Hashes, new: Hashes) -> list[str]:
    return [words for key, words in _NAMES.items() if getattr(old, key) != getattr(new, key)]


def _shown(check: CheckResult | None) -> str:
    if check is None:
        return "not there"
    return f"{check.status.value} {plain(exact(check.points))}/{plain(exact(check.max_points))}"


def _score(value: Decimal | None, status: str) -> str:
    if value is None:
        return "no row"
    return plain(value) if status == "graded" else f"{plain(value)} ({status})"

"""Bytes that a traffic check counted beside the fewest that the algorithm needs, read from what it measured.

A check measures ``LABEL: moved_bytes``, ``LABEL: bound_bytes`` and, where the work is known, ``LABEL: flops``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grader.report.model import CheckResult, Scalar


@dataclass(frozen=True)
class Moved:
    """One counted call.

    Attributes:
        moved_bytes, bound_bytes: loaded and stored, as counted, and by the closed form.
        flops: of the call; None where the check doesn't say.
    """

    check: str
    label: str
    moved_bytes: float
    bound_bytes: float
    flops: float | None = None

    @property
    def intensity(self) -> float | None:
        """FLOPs a byte that moved."""
        return self.flops / self.moved_bytes if self.flops and self.moved_bytes > 0 else None


def moved(checks: Sequence[CheckResult]) -> list[Moved]:
    """Every counted call of these checks, in the order in which it was measured."""
    found = []
    for check in checks:
        for key, value in check.measured.items():
            label, _, name = key.rpartition(": ")
            bound = check.measured.get(f"{label}: bound_bytes")
            if name != "moved_bytes" or not _is_number(value) or not _is_number(bound):
                continue
            flops = check.measured.get(f"{label}: flops")
            found.append(
                Moved(check.id, label, _number(value), _number(bound), _number(flops) if _is_number(flops) else None)
            )
    return found


def _is_number(value: Scalar | list[Scalar]) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _number(value: Scalar | list[Scalar]) -> float:
    assert isinstance(value, (int, float))
    return float(value)

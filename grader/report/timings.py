"""Timed shapes of a report, read from what its speed checks measured.

A speed check measures each shape under ``LABEL: NAME``, e.g. ``(4, 16, 4096, 128) causal: median_ms``; the names are
the fields of `Timed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import geometric_mean

from grader.report.model import Kind, Report, Status


@dataclass(frozen=True)
class Timed:
    """One shape of one check; a number that the check didn't measure is None.

    Attributes:
        median_ms, iqr_ms: of one call, over `windows` windows.
        ratio: the baseline's time over the submission's, with the interval `ratio_low` to `ratio_high`.
        tflops: achieved, in 10¹² floating-point operations a second.
        intensity: FLOPs of a call over the least bytes that it must move.
    """

    check: str
    label: str
    median_ms: float | None = None
    iqr_ms: float | None = None
    windows: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    tflops: float | None = None
    intensity: float | None = None


_NAMES = frozenset(field.name for field in fields(Timed)) - {"check", "label"}


def timed_shapes(report: Report) -> list[Timed]:
    """The shapes of all speed checks that ran, in the order in which they were measured."""
    shapes = []
    for check in report.checks:
        if check.kind is not Kind.SPEED or check.status is Status.SKIPPED:
            continue
        found: dict[str, dict[str, float]] = {}
        for key, value in check.measured.items():
            label, _, name = key.rpartition(": ")
            if label and name in _NAMES and isinstance(value, (int, float)) and math.isfinite(value):
                found.setdefault(label, {})[name] = float(value)
        shapes += [Timed(check.id, label, **values) for label, values in found.items()]
    return shapes


def mean_ratio(report: Report) -> float | None:
    """Geometric mean of the ratios to the baseline over the timed shapes; None where nothing was timed against one."""
    ratios = [shape.ratio for shape in timed_shapes(report) if shape.ratio is not None and shape.ratio > 0]
    return geometric_mean(ratios) if ratios else None

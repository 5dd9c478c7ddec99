"""Timed shapes of a report, read from what its speed checks measured.

A race measures each shape under ``LABEL: NAME``: ``yours median_ms``, ``yours iqr_ms``, ``yours windows x calls``
(``20 x 5``), ``ratio`` and ``roofline`` (value and the ends of its interval), ``tflops``, ``intensity``. See
`grader.judge.speed.checks.record`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from grader.report.model import Kind, Report, Scalar, Status

OURS = "yours"
_COUNT = re.compile(r"(\d+) x \d+")


@dataclass(frozen=True)
class Timed:
    """One shape of one check; what the check didn't measure is None.

    Attributes:
        median_ms, iqr_ms: of one call, over `windows` windows.
        ratio: the baseline's time over the submission's.
        roofline: the roofline's time over the submission's.
        tflops: achieved, in 10¹² floating-point operations a second.
        intensity: FLOPs of a call over the least bytes that it must move.
    """

    check: str
    label: str
    median_ms: float | None = None
    iqr_ms: float | None = None
    windows: int | None = None
    ratio: float | None = None
    roofline: float | None = None
    tflops: float | None = None
    intensity: float | None = None


def timed_shapes(report: Report, *, instructor: bool = False) -> list[Timed]:
    """The shapes of all speed checks that ran, in the order in which they were measured.

    Args:
        instructor: with the labels of hidden checks; a shape is an input, so others read ``timed shape 1``.
    """
    shapes: list[Timed] = []
    for check in report.checks:
        if check.kind is not Kind.SPEED or check.status is Status.SKIPPED:
            continue
        found: dict[str, dict[str, Scalar | list[Scalar]]] = {}
        for key, value in check.measured.items():
            label, _, name = key.rpartition(": ")
            if label:
                found.setdefault(label, {})[name] = value
        for label, values in found.items():
            if _MEDIAN in values:
                shown = f"timed shape {len(shapes) + 1}" if check.hidden and not instructor else label
                shapes.append(_timed(check.id, shown, values))
    return shapes


_MEDIAN = f"{OURS} median_ms"


def _timed(check: str, label: str, values: Mapping[str, Scalar | list[Scalar]]) -> Timed:
    windows = _COUNT.fullmatch(str(values.get(f"{OURS} windows x calls", "")))
    return Timed(
        check=check,
        label=label,
        median_ms=_number(values.get(_MEDIAN)),
        iqr_ms=_number(values.get(f"{OURS} iqr_ms")),
        windows=int(windows[1]) if windows else None,
        ratio=_number(values.get("ratio")),
        roofline=_number(values.get("roofline")),
        tflops=_number(values.get("tflops")),
        intensity=_number(values.get("intensity")),
    )


def _number(value: Scalar | list[Scalar]) -> float | None:
    """The number, or the first of a value with its interval; None for anything else."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, bool) or not isinstance(first, (int, float)) or not math.isfinite(first):
        return None
    return float(first)


def mean_ratio(report: Report) -> float | None:
    """Geometric mean of the ratios to the baseline over the timed shapes; None where nothing was timed against one."""
    ratios = [shape.ratio for shape in timed_shapes(report) if shape.ratio is not None and shape.ratio > 0]
    return geometric_mean(ratios) if ratios else None

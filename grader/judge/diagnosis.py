"""Known mistakes, and which of them explains a wrong output."""

from __future__ import annotations

from grader.judge.precision import Array
from grader.judge.tolerance import ForwardBounds
from grader.report.model import Diagnosis


def diagnose(bounds: ForwardBounds, o: Array, lse: Array | None) -> Diagnosis | None:
    """The known mistake that explains (o, lse), None when there is none or more than one would."""
    return None

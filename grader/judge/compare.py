"""How far an answer is from the oracle, and which rule of the tolerance it breaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader.judge.precision import Array


@dataclass(frozen=True)
class Errors:
    """Size of an error tensor: its largest value, its worst row's root mean square, its mean."""

    max: float
    row_rms: float
    mean: float


@dataclass(frozen=True)
class Breach:
    """One broken rule.

    Attributes:
        tensor: ``O``, ``LSE``, ``dQ``...
        rule: ``max``, ``row rms``, ``mean`` or ``non-finite``.
        got, allowed: in the tensor's unit; for ``non-finite`` the count of wrong places and 0.
        why: where the bound comes from.
    """

    tensor: str
    rule: str
    got: float
    allowed: float
    why: str

    @property
    def ratio(self) -> float:
        if self.rule == "non-finite" or not np.isfinite(self.got):
            return float("inf")
        return self.got / self.allowed if self.allowed > 0 else float("inf")

    def __str__(self) -> str:
        if self.rule == "non-finite":
            return f"{self.tensor} has {self.got:.0f} value(s) that are not finite and should be, or the reverse"
        return f"{self.tensor}: {self.rule} error {self.got:.2e}, allowed {self.allowed:.2e} ({self.why})"


def absolute_error(actual: Array, expected: Array) -> Array:
    """|actual - expected|; 0 where both hold the same infinity, inf where only one is finite or either is NaN."""
    actual = np.asarray(actual, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(actual - expected)
        error = np.where(actual == expected, 0.0, error)
    return np.where(np.isnan(error), np.inf, error)


def misplaced(actual: Array, expected: Array) -> Array:
    """bool: where the pattern of non-finite values differs from the oracle's. NaN is never right."""
    actual = np.asarray(actual, dtype=np.float64)
    same = np.isfinite(actual) & np.isfinite(expected)
    with np.errstate(invalid="ignore"):
        same |= np.isinf(expected) & (actual == expected)
    return ~same


def sizes(error: Array) -> Errors:
    """Sizes of `error` (..., columns); rows are all axes but the last. inf where any value is."""
    if error.size == 0:
        return Errors(0.0, 0.0, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        row_rms = np.sqrt(np.mean(np.square(error), axis=-1))
    return Errors(float(error.max()), float(row_rms.max()), float(error.mean()))

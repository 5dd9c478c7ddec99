"""Comparison of arrays, and which known mistake explains a wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.report.model import Diagnosis
from grader.sandbox.wire import Record

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

Array = NDArray[Any]
Pair = tuple[Array, Array]

EXPLAINS = 0.3
"""A mistake explains an output when the output is this much nearer to the mistake's result than to the right one."""
LEFT_ALONE = 0.02
"""What is right in an output the mistake may move by this much at most, relatively: float16 rounds to 5e-4."""


def statistics_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float64 for float64, float32 for anything narrower."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def shift_of(row_max: Array) -> Array:
    """What may be subtracted: the maximum, 0 where it is -inf."""
    return np.where(np.isneginf(row_max), 0.0, row_max)


def ulp_error(got: Array, want: Array) -> float:
    """Largest |got - want| in units in the last place of `got`'s dtype at `want`; inf where non-finites disagree."""
    unit_dtype = got.dtype if got.dtype in (np.float16, np.float32, np.float64) else np.dtype(np.float64)
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want64)
    if not np.array_equal(got64[~finite], want64[~finite]) or not np.isfinite(got64[finite]).all():
        return float("inf")
    info = np.finfo(unit_dtype)
    unit = np.maximum(np.abs(want64[finite]) * float(info.eps), float(info.smallest_subnormal))
    return float((np.abs(got64[finite] - want64[finite]) / unit).max(initial=0.0))


def relative_distance(got: Array, want: Array) -> float:
    """RMS of got - want over RMS of want; inf where the patterns of non-finite values differ."""
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want64)
    if got64.shape != want64.shape or not np.array_equal(got64[~finite], want64[~finite], equal_nan=True):
        return float("inf")
    if not np.isfinite(got64[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    peak = max(float(np.abs(want64[finite]).max()), float(np.abs(got64[finite]).max()), 1e-300)
    size = float(np.sqrt(np.mean((want64[finite] / peak) ** 2)))
    return float(np.sqrt(np.mean(((got64[finite] - want64[finite]) / peak) ** 2))) / max(size, 1e-300)


def explains(mistaken: Array, got: Array, want: Array) -> bool:
    """Whether `got` is much nearer to `mistaken` than to `want`, and these two differ."""
    mistaken = mistaken.astype(got.dtype)
    if np.array_equal(mistaken, want.astype(got.dtype), equal_nan=True):
        return False
    near, far = relative_distance(got, mistaken), relative_distance(got, want)
    return near <= EXPLAINS * far and near < 0.5


@dataclass(frozen=True)
class Mistake:
    """A known mistake: what it is called, what the student reads, what it would have returned."""

    id: str
    text: str
    results: Callable[[], Sequence[tuple[Array, ...]]]


def diagnose(mistakes: Sequence[Mistake], got: tuple[Array, ...], want: tuple[Array, ...]) -> Diagnosis | None:
    """The first mistake that explains every output that is wrong, and leaves alone the ones that are right."""
    with np.errstate(all="ignore"):
        wrong = [relative_distance(g, w) > 1e-4 * (1 + (g.dtype.itemsize < 4)) for g, w in zip(got, want, strict=True)]
        if not any(wrong):
            wrong = [not np.array_equal(g, w) for g, w in zip(got, want, strict=True)]
        for mistake in mistakes:
            for result in mistake.results():
                compared = list(zip(result, got, want, wrong, strict=True))
                hits = [explains(r, g, w) for r, g, w, bad in compared if bad]
                moved = [relative_distance(r, g) > LEFT_ALONE for r, g, _, bad in compared if not bad]
                if hits and all(hits) and not any(moved):
                    return Diagnosis(id=mistake.id, text=mistake.text)
    return None


def expect_arrays(
    judge: Judge,
    result: object,
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype[Any]],
    what: str,
) -> list[Array]:
    """The arrays of a returned tuple; ends the check with `contract` when their number, type, dtype or shape is off."""
    # A named tuple of the submission's arrives as a Record.
    if not isinstance(result, (tuple, list, Record)) or len(result) != len(names):
        judge.contract(f"{what}: returned {_describe(result)}, expected a tuple ({', '.join(names)}).")
    arrays: list[Array] = []
    for item, name, shape, dtype in zip(result, names, shapes, dtypes, strict=True):
        if not isinstance(item, np.ndarray) or item.shape != shape or item.dtype != dtype:
            judge.contract(f"{what}: {name} is {_describe(item)}, expected an array {dtype.name} {shape}.")
        arrays.append(item)
    return arrays


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype.name} {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"

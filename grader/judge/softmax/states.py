"""Softmax of a whole array, and the merge of two states (m, l, o): truth, comparison, known mistakes.

A state tells of a set of keys: maximum (rows,), denominator (rows,), unnormalised output (rows, head_dim).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.softmax.mistakes import (
    Array,
    Mistake,
    diagnose,
    expect_arrays,
    shift_of,
    statistics_dtype,
)

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

State = tuple[Array, Array, Array]

CEILINGS = (20, 50, 60, 80, 85, 88, 100, 500, 700)
"""Values that scores are clipped at by those who want exp not to overflow."""


# A whole array


def softmax_truth(x: Array, axis: int) -> Array:
    """P along `axis`, float64; zeros where nothing is finite."""
    values = np.moveaxis(x.astype(np.float64), axis, -1)
    terms = np.exp(values - shift_of(values.max(axis=-1, keepdims=True)))
    total = terms.sum(axis=-1, keepdims=True)
    return np.moveaxis(terms / np.where(total == 0, 1, total), -1, axis)


def judge_softmax(judge: Judge, x: Array, axis: int, got: object, what: str) -> None:
    """Hold P to the truth, within the check's `ulp` of the working dtype relative to the slice's largest weight."""
    if not isinstance(got, np.ndarray) or got.dtype != x.dtype or got.shape != x.shape:
        shown = f"{got.dtype.name} {got.shape}" if isinstance(got, np.ndarray) else type(got).__name__
        judge.contract(f"{what}: returned {shown}, expected an array {x.dtype.name} {x.shape}.")
    want = softmax_truth(x, axis)
    unit = float(np.finfo(x.dtype).eps) * np.maximum(want.max(axis=axis, keepdims=True), 1e-300)
    with np.errstate(invalid="ignore", over="ignore"):
        error = float(np.nan_to_num(np.abs(got.astype(np.float64) - want) / unit, nan=np.inf).max())
    judge.measure("p_error_ulp", error)
    allowed = judge.thresholds["ulp"]
    if not error <= allowed:
        diagnosis = diagnose(softmax_mistakes(x, axis), (got,), (want,))
        judge.fail(f"{what} ({x.dtype.name}): P is off by {error:.3g} ulp, allowed {allowed:g}.", diagnosis=diagnosis)


def softmax_mistakes(x: Array, axis: int) -> list[Mistake]:
    values = np.moveaxis(x.astype(statistics_dtype(x.dtype)), axis, -1)

    def back(p: Array) -> tuple[Array]:
        return (np.moveaxis(p, -1, axis).astype(x.dtype),)

    def shares(terms: Array) -> list[tuple[Array]]:
        total = terms.sum(axis=-1, keepdims=True)
        return [back(terms / total), back(terms / np.where(total == 0, 1, total))]

    def clipped() -> list[tuple[Array]]:
        return [p for limit in CEILINGS for p in shares(np.exp(np.minimum(values, limit)))]

    def careless() -> list[tuple[Array]]:
        return shares(np.exp(values - values.max(axis=-1, keepdims=True)))

    return [
        Mistake(
            "axis-ignored",
            "Your output is the softmax along another axis.",
            lambda: [(softmax_truth(x, other),) for other in range(x.ndim) if other != axis % x.ndim],
        ),
        Mistake(
            "no-max-subtraction",
            "Your output is that of exp(x) / sum(exp(x)): the maximum was not subtracted.",
            lambda: shares(np.exp(values)),
        ),
        Mistake("scores-clipped", "Your output is that of scores clipped before exp, not shifted.", clipped),
        Mistake(
            "nan-on-all-masked",
            "The NaNs are those of slices that hold nothing but -inf: -inf - (-inf), or 0 / 0.",
            careless,
        ),
    ]


# Merging


def state_of(scores: Array, v: Array, dtype: np.dtype[Any]) -> State:
    """The state of some keys: scores (rows, keys), v (keys, head_dim), rounded to `dtype`."""
    row_max = scores.max(axis=1, initial=-np.inf)
    terms = np.exp(scores - shift_of(row_max)[:, None])
    return row_max.astype(dtype), terms.sum(axis=1).astype(dtype), (terms @ v).astype(dtype)


def empty_state(rows: int, head_dim: int, dtype: np.dtype[Any]) -> State:
    return np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((rows, head_dim), dtype)


def merged(a: State, b: State) -> State:
    """The merge, in float64."""
    sides = [tuple(part.astype(np.float64) for part in state) for state in (a, b)]
    row_max = np.maximum(sides[0][0], sides[1][0])
    factors = [np.exp(state[0] - shift_of(row_max)) for state in sides]
    row_sum = sum(state[1] * factor for state, factor in zip(sides, factors, strict=True))
    output = sum(state[2] * factor[:, None] for state, factor in zip(sides, factors, strict=True))
    return row_max, np.asarray(row_sum), np.asarray(output)


def checked_state(judge: Judge, result: object, like: State, what: str) -> State:
    """`result` as a state of the shapes and dtype of `like`; ends the check with `contract` otherwise."""
    row_max, row_sum, output = expect_arrays(
        judge, result, ("m", "l", "o"), [part.shape for part in like], [part.dtype for part in like], what
    )
    return row_max, row_sum, output


def state_error_ulp(got: State, want: Sequence[Array]) -> float:
    """Largest error of l and o in ulp of their dtype, o relative to its row's largest entry; inf where m differs."""
    dtype = got[0].dtype
    eps = float(np.finfo(dtype).eps)
    if not np.array_equal(got[0], want[0].astype(dtype)) or not all(np.isfinite(part).all() for part in got[1:]):
        return float("inf")
    row_sum = want[1].astype(np.float64)
    peak = np.abs(want[2]).max(axis=1, initial=0.0)
    scales = (np.where(row_sum > 0, row_sum, 1), np.maximum(peak, np.where(row_sum > 0, row_sum, 1))[:, None])
    return max(
        float((np.abs(g.astype(np.float64) - w) / (eps * scale)).max(initial=0.0))
        for g, w, scale in zip(got[1:], want[1:], scales, strict=True)
    )


def judge_merge(judge: Judge, a: State, b: State, got: State, want: Sequence[Array], what: str) -> None:
    """Hold a merged state to the truth within the check's `ulp`."""
    error, allowed = state_error_ulp(got, want), judge.thresholds["ulp"]
    judge.measure("merge_error_ulp", error)
    if not error <= allowed:
        diagnosis = diagnose(merge_mistakes(a, b), got, tuple(want))
        judge.fail(f"{what} ({got[0].dtype.name}): off by {error:.3g} ulp, allowed {allowed:g}.", diagnosis=diagnosis)


def merge_mistakes(a: State, b: State) -> list[Mistake]:
    (max_a, sum_a, out_a), (max_b, sum_b, out_b) = (tuple(p.astype(np.float64) for p in s) for s in (a, b))
    row_max, row_sum, output = merged(a, b)

    def with_factors(factor_a: Array, factor_b: Array) -> State:
        return row_max, sum_a * factor_a + sum_b * factor_b, out_a * factor_a[:, None] + out_b * factor_b[:, None]

    def one_max() -> list[State]:
        top = np.full_like(row_max, row_max.max())
        factors = np.exp(max_a - top), np.exp(max_b - top)
        _, total, out = with_factors(*factors)
        return [(top, total, out), (row_max, total, out)]

    one = np.ones_like(row_max)
    return [
        Mistake(
            "nan-on-all-masked",
            "The NaNs are those of -inf - (-inf): both states are empty in that row.",
            lambda: [with_factors(np.exp(max_a - row_max), np.exp(max_b - row_max))],
        ),
        Mistake(
            "merge-output-unscaled",
            "o equals o_a + o_b: neither was rescaled.",
            lambda: [(row_max, row_sum, out_a + out_b)],
        ),
        Mistake(
            "merge-without-rescale",
            "l and o are plain sums: neither state was rescaled.",
            lambda: [with_factors(one, one)],
        ),
        Mistake(
            "merge-sum-unscaled",
            "l equals l_a + l_b: neither was rescaled.",
            lambda: [(row_max, sum_a + sum_b, output)],
        ),
        Mistake(
            "merge-factors-swapped",
            "Each state carries the other's factor.",
            lambda: [with_factors(np.exp(max_b - shift_of(row_max)), np.exp(max_a - shift_of(row_max)))],
        ),
        Mistake(
            "rescale-inverted",
            "The factors are exp(m - m_a): the sign of the exponent is turned round.",
            lambda: [with_factors(np.exp(row_max - max_a), np.exp(row_max - max_b))],
        ),
        Mistake(
            "merge-normalised",
            "o was divided by l; states hold it unnormalised.",
            lambda: [(row_max, row_sum, output / row_sum[:, None])],
        ),
        Mistake("merge-one-maximum", "The maximum was taken over all rows together, not for each row.", one_max),
    ]

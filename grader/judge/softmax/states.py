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
        Mistake(
            "softmax-undivided",
            "Your output is exp(x - max): it isn't divided by the slice's sum.",
            lambda: [back(np.exp(values - shift_of(values.max(axis=-1, keepdims=True))))],
        ),
        Mistake(
            "softmax-one-maximum",
            "One maximum was subtracted from all slices: in those far below it every term vanishes.",
            lambda: shares(np.exp(values - values.max())),
        ),
        Mistake(
            "sum-in-input-dtype",
            f"Your output is that of a sum in {x.dtype.name}, which rounds or overflows.",
            lambda: [(_narrow_softmax(x, axis),)],
        ),
        Mistake("scores-clipped", "Your output is that of scores clipped before exp, not shifted.", clipped),
        Mistake(
            "nan-on-all-masked",
            "The NaNs are those of slices that hold nothing but -inf: -inf - (-inf), or 0 / 0.",
            careless,
        ),
    ]


def _narrow_softmax(x: Array, axis: int) -> Array:
    terms = np.exp(x - shift_of(x.max(axis=axis, keepdims=True)).astype(x.dtype))
    return np.asarray(terms / terms.sum(axis=axis, keepdims=True))


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


def far_states(rng: np.random.Generator, dtype: np.dtype[Any]) -> tuple[State, State]:
    """Two states of 7 keys whose maxima lie up to 1000 apart and from zero (100 in float32), head_dim 4.

    Beyond that distance exp over- or underflows, of a maximum as of a difference. Each side is the higher one in some
    rows, both are equal in others.
    """
    gap, level = (750.0, 1000.0) if dtype == np.float64 else (95.0, 100.0)
    pairs = [(a, b) for a in (-level, 0.0, level) for b in (a - gap, a - 3, a, a + 3, a + gap)]
    scores, v = rng.uniform(-1, 0, (len(pairs), 14)), rng.standard_normal((14, 4)) + 1
    scores[:, [3, 9]] = 0
    scores += np.repeat(np.array(pairs), 7, axis=1)
    return state_of(scores[:, :7], v[:7], dtype), state_of(scores[:, 7:], v[7:], dtype)


def judge_merge(judge: Judge, a: State, b: State, got: State, want: Sequence[Array], what: str) -> None:
    """Hold a merged state to the truth within the check's `ulp`."""
    error, allowed = state_error_ulp(got, want), judge.thresholds["ulp"]
    judge.measure("merge_error_ulp", error)
    if not error <= allowed:
        diagnosis = diagnose(merge_mistakes(a, b), got, tuple(want))
        diagnosis = diagnosis or diagnose(_maxima_of_merges(a, b), got[:1], (want[0],))
        judge.fail(f"{what} ({got[0].dtype.name}): {_how_far(error)}, allowed {allowed:g}.", diagnosis=diagnosis)


def _how_far(error: float) -> str:
    if np.isfinite(error):
        return f"off by {error:.3g} ulp"
    return "m isn't the larger of the two maxima, or l or o isn't finite: off by more ulp than can be told"


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

    def by_exponentials() -> list[State]:
        """exp of the maxima themselves, in the states' dtype: inf or 0 far from zero."""
        top, first, second = (np.exp(part.astype(a[0].dtype)) for part in (row_max, max_a, max_b))
        together = [
            (left * first + right * second) / top
            for left, right, first, second, top in (
                (sum_a, sum_b, first, second, top),
                (out_a, out_b, first[:, None], second[:, None], top[:, None]),
            )
        ]
        return [with_factors(first / top, second / top), (row_max, *together)]

    def from_one_side() -> list[State]:
        """Sums relative to one side's maximum, in the states' dtype, brought to the larger one afterwards."""
        results = []
        for own, low, sums, outs in (
            (max_a, max_b, (sum_a, sum_b), (out_a, out_b)),
            (max_b, max_a, (sum_b, sum_a), (out_b, out_a)),
        ):
            factor = np.exp((low - own).astype(a[0].dtype))
            total, out = sums[0] + sums[1] * factor, outs[0] + outs[1] * factor[:, None]
            back = np.exp((own - row_max).astype(a[0].dtype))
            down = np.exp((row_max - own).astype(a[0].dtype))
            results += [
                (row_max, total * back, out * back[:, None]),
                (row_max, total / down, out / down[:, None]),
            ]
        return results

    def weighted_by_sums() -> list[State]:
        left, right = (s * np.exp(m - shift_of(row_max)) for m, s in ((max_a, sum_a), (max_b, sum_b)))
        together = out_a * left[:, None] + out_b * right[:, None]
        return [(row_max, row_sum, together), (row_max, row_sum, together / row_sum[:, None])]

    one = np.ones_like(row_max)
    return [
        Mistake(
            "merge-exp-of-maxima",
            "The factors are quotients of exp(m_a), exp(m_b) and exp(m), which over- or underflow far from zero.",
            by_exponentials,
        ),
        Mistake(
            "merge-relative-to-one-side",
            "Both sums are first taken relative to one state's maximum, whichever is larger: exp overflows.",
            from_one_side,
        ),
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
        Mistake(
            "merge-averaged",
            "The merged state was halved: sums over disjoint keys are added, not averaged.",
            lambda: [(row_max, row_sum, output / 2), (row_max, row_sum / 2, output / 2)],
        ),
        Mistake(
            "merge-weighted-by-l",
            "o is weighted by l, as if it were normalised; states hold it unnormalised.",
            lambda: weighted_by_sums(),
        ),
        Mistake("merge-one-maximum", "The maximum was taken over all rows together, not for each row.", one_max),
    ]


def _maxima_of_merges(a: State, b: State) -> list[Mistake]:
    """What m a merge may return in place of the larger one, whatever l and o are relative to."""
    first, second = a[0].astype(np.float64), b[0].astype(np.float64)
    text = "m is {}; the state of both needs the larger of the two, row by row."
    return [
        Mistake("maximum-of-one-state", text.format("that of one of the states"), lambda: [(first,), (second,)]),
        Mistake("maximum-smaller-kept", text.format("the smaller one"), lambda: [(np.minimum(first, second),)]),
        Mistake("maxima-added", text.format("the sum of both"), lambda: [(first + second,)]),
        Mistake(
            "maximum-starts-at-0", text.format("never below 0"), lambda: [(np.maximum(0, np.maximum(first, second)),)]
        ),
        Mistake(
            "merge-one-maximum",
            "The maximum was taken over all rows together, not for each row.",
            lambda: [(np.full_like(first, max(first.max(), second.max())),)],
        ),
    ]

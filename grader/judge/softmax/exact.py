"""The exact pair of lab02: the same bits for every blocking, and right ones.

A result is (reference, l) with l * 2**reference = sum of exp(x), a row.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.memo import kept
from grader.judge.softmax.mistakes import Array, Pair, expect_arrays
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

LN2_HI = float.fromhex("0x1.62e42feep-1")
LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
LN2 = float(np.log(2.0))
LOG2_E = 1.4426950408889634
LARGEST_REFERENCE = 1 << 20
NO_EXPONENT = -(2**31)

Split = Callable[[Array], Pair]


def split(x: Array) -> Pair:
    """x as (n, exp(r)) with x = n ln 2 + r, ln 2 in two parts; -inf gives (NO_EXPONENT, 0)."""
    return _split(x, lambda safe, n: np.exp((safe - n * LN2_HI) - n * LN2_LO))


def split_single(x: Array) -> Pair:
    """The mistake: ln 2 as one double."""
    return _split(x, lambda safe, n: np.exp(safe - n * LN2))


def split_base_two(x: Array) -> Pair:
    """The mistake: the fraction of x * log2(e)."""
    return _split(x, lambda safe, n: np.exp2(safe * LOG2_E - n))


def _split(x: Array, significand: Callable[[Array, Array], Array]) -> Pair:
    finite = np.isfinite(x)
    safe = np.where(finite, x, 0.0)
    n = np.rint(safe * LOG2_E)
    return np.where(finite, n, NO_EXPONENT).astype(np.int64), np.where(finite, significand(safe, n), 0.0)


def _carry(row_sum: Array, terms: Array) -> Array:
    """The carried sum first, then the block's terms, one after the other."""
    return np.asarray(np.cumsum(np.concatenate([row_sum[:, None], terms], axis=1), axis=1)[:, -1])


SUMS: dict[str, Callable[[Array, Array], Array]] = {
    "pairwise-sum": lambda row_sum, terms: np.concatenate([row_sum[:, None], terms], axis=1).sum(axis=1),
    "pairwise-block-sum": lambda row_sum, terms: row_sum + terms.sum(axis=1),
    "reversed-in-block": lambda row_sum, terms: _carry(row_sum, terms[:, ::-1]),
    "block-partial-sum": lambda row_sum, terms: row_sum + np.cumsum(terms, axis=1)[:, -1],
}
"""Ways to add a block that depend on where it begins and ends."""

TEXTS = {
    "pairwise-sum": "l equals a sum by np.sum, which adds pairwise: its order depends on the block's length.",
    "block-partial-sum": "l equals a sum of block sums: each block was added up by itself, then added to l.",
    "reversed-in-block": "Each block is added from its end to its beginning; the order must not depend on the blocks.",
    "reference-by-block": "The values agree, but the reference depends on how the stream was cut, and so do l's bits.",
    "rounds-by-block": "A rescale that isn't a power of two, or an order of adding that hangs on the blocks, rounds.",
    "ln2-low-part": "The error is that of r without the low part of ln 2, or with its sign turned round.",
    "power-by-exp": "Powers of two are computed as exp(-k ln 2), which rounds from k = 3 on; np.ldexp doesn't.",
    "ln2-single-part": "The error is that of r = x - n ln 2 with ln 2 as one double.",
    "split-in-base-2": "The error is that of splitting x log2(e): the product rounds before its fraction is taken.",
}


def _power(x: Array, exponent: Array) -> Array:
    return np.asarray(np.ldexp(x, np.maximum(exponent, -2200).astype(np.int32)))


def _rounded_power(x: Array, exponent: Array) -> Array:
    """The mistake: 2**exponent as exp(exponent * ln 2), which rounds."""
    return np.asarray(x * np.exp(np.maximum(exponent, -2200) * LN2))


def stream_sums(
    blocks: Sequence[Array],
    add: Callable[[Array, Array], Array] = _carry,
    cut: Split = split,
    rescale: Callable[[Array, Array], Array] = _power,
) -> Pair:
    """(reference, l) of a stream, exact by default; `add`, `cut` and the old sum's `rescale` can be a mistake's."""
    rows = blocks[0].shape[0]
    reference, row_sum = np.full(rows, NO_EXPONENT, np.int64), np.zeros(rows)
    for block in blocks:
        exponent, significand = cut(block)
        new = np.maximum(reference, exponent.max(axis=1))
        terms = _power(significand, exponent - new[:, None])
        row_sum = add(rescale(row_sum, reference - new), terms)
        reference = new
    return reference, row_sum


CLIMBS = ((3,), (3, 3), (6,), (3, 3, 3), (4,), (5,))
"""By how much references of `stairs` grow. exp(-k ln 2) is off by an ulp or two for k = 3 and 6, not for 4 and 5."""


def stairs(rng: np.random.Generator, rows: int, length: int) -> Array:
    """Rows (rows, length) near 0 that climb late, by a single entry a step.

    The many terms before a step still count after it, so a factor that isn't quite a power of two changes l.
    """
    x = rng.uniform(-0.3, 0.3, (rows, length))
    for row, first in enumerate(rng.integers(length * 2 // 3, length - 4, rows)):
        climb = np.cumsum(CLIMBS[row % len(CLIMBS)]) * LN2
        x[row, first : first + len(climb)] += climb
    return np.asarray(x)


def decimal_sum(row: Array) -> decimal.Decimal:
    """The sum of exp(x) over the finite entries of one row, to 50 digits."""
    with decimal.localcontext() as context:
        context.prec = 50
        return sum((decimal.Decimal(float(x)).exp() for x in row if np.isfinite(x)), decimal.Decimal(0))


def signed_error_ulp(reference: int, row_sum: float, truth: decimal.Decimal) -> float:
    """(l * 2**reference - truth) / truth in units of 2**-53; inf when the pair is no number of that size."""
    if not np.isfinite(row_sum) or abs(reference) > LARGEST_REFERENCE:
        return float("inf")
    with decimal.localcontext() as context:
        context.prec = 50
        value = decimal.Decimal(row_sum) * decimal.Decimal(2) ** reference
        return float((value / truth - 1) * decimal.Decimal(2) ** 53)


def stats_pair(judge: Judge, result: object, rows: int, what: str) -> Pair:
    """(reference, l) as int64 and float64 (rows,); ends the check with `contract` otherwise."""
    types = [np.dtype(np.int64), np.dtype(np.float64)]
    reference, row_sum = expect_arrays(judge, result, ("reference", "l"), [(rows,)] * 2, types, what)
    return reference, row_sum


def one_shot(judge: Judge, result: object, x: Array) -> tuple[Array, Array, Array]:
    """(p, reference, l) of `exact_softmax`; ends the check with `contract` when types or shapes are off."""
    types = [np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.float64)]
    shapes = [x.shape, (x.shape[0],), (x.shape[0],)]
    p, reference, row_sum = expect_arrays(judge, result, ("p", "reference", "l"), shapes, types, "exact_softmax")
    return p, reference, row_sum


def judge_bits(judge: Judge, x: Array, runs: Sequence[tuple[Sequence[Array], Pair]], whole: Pair) -> None:
    """Every streamed (reference, l) equals the one-shot in each of the 64 bits.

    Args:
        runs: (blocks, what the stream gave) for each blocking of `x`.
        whole: what the one-shot gave.
    """
    empty: Array = np.asarray(np.isneginf(x).all(axis=1))
    if (whole[1][empty] != 0).any() or not (whole[1][~empty] > 0).all():
        judge.fail("exact_softmax: l must be 0 in rows of nothing but -inf, and positive in all others.")
    differing = [_differs(got, whole, empty) for _, got in runs]
    judge.measure("blockings", len(runs))
    judge.measure("blockings_with_other_bits", sum(bool(d.any()) for d in differing))
    worst = max(runs, key=lambda run: int(_differs(run[1], whole, empty).sum()))
    if any(d.any() for d in differing):
        bad = int(_differs(worst[1], whole, empty).sum())
        judge.fail(
            f"exact_softmax_stats: {bad} of {x.shape[0]} rows differ in their bits from the one-shot "
            f"for blocks of {worst[0][0].shape[1]} entries; {_size(worst[1], whole, empty)}.",
            diagnosis=_explain_bits(runs, whole, empty),
        )


def _differs(got: Pair, whole: Pair, empty: Array) -> Array:
    same = (got[1].view(np.uint64) == whole[1].view(np.uint64)) & (got[0] == whole[0])
    return np.asarray(np.where(empty, got[1] != 0, ~same))


def _value_ratio(got: Pair, whole: Pair, empty: Array) -> Array:
    """l * 2**reference of `got` over that of `whole`, minus 1, where rows aren't empty."""
    power = np.clip(got[0] - whole[0], -1000, 1000).astype(np.int32)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(np.ldexp(got[1], power)[~empty] / whole[1][~empty] - 1))


def _size(got: Pair, whole: Pair, empty: Array) -> str:
    largest = float(np.nan_to_num(_value_ratio(got, whole, empty), nan=np.inf).max(initial=0.0)) * 2.0**53
    return "their values agree" if largest == 0 else f"their values are up to {largest:.3g} ulp apart"


def _explain_bits(runs: Sequence[tuple[Sequence[Array], Pair]], whole: Pair, empty: Array) -> Diagnosis | None:
    """The way of adding or rescaling that gives the submission's bits in nearly every row of every blocking."""
    ways: dict[str, Callable[[Sequence[Array]], Pair]] = {
        **{name: functools.partial(stream_sums, add=add) for name, add in SUMS.items()},
        "power-by-exp": functools.partial(stream_sums, rescale=_rounded_power),
    }
    for name, stream in ways.items():
        # Compared by value: the submission may use another reference.
        same = [_value_ratio(got, stream(blocks), empty) == 0 for blocks, got in runs]
        if float(np.concatenate(same).mean()) > 0.9:
            known = "pairwise-sum" if name.startswith("pairwise") else name
            return Diagnosis(id=known, text=TEXTS[known])
    apart = [float(_value_ratio(got, whole, empty).max(initial=0.0)) for _, got in runs]
    known = "reference-by-block" if max(apart) == 0 else "rounds-by-block" if max(apart) < 1e-12 else ""
    return Diagnosis(id=known, text=TEXTS[known]) if known else None


def judge_truth(judge: Judge, x: Array, got: Pair, what: str) -> None:
    """Hold l * 2**reference of each row to 50-digit arithmetic, within the check's `ulp`."""
    digits = kept("decimal sums", x, lambda: [str(decimal_sum(row)) for row in x])
    truths = [decimal.Decimal(text) for text in digits]
    errors = np.array([signed_error_ulp(int(r), float(s), t) for r, s, t in zip(*got, truths, strict=True)])
    worst = float(np.abs(errors).max())
    judge.measure("l_error_ulp", worst)
    allowed = judge.thresholds["ulp"]
    if worst <= allowed:
        return
    diagnosis = None
    cuts = (
        ("ln2-single-part", split_single),
        ("split-in-base-2", split_base_two),
        ("ln2-low-part", lambda x: _split(x, lambda safe, n: np.exp(safe - n * LN2_HI))),
        ("ln2-low-part", lambda x: _split(x, lambda safe, n: np.exp((safe - n * LN2_HI) + n * LN2_LO))),
    )
    for name, cut in cuts:
        pair = stream_sums([x], cut=cut)
        known = np.array([signed_error_ulp(int(r), float(s), t) for r, s, t in zip(*pair, truths, strict=True)])
        if np.isfinite(worst) and np.abs(known - errors).max() <= 0.1 * worst:
            diagnosis = Diagnosis(id=name, text=TEXTS[name])
    judge.fail(f"{what}: l * 2**reference is off by {worst:.3g} ulp, allowed {allowed:g}.", diagnosis=diagnosis)

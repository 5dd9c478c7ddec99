"""Mistakes of splitting the keys and merging the splits.

Where a kernel cuts isn't the judge's to know: whole tiles, whole pages or equal runs of keys, a variant for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from grader.judge.decode.cache import DecodeCase
from grader.judge.decode.predictions import Answer, Mistake, Variant, attend, scores, walk
from grader.judge.precision import LN_2, LOG2_E, Array

TILES = (16, 32, 64, 128)


def _cuts(case: DecodeCase, length: int, unit: int, floor: bool = False) -> list[tuple[int, int]]:
    """(start, stop) of each split, in whole units of keys; `floor` loses the units that don't divide."""
    splits = case.num_splits or 1
    units = -(-length // unit)
    each = units // splits if floor else -(-units // splits)
    bounds = [min(length, i * each * unit) for i in range(splits + 1)]
    return list(pairwise(bounds))


def _partials(case: DecodeCase, index: int, cuts: list[tuple[int, int]]) -> tuple[Array, Array, Array]:
    """(O, LSE, maximum) of each split: (splits, q_heads, ...)."""
    k, v = walk(case, case.table[index], case.lens[index])
    answers = [attend(case, index, k[a:b], v[a:b]) for a, b in cuts]
    empty = np.full(case.q_heads, -np.inf)
    tops = [scores(case, index, k[a:b]).max(axis=1) if b > a else empty for a, b in cuts]
    return np.array([o for o, _ in answers]), np.array([lse for _, lse in answers]), np.array(tops)


def _merge(outputs: Array, log_weights: Array) -> tuple[Array, Array]:
    """The splits' outputs weighted by exp of `log_weights` (splits, q_heads)."""
    top = log_weights.max(axis=0)
    shift = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(log_weights - shift)
    total = weights.sum(axis=0)
    safe = np.where(total == 0.0, 1.0, total)
    return (weights[..., None] * outputs).sum(axis=0) / safe[:, None], shift + np.log(total)


def _each_unit(merge: Callable[[DecodeCase, int, int], Answer]) -> tuple[Variant, ...]:
    """A variant for each way to cut: single keys, pages, tiles."""

    def by_page(case: DecodeCase, index: int) -> Answer:
        return merge(case, index, case.page_size)

    def by(unit: int) -> Variant:
        return lambda case, index: merge(case, index, unit)

    return (by_page, *(by(unit) for unit in (1, *TILES)))


def _unweighted(case: DecodeCase, index: int, unit: int, empties: bool, average: bool) -> Answer:
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    count = len(outputs) if empties else max(1, int((~np.isneginf(lses[:, 0])).sum()))
    return outputs.sum(axis=0) / (count if average else 1), None


def _weights_without_max(case: DecodeCase, index: int, unit: int) -> Answer:
    """Each split weighs its row sum, as if all splits had the same maximum."""
    outputs, lses, tops = _partials(case, index, _cuts(case, case.lens[index], unit))
    sums = np.where(np.isneginf(tops), -np.inf, lses - np.where(np.isneginf(tops), 0.0, tops))
    o, _ = _merge(outputs, sums)
    return o, None


def _weights_in_base(case: DecodeCase, index: int, unit: int, factor: float) -> Answer:
    """Splits weighted by the wrong base's exponential of their LSE."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    o, _ = _merge(outputs, lses * factor)
    return o, None


def _remainder_lost(case: DecodeCase, index: int, unit: int) -> Answer:
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit, floor=True))
    return _merge(outputs, lses)


def _some_splits(case: DecodeCase, index: int, unit: int, last: bool) -> Answer:
    """Only the first split, or all but the last."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    kept = slice(0, len(outputs) - 1) if last else slice(0, 1)
    return _merge(outputs[kept], lses[kept])


def _empty_split_is_nan(case: DecodeCase, index: int, unit: int) -> Answer:
    cuts = _cuts(case, case.lens[index], unit)
    o, lse = _merge(*_partials(case, index, cuts)[:2])
    hollow = any(a == b for a, b in cuts)
    return (np.full_like(o, np.nan), None) if hollow else (o, lse)


def _split(case: DecodeCase) -> bool:
    return (case.num_splits or 1) > 1


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "empty-split-nan",
        "Sequences with an empty split are NaN: one without keys has l = 0 and a maximum of -inf, and weighs nothing.",
        _each_unit(_empty_split_is_nan),
        _split,
    ),
    Mistake(
        "split-merged-without-weights",
        "Your output equals the plain mean (or sum) of the splits' outputs: each must be weighted by exp(lse_s - lse).",
        tuple(
            variant
            for empties, average in ((True, True), (False, True), (True, False))
            for variant in _each_unit(partial(_unweighted, empties=empties, average=average))
        ),
        _split,
    ),
    Mistake(
        "split-maxima-ignored",
        "Your output equals splits merged by their row sums alone: each split's sum is relative to its own maximum.",
        _each_unit(_weights_without_max),
        _split,
    ),
    Mistake(
        "split-weights-mixed-bases",
        "Your output equals splits merged with exp of an LSE in base 2, or exp2 of a natural one.",
        tuple(variant for factor in (LOG2_E, LN_2) for variant in _each_unit(partial(_weights_in_base, factor=factor))),
        _split,
    ),
    Mistake(
        "split-remainder-lost",
        "Your output equals attention in which the keys that don't divide by the number of splits are in none of them: "
        "round up.",
        _each_unit(_remainder_lost),
        _split,
    ),
    Mistake(
        "split-missing",
        "Your output equals attention over some of the splits only.",
        (*_each_unit(partial(_some_splits, last=True)), *_each_unit(partial(_some_splits, last=False))),
        _split,
    ),
)

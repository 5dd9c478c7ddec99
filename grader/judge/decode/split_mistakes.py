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
FEW = 8
"""Up to so many splits any merge holds."""


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
    # An empty sequence's splits are all empty; where no other has an empty one, it is the sequence that fails.
    lens = [length for length in case.lens if length] if not case.lens[index] else [case.lens[index]]
    hollow = any(a == b for length in lens for a, b in _cuts(case, length, unit))
    return (np.full_like(o, np.nan), None) if hollow else (o, lse)


def _one_output(case: DecodeCase, index: int, unit: int, last: bool) -> Answer:
    """The first or the last split's O in place of all, merged with the right LSE."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    held = np.flatnonzero(~np.isneginf(lses[:, 0]))
    _, lse = _merge(outputs, lses)
    return (outputs[held[-1 if last else 0]] if held.size else outputs[0]), lse


def _one_weight(case: DecodeCase, index: int, unit: int, last: bool) -> Answer:
    """Every split weighs what the first or the last one does."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    return _merge(outputs, np.broadcast_to(lses[-1 if last else 0], lses.shape))


def _one_lse(case: DecodeCase, index: int, unit: int, choose: Callable[[Array], Array]) -> Answer:
    """O is merged, the LSE is one split's."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    return _merge(outputs, lses)[0], choose(lses)


def _unnormalised(case: DecodeCase, index: int, unit: int) -> Answer:
    """Sums of weighted V that were not divided by their row sums, weighed as if they had been."""
    outputs, lses, tops = _partials(case, index, _cuts(case, case.lens[index], unit))
    sums = np.exp(lses - np.where(np.isneginf(tops), 0.0, tops))
    return _merge(outputs * sums[..., None], lses)


def _overlapping(case: DecodeCase, index: int, unit: int) -> Answer:
    length = case.lens[index]
    cuts = [(a, min(b + 1, length) if b > a else b) for a, b in _cuts(case, length, unit)]
    return _merge(*_partials(case, index, cuts)[:2])


def _empty_weighs(case: DecodeCase, index: int, unit: int) -> Answer:
    """An LSE of 0 in splits without keys."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    return _merge(outputs, np.where(np.isneginf(lses), 0.0, lses))


def _first_few(case: DecodeCase, index: int, unit: int, held: int, of_output: bool) -> Answer:
    """A merge that holds so many splits' LSE, and their outputs alone or all of them."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    few, lse = _merge(outputs[:held], lses[:held])
    if of_output or len(lses) <= held:
        return few, lse
    return (np.exp(lses - lse)[..., None] * outputs).sum(axis=0), lse


def _merged_without_max(case: DecodeCase, index: int, unit: int, guarded: bool) -> Answer:
    """exp of each LSE itself, in float32, which overflows and underflows."""
    outputs, lses, _ = _partials(case, index, _cuts(case, case.lens[index], unit))
    if not case.lens[index]:
        return _merge(outputs, lses)
    weights = np.exp(lses.astype(np.float32))
    total = weights.sum(axis=0)
    safe = np.where(total == 0.0, np.float32(1.0), total) if guarded else total
    o = (weights[..., None] * outputs).sum(axis=0) / safe[:, None]
    return o.astype(np.float64), np.log(total).astype(np.float64)


def _first(lses: Array) -> Array:
    return np.asarray(lses[0])


def _last(lses: Array) -> Array:
    return np.asarray(lses[-1])


def _largest(lses: Array) -> Array:
    return np.asarray(lses.max(axis=0))


def _split(case: DecodeCase) -> bool:
    return (case.num_splits or 1) > 1


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "empty-split-nan",
        "Sequences with an empty split are NaN: one without keys has l = 0 and a maximum of -inf, and weighs nothing.",
        _each_unit(_empty_split_is_nan),
        # Where caches hold NaN, NaN is what reading them gives.
        lambda case: _split(case) and not np.isnan(case.v_cache).any(),
        nan=True,
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
        "split-output-overwritten",
        "Your output equals one split's, though the LSE is merged from all: each split's output needs its own place.",
        tuple(variant for last in (True, False) for variant in _each_unit(partial(_one_output, last=last))),
        _split,
    ),
    Mistake(
        "split-statistics-overwritten",
        "Your output equals splits that all have one split's LSE in the merge: each split's LSE needs its own place.",
        tuple(variant for last in (True, False) for variant in _each_unit(partial(_one_weight, last=last))),
        _split,
    ),
    Mistake(
        "split-lse-not-merged",
        "O is right, but the LSE is that of one split, or the largest of theirs: it is log sum exp over all.",
        tuple(
            variant for choose in (_largest, _first, _last) for variant in _each_unit(partial(_one_lse, choose=choose))
        ),
        _split,
    ),
    Mistake(
        "split-outputs-not-normalised",
        "Your output equals splits whose outputs aren't divided by their row sums, merged with exp(lse): that weight "
        "holds the row sum already.",
        _each_unit(_unnormalised),
        _split,
    ),
    Mistake(
        "splits-overlap",
        "Your output equals attention in which the first key of a split also belongs to the split before.",
        _each_unit(_overlapping),
        _split,
    ),
    Mistake(
        "empty-split-weighed",
        "Your output equals a merge in which splits without keys have an LSE of 0 and weigh exp(0): it must be -inf.",
        _each_unit(_empty_weighs),
        _split,
    ),
    Mistake(
        "split-max-not-subtracted",
        "Your output equals a merge that takes exp of each LSE without subtracting the largest: it overflows, or all "
        "weights are 0.",
        tuple(
            variant
            for guarded in (True, False)
            for variant in _each_unit(partial(_merged_without_max, guarded=guarded))
        ),
        _split,
        nan=True,
    ),
    Mistake(
        "first-splits-only",
        "Your output equals a merge that takes the first few splits into account: up to 128 have to be merged.",
        tuple(
            variant
            for held in (2, 4, 8, 16, 32)
            for of_output in (False, True)
            for variant in _each_unit(partial(_first_few, held=held, of_output=of_output))
        ),
        lambda case: (case.num_splits or 1) > FEW,
    ),
    Mistake(
        "split-missing",
        "Your output equals attention over some of the splits only.",
        (*_each_unit(partial(_some_splits, last=True)), *_each_unit(partial(_some_splits, last=False))),
        _split,
    ),
)

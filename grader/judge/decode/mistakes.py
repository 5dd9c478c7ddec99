"""Known mistakes of paged decoding, each as the output that it would have produced over the whole batch.

What goes wrong within one sequence's softmax, scale, grouping or LSE is lab06's catalogue; here is what goes wrong
between sequences, pages and splits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from grader.judge.compare import Breach, absolute_error
from grader.judge.decode.cache import DecodeCase
from grader.judge.precision import Array
from grader.judge.tolerance import ForwardBounds
from grader.report.model import Diagnosis

Answer = tuple[Array, Array | None]
"""(O, LSE) of one sequence: (q_heads, head_dim) and (q_heads,). An LSE of None says nothing."""
Variant = Callable[[DecodeCase, int], Answer]

SLACK = 3.0
"""The prediction's own rounding errors may be this many times the bounds of the right answer."""
EXPLAINED = 0.2
"""Root mean square distance to the prediction over that to the oracle, at most."""
MARGIN = 3.0
"""The best explanation must be this many times closer than that of another mistake."""
PAGE_SIZES = (1, 8, 16, 32, 64, 128, 256)
TILES = (16, 32, 64, 128)


@dataclass(frozen=True, eq=False)
class Sequence:
    """One sequence's answer and what it is held to; `bounds` is None for an empty one."""

    index: int
    o: Array
    lse: Array
    bounds: ForwardBounds | None
    breaches: list[Breach]

    @property
    def allowed(self) -> float:
        return self.bounds.o_bounds.allowed.max if self.bounds is not None else 0.0

    @property
    def oracle(self) -> Array:
        """(q_heads, head_dim)."""
        return np.zeros_like(self.o) if self.bounds is None else np.asarray(self.bounds.o[:, 0])

    def error(self) -> float:
        """Largest error of O."""
        return float(absolute_error(self.o, self.oracle).max())


@dataclass(frozen=True, eq=False)
class Mistake:
    """One known mistake: name, sentence for the student, what it produces in each flavour, where it can show."""

    id: str
    text: str
    variants: tuple[Variant, ...]
    shows: Callable[[DecodeCase], bool] = lambda case: True


def diagnose(case: DecodeCase, sequences: list[Sequence]) -> Diagnosis | None:
    """The mistake that explains the whole batch's answer; None when there is none, or no single one."""
    distances: dict[str, tuple[float, Mistake]] = {}
    for mistake in CATALOGUE:
        if not mistake.shows(case):
            continue
        found = [d for d in (_distance(case, variant, sequences) for variant in mistake.variants) if d is not None]
        if found:
            distances[mistake.id] = (min(found), mistake)
    if not distances:
        return None
    best = min(distance for distance, _ in distances.values())
    rivals = [mistake for distance, mistake in distances.values() if distance <= MARGIN * best + 1e-12]
    return Diagnosis(id=rivals[0].id, text=rivals[0].text) if len(rivals) == 1 else None


def surviving(case: DecodeCase, mistake_id: str, sequences: list[Sequence]) -> int:
    """How many variants of a mistake break no bound of any sequence: the self-test of a check's inputs."""
    mistake = next(m for m in CATALOGUE if m.id == mistake_id)
    return sum(
        not any(_breaks(s, *_predict(variant, case, s.index)) for s in sequences) for variant in mistake.variants
    )


def _breaks(sequence: Sequence, o: Array, lse: Array | None) -> bool:
    if sequence.bounds is None:
        return bool(o.any()) or not (lse is None or bool(np.isneginf(lse).all()))
    return bool(sequence.bounds.breaches(o[:, None], None if lse is None else lse[:, None]))


def _predict(variant: Variant, case: DecodeCase, index: int) -> Answer:
    # A mistaken formula may divide by zero or overflow: that is what it predicts.
    with np.errstate(all="ignore"):
        return variant(case, index)


def _distance(case: DecodeCase, variant: Variant, sequences: list[Sequence]) -> float | None:
    """Distance of the answer to a prediction over that to the oracle; None when that doesn't explain it."""
    near, far, explains = 0.0, 0.0, False
    for sequence in sequences:
        predicted, lse = _predict(variant, case, sequence.index)
        if not np.array_equal(np.isnan(predicted), np.isnan(sequence.o)):
            return None
        if not _lse_fits(sequence, lse):
            return None
        explains |= bool(sequence.breaches) and _breaks(sequence, predicted, lse)
        finite = ~np.isnan(predicted)
        if not finite.any():
            continue
        away = np.abs(sequence.o - predicted)[finite]
        grown = max(1.0, float(np.abs(predicted[finite]).max()) / (float(np.abs(sequence.oracle).max()) or 1.0))
        if away.max() > SLACK * (sequence.allowed or 1e-3) * grown:
            return None
        if not sequence.breaches or not finite.all():
            continue  # what is right, or NaN in the predicted places, tells no distance
        near += float(np.square(away).sum())
        far += float(np.square(sequence.o - sequence.oracle)[finite].sum())
    ratio = float(np.sqrt(near / far)) if far else 0.0
    return ratio if explains and ratio <= EXPLAINED else None


def _lse_fits(sequence: Sequence, predicted: Array | None) -> bool:
    """Whether the LSE is the predicted one, as far as the prediction says something."""
    if predicted is None:
        return True
    told = ~np.isnan(predicted)
    if not np.array_equal(told, ~np.isnan(sequence.lse)):
        return False
    allowed = SLACK * (sequence.bounds.lse_allowed if sequence.bounds is not None else 0.0)
    return bool((absolute_error(sequence.lse[told], predicted[told]) <= allowed).all())


# What the mistakes are put together from.


def _walk(case: DecodeCase, row: Array, count: int, page_size: int | None = None) -> tuple[Array, Array]:
    """K and V (count, kv_heads, head_dim) of the first `count` positions by one table row.

    A page outside of the cache reads as NaN. With another `page_size` a slot may run into the page behind.
    """
    positions = np.arange(count)
    index, slot = np.divmod(positions, page_size or case.page_size)
    known = index < row.size
    page = np.where(known, row[np.minimum(index, row.size - 1)], -1)
    linear = page * case.page_size + slot
    inside = known & (page >= 0) & (linear < case.pages * case.page_size)
    at = np.where(inside, linear, 0)
    flat = (cache.reshape(-1, case.kv_heads, case.head_dim) for cache in (case.k_cache, case.v_cache))
    k, v = (np.where(inside[:, None, None], cache[at], np.nan) for cache in flat)
    return k, v


def _scores(case: DecodeCase, index: int, k: Array) -> Array:
    """Scaled scores (q_heads, keys)."""
    factor = case.head_dim**-0.5 if case.scale is None else case.scale
    q = case.q[index].reshape(case.kv_heads, case.group, case.head_dim)
    scores = np.einsum("hgd,nhd->hgn", q, k) * factor
    return np.asarray(scores.reshape(case.q_heads, -1))


def _weigh(case: DecodeCase, weights: Array, v: Array) -> Array:
    """weights (q_heads, keys) times V (keys, kv_heads, head_dim)."""
    grouped = weights.reshape(case.kv_heads, case.group, -1)
    return np.asarray(np.einsum("hgn,nhd->hgd", grouped, v).reshape(case.q_heads, case.head_dim))


def _attend(case: DecodeCase, index: int, k: Array, v: Array) -> tuple[Array, Array]:
    """Attention of a sequence's query over the keys given; 0 and -inf without any."""
    if not len(k):
        return np.zeros((case.q_heads, case.head_dim)), np.full(case.q_heads, -np.inf)
    scores = _scores(case, index, k)
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    return _weigh(case, weights / total, v), (top + np.log(total))[:, 0]


def _other_table(case: DecodeCase, index: int, row_of: Callable[[DecodeCase, int], Array]) -> Answer:
    return _attend(case, index, *_walk(case, row_of(case, index), case.lens[index]))


def _first_row(case: DecodeCase, index: int) -> Array:
    return np.asarray(case.table[0])


def _from_zero(case: DecodeCase, index: int) -> Array:
    return np.arange(case.table.shape[1])


def _dense(case: DecodeCase, index: int) -> Array:
    return np.asarray(index * case.table.shape[1] + np.arange(case.table.shape[1]))


def _packed(case: DecodeCase, index: int) -> Array:
    return np.asarray(sum(case.pages_of(i) for i in range(index)) + np.arange(case.table.shape[1]))


def _length_moved(case: DecodeCase, index: int, by: int) -> Answer:
    return _attend(case, index, *_walk(case, case.table[index], max(0, case.lens[index] + by)))


def _whole_pages(case: DecodeCase, index: int) -> Answer:
    return _attend(case, index, *_walk(case, case.table[index], case.pages_of(index) * case.page_size))


def _full_pages_only(case: DecodeCase, index: int) -> Answer:
    return _attend(case, index, *_walk(case, case.table[index], case.lens[index] // case.page_size * case.page_size))


def _one_length(case: DecodeCase, index: int, choose: Callable[[tuple[int, ...]], int]) -> Answer:
    return _attend(case, index, *_walk(case, case.table[index], choose(case.lens)))


def _first_of(lens: tuple[int, ...]) -> int:
    return lens[0]


def _page_size_assumed(case: DecodeCase, index: int, size: int) -> Answer:
    return _attend(case, index, *_walk(case, case.table[index], case.lens[index], size))


def _poisoned_answer(case: DecodeCase, index: int, of_k: bool) -> Answer:
    """Unused slots of the last page are multiplied by a weight of 0, or scored and masked by arithmetic: NaN."""
    o, lse = _attend(case, index, *_walk(case, case.table[index], case.lens[index]))
    k, v = _walk(case, case.table[index], case.pages_of(index) * case.page_size)
    behind = (k if of_k else v)[case.lens[index] :]
    struck = np.repeat(np.isnan(behind).any(axis=(0, 2)), case.group)
    o[struck] = np.nan
    if of_k:
        lse[struck] = np.nan
    return o, lse


def _empty_is_nan(case: DecodeCase, index: int) -> Answer:
    o, lse = _attend(case, index, *_walk(case, case.table[index], case.lens[index]))
    return (o, lse) if case.lens[index] else (np.full_like(o, np.nan), None)


# Splits. Where a kernel cuts isn't the judge's to know: whole tiles, whole pages or equal runs of keys.


def _cuts(case: DecodeCase, length: int, unit: int, floor: bool = False) -> list[tuple[int, int]]:
    """(start, stop) of each split, in whole units of keys; `floor` loses the units that don't divide."""
    splits = case.num_splits or 1
    units = -(-length // unit)
    each = units // splits if floor else -(-units // splits)
    bounds = [min(length, i * each * unit) for i in range(splits + 1)]
    return list(pairwise(bounds))


def _partials(case: DecodeCase, index: int, cuts: list[tuple[int, int]]) -> tuple[Array, Array, Array]:
    """(O, LSE, maximum) of each split: (splits, q_heads, ...)."""
    k, v = _walk(case, case.table[index], case.lens[index])
    answers = [_attend(case, index, k[a:b], v[a:b]) for a, b in cuts]
    empty = np.full(case.q_heads, -np.inf)
    tops = [_scores(case, index, k[a:b]).max(axis=1) if b > a else empty for a, b in cuts]
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


def _several(case: DecodeCase) -> bool:
    return case.batch > 1


def _has_nan(case: DecodeCase) -> bool:
    return bool(np.isnan(case.k_cache).any() or np.isnan(case.v_cache).any())


CATALOGUE: tuple[Mistake, ...] = (
    Mistake(
        "table-ignored",
        "Your output equals attention over pages in the order in which they lie in the cache: the block table isn't "
        "used to find them.",
        tuple(partial(_other_table, row_of=rows) for rows in (_from_zero, _dense, _packed)),
    ),
    Mistake(
        "table-row-of-first",
        "Your output equals attention in which every sequence uses the first sequence's row of the block table.",
        (partial(_other_table, row_of=_first_row),),
        _several,
    ),
    Mistake(
        "last-token-missed",
        "Your output equals attention that leaves out the last token: context_lens counts it.",
        (partial(_length_moved, by=-1),),
    ),
    Mistake(
        "unused-slot-attended",
        "Your output equals attention over slots past the end of the sequence: what stands there is no token of it.",
        (partial(_length_moved, by=1), _whole_pages),
        lambda case: not _has_nan(case),
    ),
    Mistake(
        "last-page-missed",
        "Your output equals attention over full pages only: a partly filled last page is left out.",
        (_full_pages_only,),
    ),
    Mistake(
        "one-length-for-all",
        "Your output equals attention in which every sequence has the same length.",
        (partial(_one_length, choose=_first_of), partial(_one_length, choose=max), partial(_one_length, choose=min)),
        _several,
    ),
    Mistake(
        "page-size-assumed",
        "Your output equals attention that assumes another page size than the cache's.",
        tuple(partial(_page_size_assumed, size=size) for size in PAGE_SIZES),
    ),
    Mistake(
        "unused-k-read",
        "O and LSE are NaN where unused slots of K hold NaN: mask the scores of slots past the end with -inf by "
        "selection, not by arithmetic.",
        (partial(_poisoned_answer, of_k=True),),
        _has_nan,
    ),
    Mistake(
        "unused-v-read",
        "O is NaN where unused slots of V hold NaN: their weight is 0, but 0 * NaN is NaN. Load them as zeros.",
        (partial(_poisoned_answer, of_k=False),),
        _has_nan,
    ),
    Mistake(
        "empty-sequence-nan",
        "Empty sequences are NaN (0/0 or inf - inf); they must give O = 0 and LSE = -inf.",
        (_empty_is_nan,),
        lambda case: 0 in case.lens,
    ),
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
        tuple(
            variant
            for factor in (1.4426950408889634, 0.6931471805599453)
            for variant in _each_unit(partial(_weights_in_base, factor=factor))
        ),
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

"""Mistakes of the online softmax, its merge and the LSE."""

from __future__ import annotations

from functools import partial

import numpy as np

from grader.judge.mistakes.model import (
    BLOCKS,
    Mistake,
    Variant,
    log,
    raw_scores,
    scores,
    tiles,
    unknown_lse,
)
from grader.judge.oracle import AttentionCase, Result, RowView, forward_view, softmax_attention
from grader.judge.precision import LN_2, LOG2_E, Array, round_to


def _online(
    view: RowView, block: int, backwards: bool, rescale_acc: float, rescale_sum: float, own_max: bool = False
) -> Result:
    """The tiled softmax with the rescales raised to a power: 1 is right, 0 leaves it out, -1 turns it upside down.

    Args:
        own_max: weights take the tile's own maximum; the rescale takes the running one.
    """
    masked = np.where(view.visible(), scores(view), -np.inf)
    v = view.v()
    row_max = np.full((*masked.shape[:-1], 1), -np.inf)
    row_sum = np.zeros_like(row_max)
    acc = np.zeros((*masked.shape[:-1], v.shape[-1]))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for tile in tiles(masked.shape[-1], block, backwards=backwards):
            part = masked[..., tile]
            new_max = np.maximum(row_max, part.max(axis=-1, keepdims=True))
            shift = np.where(np.isneginf(new_max), 0.0, new_max)
            top = part.max(axis=-1, keepdims=True) if own_max else shift
            weights = np.exp(part - np.where(np.isneginf(top), 0.0, top))
            # Before the first key there is nothing to rescale, whatever the formula says.
            step = np.where(np.isneginf(row_max), 0.0, row_max - shift)
            acc = acc * np.exp(rescale_acc * step) + weights @ v[..., tile, :]
            row_sum = row_sum * np.exp(rescale_sum * step) + weights.sum(axis=-1, keepdims=True)
            row_max = new_max
        o = acc / np.where(row_sum == 0.0, 1.0, row_sum)
    return o, (row_max + log(row_sum))[..., 0]


def _online_variants(rescale_acc: float, rescale_sum: float, own_max: bool = False) -> tuple[Variant, ...]:
    return tuple(
        partial(
            _online,
            block=block,
            backwards=backwards,
            rescale_acc=rescale_acc,
            rescale_sum=rescale_sum,
            own_max=own_max,
        )
        for block in BLOCKS
        for backwards in (False, True)
    )


def _max_then_sum(view: RowView) -> tuple[Array, Array, Array, Array]:
    """(weights, row_max, row_sum, v), the row's statistics with a kept axis."""
    masked = np.where(view.visible(), scores(view), -np.inf)
    row_max = masked.max(axis=-1, keepdims=True)
    weights = np.exp(masked - np.where(np.isneginf(row_max), 0.0, row_max))
    return weights, row_max, weights.sum(axis=-1, keepdims=True), view.v()


def _not_normalised(view: RowView) -> Result:
    weights, row_max, row_sum, v = _max_then_sum(view)
    return weights @ v, (row_max + log(row_sum))[..., 0]


def _normalised_twice(view: RowView) -> Result:
    weights, row_max, row_sum, v = _max_then_sum(view)
    safe = np.where(row_sum == 0.0, 1.0, row_sum)
    return weights @ v / safe**2, (row_max + log(row_sum))[..., 0]


def _fixed_max(view: RowView, start: float, grows: bool, empty: float | None) -> Result:
    """A running maximum that never lies below `start`, in float32 and with P in the working dtype.

    `grows` says whether it follows scores above `start`; `empty` is what a row sum of 0 gives: NaN from 0/0, or 0 with
    an LSE of -inf, or of the maximum where the sum itself is replaced by 1 (``empty`` None).
    """
    masked = np.where(view.visible(), scores(view), -np.inf).astype(np.float32)
    row_max = np.full((*masked.shape[:-1], 1), np.float32(start))
    if grows:
        row_max = np.maximum(row_max, masked.max(axis=-1, keepdims=True))
    v = view.v().astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
        weights = np.exp(masked - row_max)
        row_sum = weights.sum(axis=-1, keepdims=True)
        o = round_to(weights, view.case.dtype) @ v / row_sum
        lse = row_max + np.log(np.where(row_sum == 0.0, np.float32(empty is None), row_sum))
    o = np.where(row_sum == 0.0, np.float32(empty or 0.0), o)
    return o.astype(np.float64), lse[..., 0].astype(np.float64)


def _max_before_scale(view: RowView) -> Result:
    """The largest unscaled score times the scale for a maximum, in float32 and with P in the working dtype."""
    masked = np.where(view.visible(), raw_scores(view), -np.inf)
    top = (masked.max(axis=-1, keepdims=True) * view.case.softmax_scale).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.exp(np.where(view.visible(), scores(view), -np.inf).astype(np.float32) - top)
        row_sum = weights.sum(axis=-1, keepdims=True)
        o = round_to(weights, view.case.dtype) @ view.v().astype(np.float32) / row_sum
    return o.astype(np.float64), (top + log(row_sum))[..., 0].astype(np.float64)


def _partials(view: RowView, width: int) -> tuple[list[Array], list[Array]]:
    """Normalised O and LSE of each run of `width` keys."""
    everything, shown, v = scores(view), view.visible(), view.v()
    outputs, sums = [], []
    for part in tiles(view.case.k_len, width):
        o, lse = softmax_attention(everything[..., part], shown[..., part], v[:, part])
        outputs.append(o)
        sums.append(lse)
    return outputs, sums


def _split_mean(view: RowView, splits: int, block: int, average: bool) -> Result:
    """Normalised outputs of runs of keys, added up (and divided by their number) without their weights."""
    width = block or -(-view.case.k_len // splits)
    outputs, _ = _partials(view, width)
    total = np.sum(outputs, axis=0)
    o = total / len(outputs) if average else total
    return o, unknown_lse(o)


def _wrong_axis(view: RowView) -> Result:
    """Softmax over the queries: every column of P adds up to one instead of every row."""
    whole = RowView(view.case, view.batches, view.heads, np.arange(view.case.q_len)[None])
    masked = np.where(whole.visible(), scores(whole), -np.inf)
    column_max = masked.max(axis=1, keepdims=True)
    weights = np.exp(masked - np.where(np.isneginf(column_max), 0.0, column_max))
    column_sum = weights.sum(axis=1, keepdims=True)
    weights = weights / np.where(column_sum == 0.0, 1.0, column_sum)
    rows = np.broadcast_to(view.rows, (view.slices, view.rows.shape[1]))
    o = np.take_along_axis(weights, rows[..., None], axis=1) @ view.v()
    return o, unknown_lse(o)


def _lse_base_2(view: RowView) -> Result:
    o, lse = forward_view(view)
    return o, lse / LN_2


def _lse_mixed(view: RowView, max_base_2: bool) -> Result:
    o, _ = forward_view(view)
    _, row_max, row_sum, _ = _max_then_sum(view)
    top, total = row_max[..., 0], log(row_sum)[..., 0]
    return o, top / LN_2 + total if max_base_2 else top + total / LN_2


def _lse_without_max(view: RowView) -> Result:
    o, _ = forward_view(view)
    return o, log(_max_then_sum(view)[2])[..., 0]


def _lse_is_max(view: RowView) -> Result:
    o, _ = forward_view(view)
    return o, _max_then_sum(view)[1][..., 0]


def _lse_is_sum(view: RowView) -> Result:
    o, _ = forward_view(view)
    return o, _max_then_sum(view)[2][..., 0]


def _lse_log_subtracted(view: RowView) -> Result:
    o, _ = forward_view(view)
    _, row_max, row_sum, _ = _max_then_sum(view)
    return o, (row_max - log(row_sum))[..., 0]


def _lse_of_old_max(view: RowView, block: int) -> Result:
    """The row sum is that of the final maximum, the maximum is the one before the last tile."""
    o, lse = forward_view(view)
    masked = np.where(view.visible(), scores(view), -np.inf)
    row_max = masked.max(axis=-1)
    before = masked[..., : (view.case.k_len - 1) // block * block]
    with np.errstate(invalid="ignore"):
        return o, lse - row_max + (before.max(axis=-1) if before.shape[-1] else np.full_like(lse, -np.inf))


def _lse_without_log(view: RowView) -> Result:
    o, _ = forward_view(view)
    _, row_max, row_sum, _ = _max_then_sum(view)
    return o, (row_max + row_sum)[..., 0]


def _lse_rounded(view: RowView, dtype: str) -> Result:
    o, lse = forward_view(view)
    return o, round_to(lse, dtype)


def _lse_unscaled(view: RowView, only_max: bool) -> Result:
    """The LSE of scores before scaling, or the unscaled maximum with the right sum."""
    o, _ = forward_view(view)
    raw = np.where(view.visible(), raw_scores(view), -np.inf)
    top = raw.max(axis=-1)
    if only_max:
        return o, top + log(_max_then_sum(view)[2])[..., 0]
    shift = np.where(np.isneginf(top), 0.0, top)
    return o, shift + log(np.exp(raw - shift[..., None]).sum(axis=-1))


def _long(case: AttentionCase) -> bool:
    return case.k_len > min(BLOCKS)


_LSE_RIGHT_O = "O is right, but the LSE "

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "accumulator-not-rescaled",
        "Your output equals an online softmax whose accumulator is not rescaled when the running maximum grows.",
        _online_variants(0.0, 1.0),
        _long,
    ),
    Mistake(
        "row-sum-not-rescaled",
        "Your output equals an online softmax whose row sum is not rescaled when the running maximum grows.",
        _online_variants(1.0, 0.0),
        _long,
    ),
    Mistake(
        "rescale-missing",
        "Your output equals an online softmax that rescales neither accumulator nor row sum when the maximum grows.",
        _online_variants(0.0, 0.0),
        _long,
    ),
    Mistake(
        "rescale-inverted",
        "Your output equals an online softmax rescaled by exp(new max - old max); it must be exp(old max - new max).",
        (*_online_variants(-1.0, -1.0), *_online_variants(-1.0, 1.0)),
        _long,
    ),
    Mistake(
        "rescale-in-another-base",
        "Your output equals an online softmax whose weights and rescale use different bases: exp2 needs differences "
        "in base 2, exp in base e.",
        (*_online_variants(LOG2_E, LOG2_E), *_online_variants(LN_2, LN_2)),
        _long,
    ),
    Mistake(
        "max-of-tile",
        "Your output equals an online softmax whose weights subtract the tile's own maximum: "
        "it must be the running one, which the rescale uses.",
        _online_variants(1.0, 1.0, own_max=True),
        _long,
    ),
    Mistake(
        "output-not-normalised",
        "Your output equals the accumulator before it is divided by the row sum.",
        (_not_normalised,),
    ),
    Mistake("output-normalised-twice", "Your output equals O divided by the row sum twice.", (_normalised_twice,)),
    Mistake(
        "max-initialised-to-zero",
        "Your output equals a softmax whose maximum never lies below 0, so that rows far below it underflow: it starts "
        "at 0, isn't subtracted, or is taken before keys past the end, whose score is 0, are masked.",
        (
            partial(_fixed_max, start=0.0, grows=True, empty=np.nan),
            partial(_fixed_max, start=0.0, grows=True, empty=0.0),
            partial(_fixed_max, start=0.0, grows=True, empty=None),
        ),
        group="max",
    ),
    Mistake(
        "max-initialised-too-high",
        "Your output equals a softmax whose maximum starts at a finite number: rows below it underflow. Start at -inf.",
        tuple(
            partial(_fixed_max, start=start, grows=True, empty=empty)
            for start in (-1e2, -1e3, -1e4, -6e4)
            for empty in (np.nan, 0.0)
        ),
        group="max",
    ),
    Mistake(
        "no-max-subtraction",
        "Your output equals a softmax without its maximum subtracted: exp overflows.",
        (
            partial(_fixed_max, start=0.0, grows=False, empty=np.nan),
            partial(_fixed_max, start=0.0, grows=False, empty=0.0),
        ),
        group="max",
    ),
    Mistake(
        "max-before-negative-scale",
        "Your output equals a softmax whose maximum is taken before scores are scaled: a negative scale makes the "
        "largest the smallest, and exp overflows.",
        (_max_before_scale,),
        lambda case: case.softmax_scale < 0.0,
    ),
    Mistake(
        "split-merged-without-weights",
        "Your output equals partial results of runs of keys averaged or added without the weights exp(lse_i - lse).",
        tuple(
            partial(_split_mean, splits=splits, block=block, average=average)
            for splits, block in (*((n, 0) for n in (2, 3, 4, 5, 6, 7, 8)), *((0, block) for block in BLOCKS))
            for average in (True, False)
        ),
        lambda case: case.k_len > 1,
    ),
    Mistake(
        "softmax-over-wrong-axis",
        "Your output equals a softmax taken over the queries instead of the keys.",
        (_wrong_axis,),
        lambda case: case.q_len > 1 and case.q_len * case.k_len <= 1 << 20,
    ),
    Mistake(
        "lse-base-2", _LSE_RIGHT_O + "is in base 2; it must be the natural logarithm.", (_lse_base_2,), target="LSE"
    ),
    Mistake(
        "lse-mixed-bases",
        _LSE_RIGHT_O + "adds a maximum and a logarithm of different bases.",
        (partial(_lse_mixed, max_base_2=True), partial(_lse_mixed, max_base_2=False)),
        target="LSE",
    ),
    Mistake(
        "lse-without-max",
        _LSE_RIGHT_O + "is log(row sum) alone: the row's maximum is not added.",
        (_lse_without_max,),
        target="LSE",
    ),
    Mistake(
        "lse-is-row-max", _LSE_RIGHT_O + "is the row's maximum: log(row sum) is missing.", (_lse_is_max,), target="LSE"
    ),
    Mistake(
        "lse-is-row-sum",
        _LSE_RIGHT_O + "is the row sum itself; it must be max + log(row sum).",
        (_lse_is_sum,),
        target="LSE",
    ),
    Mistake(
        "lse-without-log",
        _LSE_RIGHT_O + "adds the row sum itself to the maximum: it must be max + log(row sum).",
        (_lse_without_log,),
        target="LSE",
    ),
    Mistake(
        "lse-of-old-maximum",
        _LSE_RIGHT_O + "takes the maximum from before the last key tile; the row sum belongs to the final one.",
        tuple(partial(_lse_of_old_max, block=block) for block in BLOCKS),
        _long,
        target="LSE",
    ),
    Mistake(
        "lse-low-precision",
        _LSE_RIGHT_O + "is rounded to half precision; keep it in float32.",
        tuple(partial(_lse_rounded, dtype=dtype) for dtype in ("float16", "bfloat16")),
        target="LSE",
        noisy=True,
    ),
    Mistake(
        "lse-log-subtracted",
        _LSE_RIGHT_O + "is max - log(row sum); it must be max + log(row sum).",
        (_lse_log_subtracted,),
        target="LSE",
    ),
    Mistake(
        "lse-of-unscaled-scores",
        _LSE_RIGHT_O + "is taken from scores that are not scaled.",
        (partial(_lse_unscaled, only_max=False), partial(_lse_unscaled, only_max=True)),
        target="LSE",
    ),
)

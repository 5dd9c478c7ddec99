"""Mistakes of the scale, the mask and the range of keys."""

from __future__ import annotations

from functools import partial

import numpy as np

from grader.judge.mistakes.model import BLOCKS, Mistake, attend, mask_of, raw_scores, scores
from grader.judge.oracle import AttentionCase, Result, RowView, softmax_attention, window_bounds
from grader.judge.precision import LN_2, LOG2_E, Array


def _with_scale_factor(view: RowView, factor: float) -> Result:
    return attend(view, scale=view.case.softmax_scale * factor)


def _scale_missing(view: RowView) -> Result:
    return attend(view, scale=1.0)


def _scale_ignored(view: RowView) -> Result:
    return attend(view, scale=view.case.head_dim**-0.5)


def _scale_twice(view: RowView) -> Result:
    return attend(view, scale=view.case.softmax_scale**2)


def _scale_padded(view: RowView, multiple: int) -> Result:
    dim = view.case.head_dim
    padded = 1 << (dim - 1).bit_length() if multiple == 0 else -(-dim // multiple) * multiple
    return attend(view, scale=padded**-0.5)


def _mask_top_left(view: RowView) -> Result:
    return attend(view, visible=mask_of(view, diagonal=0))


def _causal_ignored(view: RowView) -> Result:
    return attend(view, visible=mask_of(view, reach=window_bounds(False, view.case.window)))


def _diagonal_moved(view: RowView, by: int) -> Result:
    return attend(view, visible=mask_of(view, diagonal=view.case.diagonal + by))


def _causal_reversed(view: RowView) -> Result:
    return attend(view, visible=mask_of(view, reach=(0, None)))


def _window_ignored(view: RowView) -> Result:
    return attend(view, visible=mask_of(view, reach=window_bounds(view.case.causal, None)))


def _window_side_ignored(view: RowView, side: int) -> Result:
    left, right = window_bounds(view.case.causal, view.case.window)
    return attend(view, visible=mask_of(view, reach=(None, right) if side == 0 else (left, None)))


def _window_moved(view: RowView, left_by: int, right_by: int) -> Result:
    left, right = window_bounds(view.case.causal, view.case.window)
    new_left = None if left is None else left + left_by
    new_right = right if right is None or view.case.causal else right + right_by
    return attend(view, visible=mask_of(view, reach=(new_left, new_right)))


def _padded_length(length: int, block: int) -> int:
    return -(-length // block) * block


def _tail_unmasked(view: RowView, block: int) -> Result:
    """Keys past the end load as zeros: score 0 and V = 0, but a share of the row sum."""
    case = view.case
    extra = _padded_length(case.k_len, block) - case.k_len
    padding = ((0, 0), (0, 0), (0, extra))
    padded_v = np.pad(view.v(), ((0, 0), (0, extra), (0, 0)))
    return softmax_attention(np.pad(scores(view), padding), mask_of(view, k_len=case.k_len + extra), padded_v)


def _mask_as_zero(view: RowView) -> Result:
    """Hidden scores are set to 0 (or multiplied by the mask), which still weighs exp(0 - max)."""
    shown = view.visible()
    masked = np.where(shown, scores(view), 0.0)
    return softmax_attention(masked, np.ones_like(shown), view.v())


def _mask_after_softmax(view: RowView) -> Result:
    """Hidden weights are zeroed after the row sum was taken over all keys."""
    everything = scores(view)
    row_max = everything.max(axis=-1, keepdims=True)
    weights = np.exp(everything - row_max)
    row_sum = weights.sum(axis=-1, keepdims=True)
    o = (weights * view.visible()) @ view.v() / row_sum
    return o, (row_max + np.log(row_sum))[..., 0]


def _finite_sentinel(view: RowView, value: float, block: int) -> Result:
    """Hidden keys, and those past the end up to a tile's edge, get a finite score instead of -inf."""
    extra = _padded_length(view.case.k_len, block) - view.case.k_len
    masked = np.where(view.visible(), scores(view), value)
    masked = np.pad(masked, ((0, 0), (0, 0), (0, extra)), constant_values=value)
    padded_v = np.pad(view.v(), ((0, 0), (0, extra), (0, 0)))
    return softmax_attention(masked, np.ones(masked.shape, dtype=bool), padded_v)


def _keys_before(view: RowView, ends: Array | int, starts: Array | int = 0) -> Result:
    """Attention over the visible keys in [starts, ends), which may differ from row to row."""
    keys = np.arange(view.case.k_len)
    kept = (keys < np.asarray(ends)[..., None]) & (keys >= np.asarray(starts)[..., None])
    return attend(view, visible=view.visible() & kept)


def _last_tile_skipped(view: RowView, block: int) -> Result:
    """Without effect where there is a single tile: an answer without any key has other likely causes."""
    last = (view.case.k_len - 1) // block * block
    return _keys_before(view, last or view.case.k_len)


def _first_tile_skipped(view: RowView, block: int) -> Result:
    """Like `_last_tile_skipped`, without effect on a single tile."""
    return _keys_before(view, view.case.k_len, block if block < view.case.k_len else 0)


def _diagonal_tile_skipped(view: RowView, block_m: int, block_n: int) -> Result:
    """The loop stops before the key tile that the diagonal runs through."""
    first_row = view.rows // block_m * block_m
    return _keys_before(view, np.maximum(0, (first_row + view.case.diagonal) // block_n * block_n))


def _loop_ends_at(view: RowView, blocks: tuple[int, int], step: int, offset: int) -> Result:
    """The loop over keys ends with the query tile's (`step` keys a tile, `offset` further); the mask itself is right.

    Args:
        blocks: rows a query tile, keys a key tile.
    """
    block_m, block_n = blocks
    end = (view.rows // block_m + 1) * step + offset
    return _keys_before(view, -(-end // block_n) * block_n)


def _loop_ends_at_query(view: RowView, block_m: int, block_n: int) -> Result:
    """Without k_len - q_len."""
    return _loop_ends_at(view, (block_m, block_n), block_m, 0)


def _loop_ends_at_aligned_key(view: RowView, block_m: int, block_n: int) -> Result:
    """As a causal loop does, although the window reaches further."""
    return _loop_ends_at(view, (block_m, block_n), block_m, view.case.diagonal)


def _loop_counts_key_tiles(view: RowView, block_m: int, block_n: int) -> Result:
    """Query tile t ends at (t + 1) * BLOCK_N."""
    return _loop_ends_at(view, (block_m, block_n), block_n, view.case.diagonal)


def _keys_up_to_q_len(view: RowView) -> Result:
    return _keys_before(view, view.case.q_len)


def _mean_of_v(view: RowView, everything: bool) -> Result:
    shown = np.ones_like(view.visible()) if everything else view.visible()
    return softmax_attention(np.zeros(raw_scores(view).shape), shown, view.v())


def _masked(case: AttentionCase) -> bool:
    return case.causal or case.window is not None


def _causal(case: AttentionCase) -> bool:
    return case.causal


def _windowed(case: AttentionCase) -> bool:
    return case.window is not None


def _ragged_keys(case: AttentionCase) -> bool:
    return any(case.k_len % block for block in BLOCKS)


def _sees_ahead(case: AttentionCase) -> bool:
    _, right = window_bounds(case.causal, case.window)
    return case.window is not None and right != 0


def _offset_causal(case: AttentionCase) -> bool:
    return case.causal and case.diagonal > 0


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "mask-top-left",
        "Your output equals attention with the mask aligned top-left (row i sees key j <= i); "
        "here it is aligned bottom-right (j <= i + k_len - q_len).",
        (_mask_top_left,),
        lambda case: _masked(case) and case.diagonal != 0,
        group="diagonal",
    ),
    Mistake(
        "scale-zero-is-none",
        "Your output equals attention scaled by 1/sqrt(head_dim) although the call says scale=0: "
        "`scale or default` takes 0 for None.",
        (_scale_ignored,),
        lambda case: case.scale == 0,
        group="scale",
    ),
    Mistake(
        "scale-sign-lost",
        "Your output equals attention with the scale's sign dropped: a scale may be negative.",
        (partial(_with_scale_factor, factor=-1.0),),
        lambda case: case.softmax_scale < 0,
    ),
    Mistake(
        "scale-ignored",
        "Your output equals attention scaled by 1/sqrt(head_dim) although the call gives another `scale`.",
        (_scale_ignored,),
        lambda case: case.scale is not None,
        group="scale",
    ),
    Mistake("scale-missing", "Your output equals attention whose scores are not scaled at all.", (_scale_missing,)),
    Mistake("scale-applied-twice", "Your output equals attention with the scale applied twice.", (_scale_twice,)),
    Mistake(
        "scale-of-padded-head-dim",
        "Your output equals attention scaled by the padded head_dim's 1/sqrt, not the real one's.",
        tuple(partial(_scale_padded, multiple=multiple) for multiple in (0, 16, 32, 64, 128)),
        lambda case: case.head_dim % 128 != 0,
        group="scale",
    ),
    Mistake(
        "exp2-without-log2e",
        "Your output equals a softmax in base 2: exp2 is used, but the scores are not multiplied by log2(e).",
        (partial(_with_scale_factor, factor=LN_2),),
    ),
    Mistake(
        "exp-with-log2e",
        "Your output equals attention with scores multiplied by log2(e) and then passed to exp instead of exp2.",
        (partial(_with_scale_factor, factor=LOG2_E),),
    ),
    Mistake("causal-ignored", "Your output equals attention without the causal mask.", (_causal_ignored,), _causal),
    Mistake(
        "causal-off-by-one",
        "Your output equals attention with the causal mask off by one: row i must see key i + k_len - q_len "
        "and none after it.",
        (partial(_diagonal_moved, by=-1), partial(_diagonal_moved, by=1)),
        lambda case: case.causal and case.window is None,
        group="diagonal",
    ),
    Mistake(
        "causal-reversed",
        "Your output equals attention with the causal comparison turned round: rows see the future, not the past.",
        (_causal_reversed,),
        _causal,
    ),
    Mistake(
        "window-ignored",
        "Your output equals attention without the window.",
        (_window_ignored,),
        _windowed,
        group="window",
    ),
    Mistake(
        "window-side-ignored",
        "Your output equals attention with one side of the window left out.",
        (partial(_window_side_ignored, side=0), partial(_window_side_ignored, side=1)),
        _windowed,
        group="window",
    ),
    Mistake(
        "window-off-by-one",
        "Your output equals attention with the window off by one: both of its ends are inclusive.",
        tuple(
            partial(_window_moved, left_by=left, right_by=right)
            for left, right in ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1))
        ),
        _windowed,
        group="diagonal",
    ),
    Mistake(
        "window-moved",
        "Your output equals attention with the window (and mask) shifted by one key.",
        (partial(_diagonal_moved, by=-1), partial(_diagonal_moved, by=1)),
        _windowed,
        group="diagonal",
    ),
    Mistake(
        "tail-unmasked",
        "Your output equals attention in which keys past the end of K count: they load as zeros, get score 0, "
        "and add to the row sum.",
        tuple(partial(_tail_unmasked, block=block) for block in (*BLOCKS, 256)),
        lambda case: _ragged_keys(case) or case.k_len % 256 != 0,
    ),
    Mistake(
        "mask-as-zero",
        "Your output equals attention whose hidden scores are set to 0 instead of -inf.",
        (_mask_as_zero,),
        _masked,
    ),
    Mistake(
        "mask-after-softmax",
        "Your output equals attention whose mask zeroes the weights after the row sum was taken over all keys.",
        (_mask_after_softmax,),
        _masked,
    ),
    Mistake(
        "finite-sentinel",
        "Your output equals attention whose hidden scores get a large negative number instead of -inf: "
        "where real scores lie below it, hidden keys win.",
        tuple(
            partial(_finite_sentinel, value=value * unit, block=block)
            # Kernels that use exp2 have scores in base 2, and so the number in their place.
            for unit in (1.0, LN_2)
            for value in (-1e4, -5e4, -6e4, -65504.0, -1e5, -1e6, -1e9, -1e3)
            for block in (1, *BLOCKS)
        ),
        lambda case: _masked(case) or _ragged_keys(case),
    ),
    Mistake(
        "loop-end-ignores-offset",
        "Your output equals attention whose loop over keys ends at the query tile's own position, "
        "without k_len - q_len.",
        tuple(partial(_loop_ends_at_query, block_m=m, block_n=n) for m in BLOCKS for n in (1, *BLOCKS)),
        _offset_causal,
    ),
    Mistake(
        "loop-end-ignores-window",
        "Your output equals attention whose loop over keys ends at the row's own key, "
        "although the window reaches to its right.",
        tuple(partial(_loop_ends_at_aligned_key, block_m=m, block_n=n) for m in BLOCKS for n in (1, *BLOCKS)),
        _sees_ahead,
    ),
    Mistake(
        "tile-sizes-mixed-up",
        "Your output equals attention whose loop over keys counts query tiles of BLOCK_N rows: they have BLOCK_M.",
        tuple(partial(_loop_counts_key_tiles, block_m=m, block_n=n) for m in BLOCKS for n in BLOCKS if m != n),
        _causal,
    ),
    Mistake(
        "keys-up-to-q-len",
        "Your output equals attention over the first q_len keys: there are k_len of them.",
        (_keys_up_to_q_len,),
        lambda case: case.k_len > case.q_len,
    ),
    Mistake(
        "broadcast-keys-counted-once",
        "Your output equals attention that sees a single key where K or V has stride 0 along the sequence: "
        "a row that is read k_len times still counts as k_len keys.",
        (lambda view: _keys_before(view, 1),),
        lambda case: case.k_len > 1 and "seqlen-broadcast" in case.layouts,
    ),
    Mistake(
        "last-kv-tile-skipped",
        "Your output equals attention that leaves out the last key tile: their number must be rounded up.",
        tuple(partial(_last_tile_skipped, block=block) for block in BLOCKS),
    ),
    Mistake(
        "first-kv-tile-skipped",
        "Your output equals attention that leaves out the first key tile.",
        tuple(partial(_first_tile_skipped, block=block) for block in BLOCKS),
    ),
    Mistake(
        "diagonal-tile-skipped",
        "Your output equals attention that leaves out the key tile on the causal diagonal.",
        tuple(partial(_diagonal_tile_skipped, block_m=m, block_n=n) for m in BLOCKS for n in BLOCKS),
        _causal,
    ),
    Mistake(
        "mean-of-v",
        "Your output equals the plain mean of V: the scores have no influence.",
        (partial(_mean_of_v, everything=False), partial(_mean_of_v, everything=True)),
    ),
)

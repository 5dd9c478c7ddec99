"""Mistakes of indexing: heads, batch entries, strides, transposes, parts left unwritten."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from grader.judge import layouts
from grader.judge.mistakes.model import Mistake, Variant, attend, raw_scores, unknown_lse
from grader.judge.oracle import AttentionCase, Result, RowView, forward_view, softmax_attention
from grader.judge.precision import Array

LARGE = 1 << 22
"""Tensors above this many elements are not laid out anew for a diagnosis."""


def _tiled_heads(view: RowView) -> Result:
    heads = view.heads % view.case.kv_heads
    return attend(view, k=view.k(heads), v=view.v(heads))


def _of_first(view: RowView, names: str, axis: Literal["batches", "heads"]) -> Result:
    """The tensors `names` read from the first batch entry, or from the first head."""
    none = np.zeros_like(view.batches)
    first = replace(view, batches=none) if axis == "batches" else replace(view, heads=none)
    q, k, v = ((first if name in names else view) for name in "qkv")
    scaled = q.q() @ np.swapaxes(k.k(), -1, -2) * view.case.softmax_scale
    return softmax_attention(scaled, view.visible(), v.v())


def _of_first_variants(names: tuple[str, ...], axis: Literal["batches", "heads"]) -> tuple[Variant, ...]:
    return tuple(partial(_of_first, names=group, axis=axis) for group in names)


def _not_grouped(view: RowView) -> Result:
    """kv head h for query head h: past the last kv head the address runs into the next batch entry, or outside."""
    case = view.case
    linear = view.batches * case.kv_heads + view.heads
    total = case.batch * case.kv_heads
    inside = (linear < total)[:, None, None]
    batches, heads = np.divmod(np.minimum(linear, total - 1), case.kv_heads)
    moved = replace(view, batches=batches)
    with np.errstate(invalid="ignore"):
        k, v = (np.where(inside, values, np.nan) for values in (moved.k(heads), moved.v(heads)))
        return attend(view, k=k, v=v)


def _reread(case: AttentionCase, name: str, strides_of: str) -> Array:
    """Tensor `name` read with the strides of tensor `strides_of`, or as if contiguous, transposed, or dense in rows."""
    tensors = zip((case.q, case.k, case.v), case.layouts, strict=True)
    own: dict[str, tuple[Array, str]] = dict(zip("qkv", tensors, strict=True))
    values, layout = own[name]
    shape: layouts.Shape4 = values.shape
    offset = layouts.LAYOUTS[layout].offset
    if strides_of in own:
        other, other_layout = own[strides_of]
        strides = layouts.LAYOUTS[other_layout].strides(other.shape)
    elif strides_of == "dense-rows":
        actual = layouts.LAYOUTS[layout].strides(shape)
        strides = (actual[0], actual[1], shape[3], 1)
    elif strides_of == "last-one":
        actual = layouts.LAYOUTS[layout].strides(shape)
        strides = (actual[0], actual[1], actual[2], 1)
    else:
        strides = layouts.LAYOUTS[strides_of].strides(shape)
    return layouts.reread(values, layout, strides, offset)


def _restrided(view: RowView, names: str, strides_of: str) -> Result:
    """Attention with the tensors `names` read at another tensor's strides."""
    case = view.case
    q, k, v = (
        _reread(case, name, strides_of) if name in names else values
        for name, values in zip("qkv", (case.q, case.k, case.v), strict=True)
    )
    # NaN from outside of the storage stays NaN through the products.
    with np.errstate(invalid="ignore"):
        return forward_view(replace(view, case=replace(case, q=q, k=k, v=v)))


def _restrided_variants(pairs: tuple[tuple[str, str], ...]) -> tuple[Variant, ...]:
    return tuple(partial(_restrided, names=names, strides_of=strides_of) for names, strides_of in pairs)


def _k_not_transposed(view: RowView) -> Result:
    case = view.case
    k = view.k().reshape(view.slices, case.head_dim, case.k_len)
    return attend(view, k=np.swapaxes(k, -1, -2))


def _v_transposed(view: RowView) -> Result:
    case = view.case
    v = view.v().reshape(view.slices, case.head_dim, case.k_len)
    return attend(view, v=np.swapaxes(v, -1, -2))


def _swapped(view: RowView) -> Result:
    return attend(view, k=view.v(), v=view.k())


def _output_transposed(view: RowView, inverse: bool) -> Result:
    """O stored as (batch, q_len, q_heads, head_dim) memory under the shape (batch, q_heads, q_len, head_dim)."""
    case = view.case
    o, lse = forward_view(RowView.whole(case))
    o = o.reshape(case.batch, case.q_heads, case.q_len, -1)
    wrong = (
        o.reshape(case.batch, case.q_len, case.q_heads, -1).swapaxes(1, 2)
        if inverse
        else np.ascontiguousarray(o.swapaxes(1, 2)).reshape(o.shape)
    )
    taken = view.take(wrong)
    return taken, view.take(lse.reshape(case.batch, case.q_heads, case.q_len))


def _head_dim_truncated(view: RowView, only_scores: bool, filler: float) -> Result:
    """Only the largest power of two of head_dim is used, in the scores alone or in O too."""
    kept = 1 << (view.case.head_dim.bit_length() - 1)
    scale = view.case.softmax_scale
    raw = view.q()[..., :kept] @ np.swapaxes(view.k()[..., :kept], -1, -2)
    o, lse = softmax_attention(raw * scale, view.visible(), view.v())
    if not only_scores:
        o[..., kept:] = filler
    return o, lse


def _zeros(view: RowView) -> Result:
    o = np.zeros((view.slices, view.rows.shape[1], view.case.v.shape[3]))
    return o, unknown_lse(o)


def _ignores_scores_of_v(view: RowView) -> Result:
    """Sums V with unnormalised, unshifted raw scores as weights (no softmax)."""
    weights = np.where(view.visible(), raw_scores(view) * view.case.softmax_scale, 0.0)
    o = weights @ view.v()
    return o, unknown_lse(o)


def _grouped(case: AttentionCase) -> bool:
    return case.group > 1


def _several_kv_heads(case: AttentionCase) -> bool:
    return case.kv_heads > 1


def _small(case: AttentionCase) -> bool:
    return max(case.q.size, case.k.size) <= LARGE


def _mixed_layouts(case: AttentionCase) -> bool:
    return _small(case) and (len(set(case.layouts)) > 1 or case.q.shape != case.k.shape)


def _strided(case: AttentionCase) -> bool:
    return _small(case) and set(case.layouts) != {"contiguous"}


def _odd_head_dim(case: AttentionCase) -> bool:
    return case.head_dim & (case.head_dim - 1) != 0


MISTAKES: tuple[Mistake, ...] = (
    Mistake("zeros", "Your output is all zeros.", (_zeros,)),
    Mistake(
        "gqa-tiled",
        "Your output equals attention in which query head h uses kv head h % kv_heads; "
        "heads are grouped, so it is h // (q_heads / kv_heads).",
        (_tiled_heads,),
        lambda case: _grouped(case) and _several_kv_heads(case),
        group="heads",
    ),
    Mistake(
        "kv-head-of-first",
        "Your output equals attention in which every query head reads K or V of kv head 0.",
        _of_first_variants(("kv", "k", "v"), "heads"),
        _several_kv_heads,
        group="heads",
    ),
    Mistake(
        "gqa-not-grouped",
        "Your output equals attention in which query head h uses kv head h, although there are fewer kv heads.",
        (_not_grouped,),
        _grouped,
        group="heads",
    ),
    Mistake(
        "batch-ignored",
        "Your output equals attention in which every batch entry reads the first one's Q, K or V.",
        _of_first_variants(("kv", "qkv", "q", "k", "v"), "batches"),
        lambda case: case.batch > 1,
    ),
    Mistake(
        "query-head-of-first",
        "Your output equals attention in which every query head reads Q of head 0.",
        _of_first_variants(("q", "qkv"), "heads"),
        lambda case: case.q_heads > 1,
    ),
    Mistake(
        "strides-of-q-for-kv",
        "Your output equals attention that reads one tensor with the strides of another: q, k and v have their own.",
        _restrided_variants((("k", "q"), ("v", "q"), ("kv", "q"), ("v", "k"), ("k", "v"), ("q", "k"))),
        _mixed_layouts,
        group="strides",
    ),
    Mistake(
        "strides-assumed-contiguous",
        "Your output equals attention that takes a strided tensor to be contiguous: use every stride that it has.",
        (
            *_restrided_variants(tuple((names, "contiguous") for names in ("q", "k", "v", "kv", "qkv"))),
            *_restrided_variants(tuple((names, "dense-rows") for names in ("q", "k", "v", "kv", "qkv"))),
            *_restrided_variants(tuple((names, "last-one") for names in ("q", "k", "v", "kv", "qkv"))),
        ),
        _strided,
        group="strides",
    ),
    Mistake(
        "heads-and-seqlen-swapped",
        "Your output equals attention that reads a tensor as (batch, seqlen, heads, head_dim).",
        _restrided_variants(tuple((names, "transposed") for names in ("q", "k", "v", "kv", "qkv"))),
        lambda case: _small(case) and set(case.layouts) == {"contiguous"} and case.q_heads > 1,
    ),
    Mistake(
        "k-not-transposed",
        "Your output equals attention that reads K's memory as (head_dim, seqlen).",
        (_k_not_transposed,),
    ),
    Mistake(
        "v-transposed", "Your output equals attention that reads V's memory as (head_dim, seqlen).", (_v_transposed,)
    ),
    Mistake("k-and-v-swapped", "Your output equals attention with K and V exchanged.", (_swapped,)),
    Mistake(
        "transposed-output",
        "Your output holds the right numbers in the wrong places: heads and queries are exchanged in memory.",
        (partial(_output_transposed, inverse=False), partial(_output_transposed, inverse=True)),
        lambda case: _small(case) and case.q_heads > 1 and case.q_len > 1 and case.q_len * case.k_len <= 1 << 18,
    ),
    Mistake(
        "head-dim-truncated",
        "Your output equals attention that uses only the first columns of head_dim, up to a power of two.",
        (
            partial(_head_dim_truncated, only_scores=True, filler=0.0),
            partial(_head_dim_truncated, only_scores=False, filler=0.0),
            partial(_head_dim_truncated, only_scores=False, filler=np.nan),
        ),
        _odd_head_dim,
    ),
    Mistake(
        "softmax-missing",
        "Your output equals scores times V: there is no softmax between them.",
        (_ignores_scores_of_v,),
    ),
)

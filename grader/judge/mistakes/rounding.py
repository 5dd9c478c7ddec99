"""Mistakes of precision: something is kept in half precision that has to be float32."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from grader.judge.mistakes.model import BLOCKS, Mistake, Variant, divide, log, raw_scores, scores, tiles
from grader.judge.oracle import AttentionCase, Result, RowView, softmax_attention
from grader.judge.precision import LN_2, LOG2_E, Array, round_mantissa, round_to

LOW = ("float16", "bfloat16")
TF32_BITS = 10


def _rounded_scores(view: RowView, dtype: str, place: Literal["raw", "scaled", "base-2"]) -> Result:
    """Scores stored in half precision before scaling, after it, or after the factor log2 e too."""
    factor = view.case.softmax_scale
    with np.errstate(invalid="ignore", over="ignore"):
        if place == "raw":
            rounded = round_to(raw_scores(view), dtype) * factor
        elif place == "scaled":
            rounded = round_to(scores(view), dtype)
        else:
            rounded = round_to(scores(view) * LOG2_E, dtype) * LN_2
        return softmax_attention(rounded, view.visible(), view.v())


def _online_rounded(view: RowView, block: int, backwards: bool, dtypes: tuple[str, str]) -> Result:
    """The tiled softmax with accumulator and row sum rounded after every tile, to (accumulator's, row sum's) dtype."""
    acc_dtype, sum_dtype = dtypes
    masked = np.where(view.visible(), scores(view), -np.inf).astype(np.float32)
    v = view.v().astype(np.float32)
    row_max = np.full((*masked.shape[:-1], 1), np.float32(-np.inf))
    row_sum = np.zeros_like(row_max)
    acc = np.zeros((*masked.shape[:-1], v.shape[-1]), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for tile in tiles(masked.shape[-1], block, backwards=backwards):
            part = masked[..., tile]
            new_max = np.maximum(row_max, part.max(axis=-1, keepdims=True))
            shift = np.where(np.isneginf(new_max), np.float32(0), new_max)
            weights = np.exp(part - shift)
            rescale = np.exp(row_max - shift)
            acc = round_to(acc * rescale + round_to(weights, view.case.dtype) @ v[..., tile, :], acc_dtype)
            row_sum = round_to(row_sum * rescale + weights.sum(axis=-1, keepdims=True), sum_dtype)
            row_max = new_max
        o = acc / np.where(row_sum == 0, np.float32(1), row_sum)
    lse = row_max + log(row_sum)
    return o.astype(np.float64), lse[..., 0].astype(np.float64)


def _online_rounded_variants(acc: bool, row_sum: bool) -> tuple[Variant, ...]:
    return tuple(
        partial(
            _online_rounded,
            block=block,
            backwards=backwards,
            dtypes=(dtype if acc else "float32", dtype if row_sum else "float32"),
        )
        for dtype in LOW
        for block in BLOCKS
        for backwards in (False, True)
    )


def _counted_sum(view: RowView, dtype: str) -> Result:
    """The row sum added up one weight at a time in half precision: it stops growing at 2/ulp."""
    masked = np.where(view.visible(), scores(view), -np.inf)
    row_max = masked.max(axis=-1, keepdims=True)
    weights = np.exp(masked - np.where(np.isneginf(row_max), 0.0, row_max))
    total = np.zeros_like(row_max)
    for key in range(weights.shape[-1]):
        total = round_to(total + round_to(weights[..., key : key + 1], dtype), dtype)
    return divide(weights @ view.v(), total), (row_max + log(total))[..., 0]


def _rounded_partials(view: RowView, splits: int, block: int, dtype: str, divided: bool) -> Result:
    """Outputs of runs of keys stored in half precision and merged with the right weights.

    Args:
        divided: they are stored after the division by the run's own row sum.
    """
    width = -(-view.case.k_len // splits)
    width = -(-width // block) * block
    everything, shown, v = scores(view), view.visible(), view.v()
    outputs: list[Array] = []
    sums: list[Array] = []
    for part in tiles(view.case.k_len, width):
        o, lse = softmax_attention(everything[..., part], shown[..., part], v[:, part])
        masked = np.where(shown[..., part], everything[..., part], -np.inf)
        row_sum = np.ones_like(lse) if divided else np.exp(lse - masked.max(axis=-1))
        row_sum = np.where(np.isfinite(row_sum), row_sum, 1.0)[..., None]
        outputs.append(round_to(o * row_sum, dtype) / row_sum)
        sums.append(lse)
    stacked = np.stack(sums)
    top = stacked.max(axis=0)
    weights = np.exp(stacked - np.where(np.isneginf(top), 0.0, top))
    total = weights.sum(axis=0)
    o = np.sum([w[..., None] * part for w, part in zip(weights, outputs, strict=True)], axis=0)
    return o / np.where(total == 0.0, 1.0, total)[..., None], top + log(total)


def _tf32(view: RowView, truncate: bool, of_v: bool) -> Result:
    """Operands of the products cut to TF32's 10 mantissa bits."""
    cut = partial(round_mantissa, bits=TF32_BITS, truncate=truncate)
    raw = cut(view.q()) @ np.swapaxes(cut(view.k()), -1, -2)
    return _weights_times_v(view, raw, cut if of_v else None)


def _half_operands(view: RowView, dtype: str) -> Result:
    """Operands of the products rounded to half precision."""
    cut = partial(round_to, dtype=dtype)
    return _weights_times_v(view, cut(view.q()) @ np.swapaxes(cut(view.k()), -1, -2), cut)


def _weights_times_v(view: RowView, raw: Array, cut: partial[Array] | None) -> Result:
    masked = np.where(view.visible(), raw * view.case.softmax_scale, -np.inf)
    row_max = masked.max(axis=-1, keepdims=True)
    weights = np.exp(masked - np.where(np.isneginf(row_max), 0.0, row_max))
    row_sum = weights.sum(axis=-1, keepdims=True)
    product = weights @ view.v() if cut is None else cut(weights) @ cut(view.v())
    return product / np.where(row_sum == 0.0, 1.0, row_sum), (row_max + log(row_sum))[..., 0]


def _short(case: AttentionCase) -> bool:
    return case.k_len <= 1 << 14


def _float32(case: AttentionCase) -> bool:
    return case.dtype == "float32"


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "tf32",
        'Your output has TF32\'s precision: a float32 dot must be told to keep float32 (input_precision="ieee").',
        tuple(partial(_tf32, truncate=truncate, of_v=of_v) for truncate in (False, True) for of_v in (True, False)),
        _float32,
        noisy=True,
        # float16 operands have the same 10 bits; TF32 is the commoner cause.
        group="operands",
    ),
    Mistake(
        "float32-computed-in-half",
        "Your output has the precision of half-width operands although the inputs are float32.",
        tuple(partial(_half_operands, dtype=dtype) for dtype in LOW),
        _float32,
        noisy=True,
        group="operands",
    ),
    Mistake(
        "scores-low-precision",
        "Your output equals attention whose scores are rounded to half precision; keep S in float32.",
        tuple(
            partial(_rounded_scores, dtype=dtype, place=place) for dtype in LOW for place in ("raw", "scaled", "base-2")
        ),
        noisy=True,
    ),
    Mistake(
        "low-precision-accumulator",
        "Your output equals attention whose accumulator is kept in half precision; keep it in float32.",
        _online_rounded_variants(True, False),
        noisy=True,
        group="accumulator",
    ),
    Mistake(
        "low-precision-row-sum",
        "Your output equals attention whose row sum is kept in half precision; keep it in float32.",
        (
            *_online_rounded_variants(False, True),
            *(partial(_counted_sum, dtype=dtype) for dtype in LOW),
        ),
        _short,
        noisy=True,
    ),
    Mistake(
        "low-precision-state",
        "Your output equals attention whose accumulator and row sum are kept in half precision.",
        _online_rounded_variants(True, True),
        noisy=True,
        group="accumulator",
    ),
    Mistake(
        "split-partials-low-precision",
        "Your output equals partial results that are stored in half precision before they are merged.",
        tuple(
            partial(_rounded_partials, splits=splits, block=block, dtype=dtype, divided=divided)
            for divided in (True, False)
            for dtype in LOW
            for splits in (2, 3, 4, 5, 6, 7, 8)
            for block in (1, 64)
        ),
        noisy=True,
    ),
)

"""Right kernels of other kinds than the emulators: what the tolerance must accept.

The judge's own tests and `benchmarks/tolerance_study.py` hold the bounds to these; a grade never uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grader.judge.oracle import Result, RowView
from grader.judge.precision import LN_2, LOG2_E, Array, round_to


@dataclass(frozen=True)
class Recipe:
    """How a right kernel computes.

    Attributes:
        block_k: keys a tile.
        backwards: reads the keys from the end.
        lazy: rescales only when the base-2 maximum grows by more than this (FlashAttention-4 uses 8); 0 is always.
        splits: runs of keys computed apart and merged in float32.
        p_float32: P stays in float32 for P·V.
        base_e: exp of scaled scores instead of exp2.
        scaled_q: Q is multiplied by the scale in the working dtype beforehand.
        dot_chunk: head_dim elements added at a time in q·k; 0 leaves the order to the BLAS.
        exp_error: relative error of the exponential, uniform in ± this (a GPU's ex2.approx: 2^-22).
    """

    name: str
    block_k: int = 64
    backwards: bool = False
    lazy: float = 0.0
    splits: int = 1
    p_float32: bool = False
    base_e: bool = False
    scaled_q: bool = False
    dot_chunk: int = 0
    exp_error: float = 0.0


RECIPES = (
    Recipe("32 keys", 32),
    Recipe("48 keys", 48),
    Recipe("256 keys", 256),
    Recipe("64 keys, backwards", 64, backwards=True),
    Recipe("16 keys, backwards", 16, backwards=True),
    Recipe("lazy rescale", lazy=8.0),
    Recipe("lazy rescale, 128 keys, backwards", 128, backwards=True, lazy=8.0),
    Recipe("2 splits", splits=2),
    Recipe("7 splits of 16 keys", 16, splits=7),
    Recipe("P in float32", p_float32=True),
    Recipe("base e", base_e=True),
    Recipe("base e, 32 keys, backwards", 32, backwards=True, base_e=True),
    Recipe("Q scaled, base e", 128, base_e=True, scaled_q=True),
    Recipe("Q scaled, 32 keys", 32, scaled_q=True),
    Recipe("dot by 16, exp2 approximate", dot_chunk=16, exp_error=2.0**-22),
    Recipe("dot by 8, 128 keys, exp2 approximate, backwards", 128, backwards=True, dot_chunk=8, exp_error=2.0**-22),
    Recipe("lazy rescale, exp2 approximate, 128 keys", 128, lazy=8.0, dot_chunk=16, exp_error=2.0**-22),
)


def _dot(q: Array, k: Array, chunk: int) -> Array:
    """q · kᵀ in float32, adding `chunk` elements of head_dim at a time."""
    kt = np.swapaxes(k, -1, -2)
    if not chunk:
        return q @ kt
    total = np.zeros((*q.shape[:-1], k.shape[-2]), dtype=np.float32)
    for start in range(0, q.shape[-1], chunk):
        total = total + q[..., start : start + chunk] @ kt[..., start : start + chunk, :]
    return total


def _scores(view: RowView, recipe: Recipe) -> Array:
    case = view.case
    factor = case.softmax_scale if recipe.base_e else case.softmax_scale * LOG2_E
    k = view.k().astype(np.float32)
    if recipe.scaled_q:
        scaled = _dot(round_to(view.q() * factor, case.dtype).astype(np.float32), k, recipe.dot_chunk)
    else:
        scaled = _dot(view.q().astype(np.float32), k, recipe.dot_chunk) * np.float32(factor)
    return np.where(view.visible(), scaled, np.float32(-np.inf))


def _run(scores: Array, v: Array, recipe: Recipe, dtype: str, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """(acc, row_max, row_sum) over one run of keys, all float32."""
    exp = np.exp if recipe.base_e else np.exp2
    row_max = np.full((*scores.shape[:-1], 1), -np.inf, dtype=np.float32)
    row_sum = np.zeros_like(row_max)
    acc = np.zeros((*scores.shape[:-1], v.shape[-1]), dtype=np.float32)
    starts = range(0, scores.shape[-1], recipe.block_k)
    for start in reversed(starts) if recipe.backwards else starts:
        tile = scores[..., start : start + recipe.block_k]
        new_max = np.maximum(row_max, tile.max(axis=-1, keepdims=True))
        if recipe.lazy:
            with np.errstate(invalid="ignore"):  # -inf - -inf, while no key has been seen
                new_max = np.where(new_max - row_max > recipe.lazy, new_max, row_max)
        shift = np.where(np.isneginf(new_max), np.float32(0), new_max)
        weights = exp(tile - shift)
        if recipe.exp_error:
            noise = rng.uniform(-recipe.exp_error, recipe.exp_error, weights.shape)
            weights = (weights * (1.0 + noise)).astype(np.float32)
        rescale = exp(row_max - shift)
        row_sum = row_sum * rescale + weights.sum(axis=-1, keepdims=True)
        rounded = weights if recipe.p_float32 else round_to(weights, dtype)
        acc = acc * rescale + rounded @ v[..., start : start + recipe.block_k, :]
        row_max = new_max
    return acc, row_max, row_sum


def compute(view: RowView, recipe: Recipe, rng: np.random.Generator) -> Result:
    """(O, LSE) that a kernel of this recipe gives on a view; `rng` draws the exponential's error."""
    scores, v = _scores(view, recipe), view.v().astype(np.float32)
    dtype, keys = view.case.dtype, view.case.k_len
    width = -(-keys // recipe.splits)
    exp = np.exp if recipe.base_e else np.exp2
    runs = [
        _run(scores[..., start : start + width], v[..., start : start + width, :], recipe, dtype, rng)
        for start in range(0, keys, width)
    ]
    top = np.maximum.reduce([row_max for _, row_max, _ in runs])
    shift = np.where(np.isneginf(top), np.float32(0), top)
    weights = [exp(row_max - shift) for _, row_max, _ in runs]
    acc = np.add.reduce([w * acc for w, (acc, _, _) in zip(weights, runs, strict=True)])
    row_sum = np.add.reduce([w * total for w, (_, _, total) in zip(weights, runs, strict=True)])
    o = acc / np.where(row_sum == 0, np.float32(1), row_sum)
    with np.errstate(divide="ignore"):
        lse = top + np.log(row_sum) if recipe.base_e else (top + np.log2(row_sum)) * np.float32(LN_2)
    return round_to(o, dtype).astype(np.float64), lse[..., 0].astype(np.float64)

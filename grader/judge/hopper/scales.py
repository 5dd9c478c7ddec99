"""Holds the scales of lab09's quantisers, of a tensor and of blocks of rows, to amax / 448."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.hopper import e4m3
from grader.judge.hopper.codes import Guess, judge_codes
from grader.judge.hopper.e4m3 import Array, Codes
from grader.judge.softmax.mistakes import expect_arrays
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

SCALE_RTOL = 1e-6
TINY = float(np.finfo(np.float32).tiny)
"""A scale below float32's smallest normal number divides badly: it's 1 instead, and all codes are zero."""


def scale_of(amax: Array | float) -> Array:
    """amax / 448 in float32; 1 where that is no normal number."""
    scale = (np.asarray(amax, dtype=np.float64) / e4m3.LARGEST).astype(np.float32)
    return np.where(scale < TINY, np.float32(1), scale).astype(np.float32)


def blocks_of(rows: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, rows)) for start in range(0, rows, block)]


def block_amax(x: Array, block: int) -> Array:
    """Largest magnitude of each block of rows: (..., rows, d) → (..., blocks)."""
    parts = [np.abs(x[..., rows, :]).max(axis=(-2, -1)) for rows in blocks_of(x.shape[-2], block)]
    return np.stack(parts, axis=-1)


def spread(scales: Array, rows: int, block: int) -> Array:
    """Each row's scale, to be broadcast: (..., blocks) → (..., rows, 1)."""
    return np.repeat(scales, block, axis=-1)[..., :rows, None]


def judge_per_tensor(judge: Judge, x: Array, result: object, what: str) -> None:
    """Hold (codes, scale) of `quantize_per_tensor`: the scale to amax / 448, the codes to that scale."""
    codes, scale = _pair(judge, result, x.shape, (), what)
    right = scale_of(np.abs(x).max())
    wide = x.astype(np.float64)
    others = [wide.max(), np.abs(wide[..., 0]).max(), np.abs(wide).mean(), wide.std()]
    guesses = scale_guesses(np.abs(x).max(), others)
    _judge_scales(judge, scale, right, guesses, what)
    judge_codes(judge, x, float(right), codes, what)


def judge_per_block(judge: Judge, x: Array, block: int, result: object, what: str) -> None:
    """Hold (codes, scales) of `quantize_per_block`: a scale for each block of rows of each leading index."""
    rows = x.shape[-2]
    amax = block_amax(x, block)
    codes, scales = _pair(judge, result, x.shape, amax.shape, what)
    right = scale_of(amax)
    _judge_scales(judge, scales, right, [*_block_guesses(x, block), *scale_guesses(amax, [])], what)
    judge_codes(judge, x, spread(right, rows, block), codes, what)


def _block_guesses(x: Array, block: int) -> list[Guess]:
    """Scales of other blocks than those asked for."""
    rows, shape = x.shape[-2], block_amax(x, block).shape
    starts = [part.start for part in blocks_of(rows, block)]
    row_amax = np.abs(x).max(axis=-1)

    def columns() -> list[Array]:
        per_column = np.abs(x).max(axis=-2)
        parts = [per_column[..., part].max(axis=-1) for part in blocks_of(x.shape[-1], block)]
        wide = np.stack(parts, axis=-1)
        return [scale_of(np.resize(wide, (*wide.shape[:-1], shape[-1])))] if wide.shape[-1] else []

    def shared() -> list[Array]:
        flat = block_amax(x, block).reshape(-1, shape[-1]).max(axis=0)
        return [np.broadcast_to(scale_of(flat), shape)]

    def last() -> list[Array]:
        whole = block_amax(x, block).copy()
        whole[..., -1] = whole[..., -2] if shape[-1] > 1 else 0
        return [scale_of(whole), np.concatenate([scale_of(whole)[..., :-1], np.ones((*shape[:-1], 1))], axis=-1)]

    return [
        (
            "fp8-scale-of-one-row",
            "A block's scale is that of one of its rows, not of all.",
            lambda: [scale_of(row_amax[..., starts]), scale_of(row_amax[..., : shape[-1]])],
        ),
        (
            "fp8-scale-of-tensor",
            "Every block has the scale of the whole tensor.",
            lambda: [np.broadcast_to(scale_of(np.abs(x).max()), shape)],
        ),
        ("fp8-blocks-of-columns", "The blocks run over columns; they are blocks of rows.", columns),
        ("fp8-scale-over-heads", "A block's scale was taken over all leading indices.", shared),
        ("fp8-tail-scale", "The ragged last block has another block's scale, or none.", last),
    ]


def scale_guesses(amax: Array | float, others: Sequence[Array | float]) -> list[Guess]:
    """Scales from a rule that isn't amax / 448."""
    largest = np.asarray(amax, dtype=np.float64)
    with np.errstate(all="ignore"):
        inverse = e4m3.LARGEST / largest
    return [
        (
            "fp8-scale-zero",
            "A block without a number that counts has the scale 0, by which nothing can be divided.",
            lambda: [(largest / e4m3.LARGEST).astype(np.float32)],
        ),
        ("fp8-scale-240", "The scale is amax / 240; the largest number here is 448.", lambda: [largest / 240]),
        ("fp8-scale-inverted", "The scale is 448 / amax, its inverse.", lambda: [inverse]),
        ("fp8-scale-is-amax", "The scale is amax, without the division by 448.", lambda: [largest]),
        (
            "fp8-scale-power-of-two",
            "The scale is a power of two.",
            lambda: [2.0 ** np.ceil(np.log2(largest / e4m3.LARGEST)), 2.0 ** np.round(np.log2(largest / e4m3.LARGEST))],
        ),
        (
            "fp8-scale-statistic",
            "The scale comes from the largest signed value, a mean or a part of the tensor.",
            lambda: [np.asarray(other, dtype=np.float64) / e4m3.LARGEST for other in others],
        ),
    ]


def _judge_scales(judge: Judge, got: Array, right: Array, guesses: Sequence[Guess], what: str) -> None:
    off = ~np.isclose(got, right, rtol=SCALE_RTOL, atol=0)
    if not off.any():
        return
    found = None
    with np.errstate(all="ignore"):
        for name, text, results in guesses:
            if found is None and any(
                guess.shape == got.shape and np.allclose(got, guess, rtol=SCALE_RTOL, atol=0, equal_nan=True)
                for guess in map(np.asarray, results())
            ):
                found = Diagnosis(id=name, text=text)
    judge.fail(f"{what}: {int(off.sum())} of {max(right.size, 1)} scales are wrong.", diagnosis=found)


def _pair(
    judge: Judge, result: object, shape: tuple[int, ...], scales: tuple[int, ...], what: str
) -> tuple[Codes, Array]:
    """Codes and scale(s), float64; ends the check with `contract` when they are of another kind."""
    if isinstance(result, (tuple, list)) and len(result) == 2 and scales == () and _is_number(result[1]):
        result = (result[0], np.asarray(result[1], dtype=np.float32).reshape(()))
    codes, scale = expect_arrays(
        judge, result, ("codes", "scale" if scales == () else "scales"), [shape, scales], _CODES_AND_SCALES, what
    )
    return codes, scale.astype(np.float64)


_CODES_AND_SCALES = (np.dtype(np.uint8), np.dtype(np.float32))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)

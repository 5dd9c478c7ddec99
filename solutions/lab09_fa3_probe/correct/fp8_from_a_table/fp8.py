"""FP8 attention in NumPy: codes from a table, the Hadamard matrix written out, a running maximum over key blocks."""

from __future__ import annotations

import math

import numpy as np

_STEPS = np.arange(127)
_FIELD, _MANTISSA = _STEPS >> 3, _STEPS & 7
TABLE = np.where(_FIELD == 0, _MANTISSA * 2.0**-9, (8 + _MANTISSA) * 2.0 ** (_FIELD - 10.0))
"""The 127 finite values that aren't negative; code = place."""
MIDDLES = (TABLE[:-1] + TABLE[1:]) / 2


def quantize_e4m3(x: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    y = x.astype(np.float64) / np.asarray(scale, dtype=np.float64)
    size = np.abs(np.nan_to_num(y, nan=0.0, posinf=448.0, neginf=448.0))
    place = np.searchsorted(MIDDLES, size)  # a tie stays at the lower neighbour
    tie = (place < 126) & (MIDDLES[np.minimum(place, 125)] == size)
    place = place + (tie & (place % 2 == 1))  # which is left where its mantissa is odd
    place = np.where(np.isnan(y), 0x7F, place)
    return (place + 128 * np.signbit(y)).astype(np.uint8)


def dequantize(codes: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    finite = np.append(TABLE, np.nan)
    values = np.concatenate([finite, -finite]).astype(np.float32)
    return values[codes] * np.asarray(scale, dtype=np.float32)


def _scales(amax: np.ndarray) -> np.ndarray:
    scales = (amax.astype(np.float64) / 448).astype(np.float32)
    scales[scales < 2.0**-126] = 1
    return scales


def quantize_per_tensor(x: np.ndarray) -> tuple[np.ndarray, np.float32]:
    scale = _scales(np.abs(x).reshape(1, -1).max(axis=1))[0]
    return quantize_e4m3(x, scale), scale


def _in_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """(..., rows, d) -> (..., blocks, block * d), with zeros in the place of the rows that lack."""
    *lead, rows, d = x.shape
    lacking = -rows % block
    padded = np.concatenate([x, np.zeros((*lead, lacking, d), x.dtype)], axis=-2)
    return padded.reshape(*lead, (rows + lacking) // block, block * d)


def quantize_per_block(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = _in_blocks(x, block)
    scales = _scales(np.abs(blocks).max(axis=-1))
    codes = quantize_e4m3(blocks, scales[..., None])
    return codes.reshape(*x.shape[:-2], -1, x.shape[-1])[..., : x.shape[-2], :].copy(), scales


def hadamard(x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    d = x.shape[-1]
    parity = np.array([[bin(row & column).count("1") & 1 for column in range(d)] for row in range(d)])
    matrix = (1.0 - 2.0 * parity) / math.sqrt(d)
    return (x @ (signs[:, None] * matrix)).astype(np.float32)


def _rounded(x: np.ndarray, block: int | None) -> np.ndarray:
    block = x.shape[0] if block is None else block
    codes, scales = quantize_per_block(x, block)
    return np.concatenate([dequantize(codes[at * block : (at + 1) * block], scale) for at, scale in enumerate(scales)])


def fp8_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    block: int | None = None,
    signs: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    if signs is not None:
        q, k = hadamard(q, signs), hadamard(k, signs)
    q, k, v = _rounded(q, block), _rounded(k, block), _rounded(v, block)
    factor = q.shape[1] ** -0.5 if scale is None else scale
    row_max = np.full((q.shape[0], 1), -np.inf, np.float32)
    row_sum = np.zeros((q.shape[0], 1), np.float32)
    output = np.zeros((q.shape[0], v.shape[1]), np.float32)
    tile = k.shape[0] if block is None else block
    for start in range(0, k.shape[0], tile):
        scores = q @ k[start : start + tile].T * np.float32(factor)
        new_max = np.maximum(row_max, scores.max(axis=1, keepdims=True))
        rescale, weights = np.exp(row_max - new_max), np.exp(scores - new_max)
        narrow = dequantize(quantize_e4m3(weights * np.float32(256), 1.0), 2.0**-8)
        row_sum = row_sum * rescale + weights.sum(axis=1, keepdims=True)
        output = output * rescale + narrow @ v[start : start + tile]
        row_max = new_max
    return output / row_sum


# kept-from-students-6bc9daa2c8c9aaea

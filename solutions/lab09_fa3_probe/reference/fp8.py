"""FP8 attention in NumPy: the e4m3 format bit by bit, scales a tensor and a block, incoherent processing.

Arrays are float32 and codes uint8 unless a docstring says otherwise. A code is sign, 4 bits of exponent (bias 7) and 3
bits of mantissa; there are no infinities, and 0x7F and 0xFF are NaN.
"""

from __future__ import annotations

import numpy as np

E4M3_MAX = 448.0  # 1.75 * 2**8: the mantissa 111 of the top exponent is NaN
EXPONENT_BIAS = 7
MANTISSA_BITS = 3
NAN_CODE = 0x7F
P_SCALE = 2.0**-8  # exact, and 256 is the largest power of two below E4M3_MAX


def quantize_e4m3(x: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Codes of x / scale: round to nearest, ties to even, saturate at ±448; NaN stays NaN.

    Args:
        x: any shape. scale: positive; a number, or an array that broadcasts against x.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: codes of x / scale")
    y = np.asarray(x, dtype=np.float32) / np.asarray(scale, dtype=np.float32)
    size = np.minimum(np.abs(y), np.float32(E4M3_MAX))
    # size = m * 2**(exponent + 1) with m in [0.5, 1); zero and the subnormals share the smallest normal exponent.
    exponent = np.frexp(np.maximum(size, np.float32(2.0 ** (1 - EXPONENT_BIAS))))[1] - 1
    with np.errstate(invalid="ignore"):
        # In steps of the last mantissa bit; rint rounds ties to even, and the product by a power of two is exact.
        steps = np.rint(np.ldexp(size, MANTISSA_BITS - exponent))
        steps = np.where(np.isnan(y), 0, steps).astype(np.int32)
    # 8 to 16 steps are a normal number; 16 carries into the exponent by itself, 0 to 7 are subnormal.
    codes = ((exponent + EXPONENT_BIAS - 1) << MANTISSA_BITS) + steps
    codes = np.where(np.isnan(y), NAN_CODE, codes) | (np.signbit(y).astype(np.int32) << 7)
    return codes.astype(np.uint8)
    # END SOLUTION


def dequantize(codes: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Values of codes, times the scale; float32."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: values of codes, times the scale")
    codes = codes.astype(np.int32)
    field, mantissa = (codes >> MANTISSA_BITS) & 0xF, codes & 0x7
    steps = np.where(field == 0, mantissa, mantissa + 8).astype(np.float32)
    values = np.ldexp(steps, np.maximum(field, 1) - EXPONENT_BIAS - MANTISSA_BITS)
    values = np.where((codes & NAN_CODE) == NAN_CODE, np.float32(np.nan), values)
    return np.where(codes & 0x80, -values, values) * np.asarray(scale, dtype=np.float32)
    # END SOLUTION


def scale_for(amax: np.ndarray | float) -> np.ndarray:
    """amax / 448 in float32; 1 where that is below float32's smallest normal number, as for a block of zeros."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: the scale for a largest magnitude")
    scale = np.asarray(amax, dtype=np.float32) / np.float32(E4M3_MAX)
    return np.where(scale < np.finfo(np.float32).tiny, np.float32(1), scale)
    # END SOLUTION


def quantize_per_tensor(x: np.ndarray) -> tuple[np.ndarray, float]:
    """(codes, scale) with one scale for all of x."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: one scale for all of x")
    scale = float(scale_for(np.abs(x).max()))
    return quantize_e4m3(x, scale), scale
    # END SOLUTION


def quantize_per_block(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) with a scale for every `block` rows of every leading index.

    Args:
        x: (..., rows, d); the last block may be short.

    Returns:
        codes (..., rows, d); scales (..., ceil(rows / block)) float32.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: a scale for every block of rows")
    rows = x.shape[-2]
    row_amax = np.abs(x).max(axis=-1)
    scales = scale_for(np.maximum.reduceat(row_amax, np.arange(0, rows, block), axis=-1))
    return quantize_e4m3(x, row_scales(scales, rows, block)), scales
    # END SOLUTION


def row_scales(scales: np.ndarray, rows: int, block: int) -> np.ndarray:
    """The scale of each row, to be multiplied with the rows: (..., blocks) -> (..., rows, 1)."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: the scale of each row")
    return np.repeat(scales, block, axis=-1)[..., :rows, None]
    # END SOLUTION


def hadamard(x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Incoherent processing: x · diag(signs) · H / sqrt(d), H the Hadamard matrix in Sylvester's order; float32.

    Args:
        x: (..., d), d a power of two. signs: (d,) of ±1.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: signs, butterflies, 1/sqrt(d)")
    d = x.shape[-1]
    turned = np.asarray(x * signs, dtype=np.float32)
    half = 1
    while half < d:  # H of order 2h is [[H, H], [H, -H]]: sums and differences of neighbours h apart
        pairs = turned.reshape(*x.shape[:-1], d // (2 * half), 2, half)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        turned = np.stack((low + high, low - high), axis=-2).reshape(x.shape)
        half *= 2
    return turned / np.float32(np.sqrt(d))
    # END SOLUTION


def fp8_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    block: int | None = None,
    signs: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """Attention of one head with Q, K, V and P in e4m3, everything else in float32.

    Args:
        q: (Sq, d). k, v: (Sk, d). block: rows a scale, of each of Q, K and V; None for one scale a tensor.
        signs: (d,) of ±1, by which Q and K are rotated first; None for no rotation. scale: 1/sqrt(d) by default.

    Returns:
        O, (Sq, d) float32.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: rotate Q and K, round Q, K, V, softmax, round P, divide")
    if signs is not None:
        q, k = hadamard(q, signs), hadamard(k, signs)
    q8, k8, v8 = (round_trip(x, block) for x in (q, k, v))
    factor = 1 / np.sqrt(q.shape[1]) if scale is None else scale
    scores = (q8 @ k8.T) * np.float32(factor)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    row_sum = weights.sum(axis=1, keepdims=True)  # of P before it's rounded, as FA3's softmax sums it
    p8 = dequantize(quantize_e4m3(weights, P_SCALE), P_SCALE)
    return (p8 @ v8) / row_sum
    # END SOLUTION


def round_trip(x: np.ndarray, block: int | None) -> np.ndarray:
    """x in e4m3 and back: what the tensor cores multiply."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: quantise and dequantise")
    if block is None:
        codes, scale = quantize_per_tensor(x)
        return dequantize(codes, scale)
    codes, scales = quantize_per_block(x, block)
    return dequantize(codes, row_scales(scales, x.shape[-2], block))
    # END SOLUTION


# kept-from-students-721baf52ad78aaed

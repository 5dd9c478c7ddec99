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
    raise NotImplementedError("TODO: codes of x / scale")


def dequantize(codes: np.ndarray, scale: float | np.ndarray) -> np.ndarray:
    """Values of codes, times the scale; float32."""
    raise NotImplementedError("TODO: values of codes, times the scale")


def scale_for(amax: np.ndarray | float) -> np.ndarray:
    """amax / 448 in float32; 1 where that is below float32's smallest normal number, as for a block of zeros."""
    raise NotImplementedError("TODO: the scale for a largest magnitude")


def quantize_per_tensor(x: np.ndarray) -> tuple[np.ndarray, float]:
    """(codes, scale) with one scale for all of x."""
    raise NotImplementedError("TODO: one scale for all of x")


def quantize_per_block(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) with a scale for every `block` rows of every leading index.

    Args:
        x: (..., rows, d); the last block may be short.

    Returns:
        codes (..., rows, d); scales (..., ceil(rows / block)) float32.
    """
    raise NotImplementedError("TODO: a scale for every block of rows")


def row_scales(scales: np.ndarray, rows: int, block: int) -> np.ndarray:
    """The scale of each row, to be multiplied with the rows: (..., blocks) -> (..., rows, 1)."""
    raise NotImplementedError("TODO: the scale of each row")


def hadamard(x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Incoherent processing: x · diag(signs) · H / sqrt(d), H the Hadamard matrix in Sylvester's order; float32.

    Args:
        x: (..., d), d a power of two. signs: (d,) of ±1.
    """
    raise NotImplementedError("TODO: signs, butterflies, 1/sqrt(d)")


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
    raise NotImplementedError("TODO: rotate Q and K, round Q, K, V, softmax, round P, divide")


def round_trip(x: np.ndarray, block: int | None) -> np.ndarray:
    """x in e4m3 and back: what the tensor cores multiply."""
    raise NotImplementedError("TODO: quantise and dequantise")

"""The 8-bit floating-point format e4m3 (no infinities, one NaN a sign), exactly; and how others round into it.

Format: sign, 4 bits of exponent with bias 7, 3 bits of mantissa; 448 = 1.75 * 2**8 is the largest number, 2**-6 the
smallest normal one, 2**-9 the smallest of all. Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning",
table 1; `ml_dtypes.float8_e4m3fn` is that format.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Codes = NDArray[np.uint8]

LARGEST = 448.0
NAN_CODES = (0x7F, 0xFF)
VALUES: Array = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""Code → value."""
POSITIVE: Array = VALUES[:127]
"""The finite numbers that aren't negative, rising; their codes are their places."""


def encode(x: Array) -> Codes:
    """Codes of `x`: nearest, ties to even, beyond ±448 (infinities too) to ±448, NaN to NaN."""
    with np.errstate(invalid="ignore"):
        limited = np.clip(x.astype(np.float32), -LARGEST, LARGEST)
    return np.asarray(limited.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def decode(codes: Codes) -> Array:
    return np.asarray(VALUES[codes])


def rounded(x: Array) -> Array:
    """`x` in float32, rounded to e4m3."""
    return decode(encode(x))


def same(a: Codes, b: Codes) -> NDArray[np.bool_]:
    """Where two arrays of codes mean the same; any NaN equals any other, +0 and -0 differ."""
    return np.asarray((a == b) | (np.isin(a, NAN_CODES) & np.isin(b, NAN_CODES)))


# What other rules would have given


def _signed(x: Array, places: NDArray[np.intp]) -> Codes:
    codes = places.astype(np.uint8) | (np.signbit(x).astype(np.uint8) << 7)
    return np.asarray(np.where(np.isnan(x), np.uint8(0x7F), codes), dtype=np.uint8)


def _places(x: Array, side: str) -> NDArray[np.intp]:
    size = np.where(np.isnan(x), 0, np.minimum(np.abs(x.astype(np.float64)), LARGEST))
    if side == "down":
        return np.searchsorted(POSITIVE, size, side="right") - 1
    middles = (POSITIVE[:-1].astype(np.float64) + POSITIVE[1:]) / 2
    return np.searchsorted(middles, size, side="right")


def half_away(x: Array) -> Codes:
    """Ties go away from zero."""
    return _signed(x, _places(x, "nearest"))


def half_down(x: Array) -> Codes:
    """Ties go towards zero."""
    size = np.where(np.isnan(x), 0, np.minimum(np.abs(x.astype(np.float64)), LARGEST))
    middles = (POSITIVE[:-1].astype(np.float64) + POSITIVE[1:]) / 2
    return _signed(x, np.searchsorted(middles, size, side="left"))


def truncated(x: Array) -> Codes:
    """Everything is rounded towards zero."""
    return _signed(x, _places(x, "down"))


def unsaturated(x: Array) -> Codes:
    """What rounds beyond 448 becomes NaN, as a plain conversion has it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def limited_to(x: Array, largest: float) -> Codes:
    """Saturated at another number than 448."""
    return encode(np.clip(x, -largest, largest))


def flushed(x: Array) -> Codes:
    """Without subnormals: what is nearer to them than to 2**-6 becomes zero."""
    codes = encode(x)
    return np.asarray(np.where((codes & 0x7F) < 8, codes & 0x80, codes), dtype=np.uint8)


def in_e5m2(x: Array) -> Codes:
    """Codes of the other 8-bit format, e5m2."""
    with np.errstate(invalid="ignore"):
        limited = np.clip(x.astype(np.float32), -57344, 57344)
    return np.asarray(limited.astype(ml_dtypes.float8_e5m2).view(np.uint8))


def twice(x: Array) -> Codes:
    """By way of float16, so that what float16 rounds onto a tie is rounded again."""
    with np.errstate(over="ignore"):
        return encode(x.astype(np.float16).astype(np.float32))

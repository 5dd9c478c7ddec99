"""Working dtypes of the course by name: how wide they are, and how a float64 array is rounded to them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from grader.errors import CourseError

Array = NDArray[Any]
"""An array of any dtype; float64 unless a docstring says otherwise."""

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453

_DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

ULP: dict[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""Distance from 1 to the next value; one rounding is at most half of it, relatively."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype called `name` (``bfloat16`` is ml_dtypes').

    Raises:
        CourseError: no working dtype is called that.
    """
    try:
        return _DTYPES[name]
    except KeyError:
        raise CourseError(f"Unknown dtype {name!r}; expected one of {', '.join(_DTYPES)}.") from None


def round_to(values: Array, dtype: str) -> Array:
    """`values` rounded to nearest-even in `dtype`, returned in the precision they came in (overflow gives inf)."""
    target = numpy_dtype(dtype)
    if values.dtype == target:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(target).astype(values.dtype)


def round_mantissa(values: Array, bits: int, *, truncate: bool = False) -> Array:
    """float32 `values` with `bits` explicit mantissa bits kept (10 is TF32), to nearest or towards zero, as float64."""
    raw = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    drop = np.uint32(23 - bits)
    half = np.uint32(0) if truncate else np.uint32(1) << (drop - np.uint32(1))
    kept = ((raw + half) >> drop) << drop
    return kept.view(np.float32).astype(np.float64)

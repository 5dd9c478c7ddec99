"""The butterfly from the inside out: neighbours first, halves last."""

from __future__ import annotations

from typing import Any

import numpy as np


def identity(op: str) -> float:
    return {"sum": 0.0, "max": float("-inf")}[op]


def warp_reduce(warp: Any, values: np.ndarray, op: str, count: int = 32, width: int = 32) -> np.ndarray:
    result = values.copy()
    result[count:] = identity(op)
    offset = 1
    while offset < width:
        other = warp.shfl_xor(0xFFFFFFFF, result, offset)
        result = result + other if op == "sum" else np.fmax(result, other)
        offset *= 2
    return result


# kept-from-students-6c944953446255af

"""Helpers of the inspection cases that live in a file of their own and clash by name with the other file's."""

from __future__ import annotations

import triton
import triton.language as tl

FACTOR = tl.constexpr(3.0)
RATE = 7.0


@triton.jit
def scaled(x):
    return x * FACTOR

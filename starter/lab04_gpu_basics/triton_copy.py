"""The two copies in Triton: a program owns a block of elements, and the compiler chooses which thread loads what.

float32, one dimension, contiguous. Both are bandwidth and nothing else: no arithmetic, no rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Elements a program: 8 for each of the 128 threads of 4 warps, two 16-byte loads."""


@triton.jit
def _copy_kernel(src, dst, n, BLOCK: tl.constexpr):
    """dst[i] = src[i] for i < n."""
    # TODO: the program's elements, which of them are inside, one load, one store


@triton.jit
def _strided_kernel(src, dst, n, stride, BLOCK: tl.constexpr):
    """dst[i] = src[i * stride] for i < n."""
    # TODO: the same with another place to load from


def copy(x: torch.Tensor) -> torch.Tensor:
    """A new tensor equal to `x`: (n,) float32, n >= 1. Every element is loaded once and stored once."""
    raise NotImplementedError("TODO: an empty tensor, and a launch with enough programs of BLOCK elements")


def strided_copy(x: torch.Tensor, stride: int) -> torch.Tensor:
    """A new tensor of every stride-th element of `x`, the first one first: ⌈n / stride⌉ elements."""
    raise NotImplementedError("TODO: the same for fewer elements")

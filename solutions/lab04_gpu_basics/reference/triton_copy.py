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
    # BEGIN SOLUTION
    # STARTER: # TODO: the program's elements, which of them are inside, one load, one store
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
    # The mask keeps the tail out; where n is a multiple of 16 the compiler sees that it never cuts a vector.
    inside = i < n
    tl.store(dst + i, tl.load(src + i, mask=inside), mask=inside)
    # END SOLUTION


@triton.jit
def _strided_kernel(src, dst, n, stride, BLOCK: tl.constexpr):
    """dst[i] = src[i * stride] for i < n."""
    # BEGIN SOLUTION
    # STARTER: # TODO: the same with another place to load from
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # (BLOCK,)
    inside = i < n
    tl.store(dst + i, tl.load(src + i * stride, mask=inside), mask=inside)
    # END SOLUTION


def copy(x: torch.Tensor) -> torch.Tensor:
    """A new tensor equal to `x`: (n,) float32, n >= 1. Every element is loaded once and stored once."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: an empty tensor, and a launch with enough programs of BLOCK elements")
    out = torch.empty_like(x)
    n = x.numel()
    _copy_kernel[(triton.cdiv(n, BLOCK),)](x, out, n, BLOCK=BLOCK)
    return out
    # END SOLUTION


def strided_copy(x: torch.Tensor, stride: int) -> torch.Tensor:
    """A new tensor of every stride-th element of `x`, the first one first: ⌈n / stride⌉ elements."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: the same for fewer elements")
    n = triton.cdiv(x.numel(), stride)
    out = torch.empty(n, dtype=x.dtype, device=x.device)
    _strided_kernel[(triton.cdiv(n, BLOCK),)](x, out, n, stride, BLOCK=BLOCK)
    return out
    # END SOLUTION


# kept-from-students-7effaede902d9f33

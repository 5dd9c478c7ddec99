"""The copies with programs that loop over the grid, two vectors a thread and turn."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

PROGRAMS = 8


@triton.jit
def _kernel(dst, src, n, stride: tl.constexpr, BLOCK: tl.constexpr):
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, n, step):
        i = start + tl.arange(0, BLOCK)
        values = tl.load(src + i * stride, mask=i < n, other=0.0)
        tl.store(dst + i, values, mask=i < n)


def _run(x: torch.Tensor, stride: int) -> torch.Tensor:
    out = x.new_empty((x.shape[0] + stride - 1) // stride)
    _kernel[(min(PROGRAMS, triton.cdiv(out.numel(), 2048)),)](out, x, out.numel(), stride, BLOCK=2048, num_warps=8)
    return out


def copy(x: torch.Tensor) -> torch.Tensor:
    return _run(x, 1)


def strided_copy(x: torch.Tensor, stride: int) -> torch.Tensor:
    return _run(x, stride)


# kept-from-students-3d7b9112ded08a02

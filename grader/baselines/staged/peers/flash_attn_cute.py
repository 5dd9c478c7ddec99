"""flash-attn-4: FlashAttention in the CuTe DSL, with kernels of their own for Hopper and Blackwell."""

from __future__ import annotations

import torch
from flash_attn.cute import flash_attn_func, flash_attn_varlen_func

from .sdpa import Tensor, contiguous


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    rows = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return flash_attn_func(*rows, causal=causal, softmax_scale=scale)[0].transpose(1, 2)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    # 0 splits: as many as its own heuristic takes.
    k, v = (contiguous(cache, q.shape[0]) for cache in (k_cache, v_cache))
    return flash_attn_func(q[:, None], k, v, softmax_scale=scale, num_splits=0)[0][:, 0]


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    return flash_attn_varlen_func(
        q[:, None],
        k_cache,
        v_cache,
        seqused_k=context_lens.to(torch.int32),
        page_table=block_table.to(torch.int32),
        softmax_scale=scale,
        num_splits=0,
    )[0][:, 0]

"""The flash-attn package, FlashAttention-2 in CUDA."""

from __future__ import annotations

import torch
from flash_attn import flash_attn_func, flash_attn_with_kvcache

from .sdpa import Tensor, contiguous


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    rows = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return flash_attn_func(*rows, causal=causal, softmax_scale=scale).transpose(1, 2)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    k, v = (contiguous(cache, q.shape[0]) for cache in (k_cache, v_cache))
    return flash_attn_with_kvcache(q[:, None], k, v, softmax_scale=scale)[:, 0]


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    return flash_attn_with_kvcache(
        q[:, None],
        k_cache,
        v_cache,
        cache_seqlens=context_lens.to(torch.int32),
        block_table=block_table.to(torch.int32),
        softmax_scale=scale,
    )[:, 0]

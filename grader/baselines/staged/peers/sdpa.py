"""Attention through `torch.nn.functional.scaled_dot_product_attention`, held to one of its backends."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import sdpa_kernel

Tensor = Any


def attention(backend: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """O of (batch, heads, seqlen, head_dim) tensors.

    Raises:
        ValueError: a causal mask over unequal lengths, which PyTorch's flag aligns top-left and this course
            bottom-right. RuntimeError: the backend doesn't take these tensors.
    """
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(f"a causal mask over {q.shape[2]} queries and {k.shape[2]} keys: SDPA aligns it top-left")
    grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
        )


def contiguous(cache: Tensor, batch: int) -> Tensor:
    """A cache (pages, page_size, kv_heads, head_dim) as (batch, length, kv_heads, head_dim), without a copy."""
    return cache.view(batch, -1, *cache.shape[2:])


def one_row(backend: Any, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float | None) -> Tensor:
    """A decode step over caches whose pages are in a row; q and O (batch, q_heads, head_dim)."""
    k, v = (contiguous(cache, q.shape[0]).transpose(1, 2) for cache in (k_cache, v_cache))
    return attention(backend, q[:, :, None], k, v, False, scale)[:, :, 0]

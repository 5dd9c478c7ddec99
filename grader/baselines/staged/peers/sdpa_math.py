"""PyTorch's SDPA, its math backend: scores and weights in memory. Takes any dtype, anywhere."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .sdpa import Tensor, attention, one_row


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    rows, keys = q.shape[2], k.shape[2]
    if not causal or rows == keys:
        return attention(SDPBackend.MATH, q, k, v, causal, scale)
    # Bottom-right, as this course aligns it; rows above the first key see nothing and give 0 (PyTorch: NaN).
    seen = torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)
    grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)
    return o.masked_fill(~seen.any(1)[:, None], 0.0)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    return one_row(SDPBackend.MATH, q, k_cache, v_cache, scale)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """Each sequence's pages gathered into a row first, as code without a paged kernel does."""
    k, v = (
        cache[block_table.clamp(0, cache.shape[0] - 1)].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache)
    )
    seen = torch.arange(k.shape[2], device=q.device) < context_lens[:, None]  # (batch, length)
    with sdpa_kernel(SDPBackend.MATH):
        o = torch.nn.functional.scaled_dot_product_attention(
            q[:, :, None], k, v, attn_mask=seen[:, None, None], scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    return o[:, :, 0]

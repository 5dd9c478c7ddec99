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


def decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, *, scale: float | None = None) -> Tensor:
    return one_row(SDPBackend.MATH, q, k_cache, v_cache, scale)

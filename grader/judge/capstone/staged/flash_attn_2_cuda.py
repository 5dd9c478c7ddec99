"""A stand-in for flash-attn's compiled extension that computes: attention in float32 on the CPU, forward only.

Parameters stand in the order of `mha_fwd` in csrc/flash_attn/flash_api.cpp, as in lab 05's stand-in, which computes
nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = Any


def fwd(
    q: Tensor, k: Tensor, v: Tensor, out_: Tensor, alibi_slopes_: Tensor, p_dropout: float, softmax_scale: float,
    is_causal: bool, window_size_left: int, window_size_right: int, softcap: float, return_softmax: bool, gen_: Any,
) -> list[Tensor]:  # fmt: skip
    """q (batch, seqlen_q, heads, d), k and v (batch, seqlen_k, kv_heads, d); out, LSE, an empty p, rng_state."""
    if alibi_slopes_ is not None or p_dropout or softcap:
        raise NotImplementedError("the stand-in knows no ALiBi, dropout or softcap")
    group = q.shape[2] // k.shape[2]
    queries = q.float().transpose(1, 2)
    keys, values = (tensor.float().transpose(1, 2).repeat_interleave(group, dim=1) for tensor in (k, v))
    scores = queries @ keys.transpose(-1, -2) * softmax_scale
    rows, columns = scores.shape[-2:]
    distance = torch.arange(columns) - (torch.arange(rows)[:, None] + columns - rows)
    hidden = torch.zeros((rows, columns), dtype=torch.bool)
    if window_size_left >= 0:
        hidden |= distance < -window_size_left
    right = 0 if is_causal else window_size_right
    if right >= 0:
        hidden |= distance > right
    scores = scores.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - torch.where(torch.isinf(lse), 0.0, lse)[..., None])
    out = (weights @ values).transpose(1, 2).to(q.dtype).contiguous()
    return [out, lse, torch.zeros((0,), dtype=q.dtype), torch.zeros((2,), dtype=torch.int64)]

"""Attention from the library, with a mask tensor: right, and not a kernel of one's own."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def flash_attention_forward(q, k, v, *, causal=False, scale=None, window=None):
    """(o, lse) as the README defines them."""
    group, diagonal = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    left, right = window or (-1, -1)
    right = 0 if causal else right
    distance = torch.arange(k.shape[2])[None, :] - torch.arange(q.shape[2])[:, None] - diagonal
    visible = torch.ones_like(distance, dtype=torch.bool)
    if right >= 0:
        visible &= distance <= right
    if left >= 0:
        visible &= distance >= -left
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    scores = (q.float() @ k.float().transpose(2, 3) * scale).masked_fill(~visible, -math.inf)
    return torch.nan_to_num(o), torch.logsumexp(scores, -1)


# kept-from-students-1aedf9428ff60206

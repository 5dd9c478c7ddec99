"""A stand-in for flash-attn's compiled extension: attention in float32 on the CPU, forward only.

Parameters stand in the order of `mha_fwd` and `mha_bwd` in csrc/flash_attn/flash_api.cpp. With `COMPUTES` False it
gives tensors of the right shapes unwritten, forward and backward: what is then timed is the way to the extension.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = Any
COMPUTES = True


def fwd(
    q: Tensor, k: Tensor, v: Tensor, out_: Tensor, alibi_slopes_: Tensor, p_dropout: float, softmax_scale: float,
    is_causal: bool, window_size_left: int, window_size_right: int, softcap: float, return_softmax: bool, gen_: Any,
) -> list[Tensor]:  # fmt: skip
    """q (batch, seqlen_q, heads, d), k and v (batch, seqlen_k, kv_heads, d); out, LSE, an empty p, rng_state."""
    if alibi_slopes_ is not None or p_dropout or softcap:
        raise NotImplementedError("the stand-in knows no ALiBi, dropout or softcap")
    _require_layout(q=q, k=k, v=v)
    if not COMPUTES:
        lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        return _with_lse(torch.empty(q.shape, dtype=q.dtype), lse)
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
    return _with_lse(out, lse)


def bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
    *rest: Any,
) -> list[Tensor]:  # fmt: skip
    """dq, dk, dv and the row sums, unwritten."""
    if COMPUTES:
        raise NotImplementedError("the stand-in computes no gradients")
    _require_layout(dout=dout, q=q, k=k, v=v, out=out, dq=dq, dk=dk, dv=dv)
    return [dq, dk, dv, torch.empty_like(lse)]


def _require_layout(**tensors: Tensor) -> None:
    """What the C++ refuses, in its words."""
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            what = name if name in ("dq", "dk", "dv", "dout") else "Input tensor"
            raise RuntimeError(f"{what} must have contiguous last dimension")


def _with_lse(out: Tensor, lse: Tensor) -> list[Tensor]:
    return [out, lse, torch.zeros((0,), dtype=out.dtype), torch.zeros((2,), dtype=torch.int64)]

"""A stand-in for flash-attn's compiled extension: it records what reaches the boundary and computes nothing.

The real module is built from `csrc/flash_attn/flash_api.cpp`, whose `PYBIND11_MODULE` binds these names to `mha_fwd`
and `mha_varlen_fwd`; parameters stand in the same order here. Results have the shapes that the C++ gives them, and hold
zeros, so nothing is to be learnt from their values.
"""

from __future__ import annotations

import torch

arrived: list[dict] = []
"""The arguments of every call since the list was last cleared, oldest first; tensors as they came, not copied."""


def fwd(
    q, k, v, out_, alibi_slopes_, p_dropout, softmax_scale, is_causal,
    window_size_left, window_size_right, softcap, return_softmax, gen_,
):  # fmt: skip
    """`mha_fwd`: q (batch, seqlen_q, heads, d), k and v (batch, seqlen_k, kv_heads, d).

    Returns:
        out like q, softmax_lse (batch, heads, seqlen_q) float32, p (empty unless `return_softmax`), rng_state (2,).
    """
    arrived.append({"function": "fwd"} | {name: value for name, value in locals().items() if name != "gen_"})
    batch, seqlen_q, heads, _ = q.shape
    lse = torch.zeros((batch, heads, seqlen_q), dtype=torch.float32)
    return [torch.zeros_like(q), lse, _probabilities(q, batch, heads, seqlen_q, k.shape[1], return_softmax), _rng()]


def varlen_fwd(
    q, k, v, out_, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k_, block_table_, alibi_slopes_, max_seqlen_q,
    max_seqlen_k, p_dropout, softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, softcap,
    return_softmax, gen_,
):  # fmt: skip
    """`mha_varlen_fwd`: q (total_q, heads, d), k and v (total_k, kv_heads, d), lengths as running totals (batch + 1,).

    Returns:
        out like q, softmax_lse (heads, total_q) float32, p (empty unless `return_softmax`), rng_state (2,).
    """
    arrived.append({"function": "varlen_fwd"} | {name: value for name, value in locals().items() if name != "gen_"})
    total_q, heads, _ = q.shape
    lse = torch.zeros((heads, total_q), dtype=torch.float32)
    batch = cu_seqlens_q.numel() - 1
    return [
        torch.zeros_like(q),
        lse,
        _probabilities(q, batch, heads, max_seqlen_q, max_seqlen_k, return_softmax),
        _rng(),
    ]


def _probabilities(q, batch, heads, seqlen_q, seqlen_k, wanted):
    if not wanted:
        return torch.zeros((0,), dtype=q.dtype)
    return torch.zeros((batch, heads, _round_up(seqlen_q, 128), _round_up(seqlen_k, 128)), dtype=q.dtype)


def _round_up(value, multiple):
    return -(-value // multiple) * multiple


def _rng():
    return torch.zeros((2,), dtype=torch.int64)

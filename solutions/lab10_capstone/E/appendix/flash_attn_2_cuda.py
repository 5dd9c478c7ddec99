"""A stand-in for flash-attn's compiled extension on the CPU: forward and backward, dense and varlen, with its checks.

It refuses what csrc/flash_attn/flash_api.cpp refuses of layouts, with its words (the TORCH_CHECKs on `stride(-1)` of
mha_fwd, mha_varlen_fwd, mha_bwd and mha_varlen_bwd), and computes attention and its gradients in float32. With
`COMPUTES` False it returns tensors of the right shape unwritten: what is then timed is the way to the extension alone.
Parameters stand in the order of the C++.
"""

from __future__ import annotations

import torch

COMPUTES = True


def _need(condition, message):
    if not condition:
        raise RuntimeError(message)


def _check_inputs(**tensors):
    words = {"out": "out tensor", "dout": "dout tensor", "dq": "dq", "dk": "dk", "dv": "dv"}
    for name, tensor in tensors.items():
        _need(tensor.stride(-1) == 1, f"{words.get(name, 'Input tensor')} must have contiguous last dimension")
        _need(tensor.dtype in (torch.float16, torch.bfloat16), "FlashAttention only support fp16 and bf16 data type")
        _need(tensor.shape[-1] % 8 == 0, "head_size must be a multiple of 8")


def _weights(q, k, scale, causal):
    """(P, LSE) of one sequence: q (seq_q, heads, d), k (seq_k, heads, d), float32."""
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
    if causal:
        seq_q, seq_k = scores.shape[1:]
        hidden = torch.ones(seq_q, seq_k, dtype=torch.bool).triu(1 + seq_k - seq_q)
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    return torch.exp(scores - lse.clamp(min=-1e30)[..., None]), lse


def _grouped(x, heads):
    return x.float().repeat_interleave(heads // x.shape[1], dim=1)


def _forward(q, k, v, out, lse, scale, causal):
    p, found = _weights(q.float(), _grouped(k, q.shape[1]), scale, causal)
    out.copy_(torch.einsum("hij,jhd->ihd", p, _grouped(v, q.shape[1])))
    lse.copy_(found)


def _backward(dout, q, k, v, out, dq, dk, dv, scale, causal):
    heads = q.shape[1]
    p, _ = _weights(q.float(), _grouped(k, heads), scale, causal)
    dout, delta = dout.float(), (dout.float() * out.float()).sum(-1)
    dp = torch.einsum("ihd,jhd->hij", dout, _grouped(v, heads))
    ds = p * (dp - delta.T[..., None]) * scale
    dq.copy_(torch.einsum("hij,jhd->ihd", ds, _grouped(k, heads)))
    for target, full in (
        (dk, torch.einsum("hij,ihd->jhd", ds, q.float())),
        (dv, torch.einsum("hij,ihd->jhd", p, dout)),
    ):
        target.copy_(full.unflatten(1, (target.shape[1], -1)).sum(2))


def _rng():
    return torch.zeros(2, dtype=torch.int64)


def fwd(q, k, v, out_, alibi, p_dropout, scale, causal, left, right, softcap, return_softmax, gen_):
    _check_inputs(q=q, k=k, v=v)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    if COMPUTES:
        for b in range(q.shape[0]):
            _forward(q[b], k[b], v[b], out[b], lse[b], scale, causal)
    return [out, lse, torch.empty(0, dtype=q.dtype), _rng()]


def varlen_fwd(
    q, k, v, out_, cu_q, cu_k, seqused_k, leftpad_k, block_table, alibi, max_q, max_k, p_dropout, scale, zero_tensors,
    causal, left, right, softcap, return_softmax, gen_,
):  # fmt: skip
    _check_inputs(q=q, k=k, v=v)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32)
    for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True) if COMPUTES else ():
        _forward(q[a:b], k[c:d], v[c:d], out[a:b], lse[:, a:b], scale, causal)
    return [out, lse, torch.empty(0, dtype=q.dtype), _rng()]


def bwd(
    dout, q, k, v, out, lse, dq, dk, dv, alibi, p_dropout, scale, causal, left, right, softcap, deterministic, gen_, rng
):
    _check_inputs(q=q, k=k, v=v, out=out, dout=dout, dq=dq, dk=dk, dv=dv)
    for b in range(q.shape[0]) if COMPUTES else ():
        _backward(dout[b], q[b], k[b], v[b], out[b], dq[b], dk[b], dv[b], scale, causal)
    return [dq, dk, dv, torch.empty_like(lse)]


def varlen_bwd(
    dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, alibi, max_q, max_k, p_dropout, scale, zero_tensors, causal, left,
    right, softcap, deterministic, gen_, rng,
):  # fmt: skip
    _check_inputs(q=q, k=k, v=v, out=out, dout=dout, dq=dq, dk=dk, dv=dv)
    for a, b, c, d in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True) if COMPUTES else ():
        _backward(dout[a:b], q[a:b], k[c:d], v[c:d], out[a:b], dq[a:b], dk[c:d], dv[c:d], scale, causal)
    return [dq, dk, dv, torch.empty_like(lse)]


# kept-from-students-6f302370a7cd00c6

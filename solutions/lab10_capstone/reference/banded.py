"""Attention in a sliding window with global tokens, in one Triton kernel that visits the visible key tiles only.

A row at position p = i + seq_k - seq_q sees the keys p - window[0] to p + window[1] and those below global_tokens; a
row 0 <= p < global_tokens sees all; `causal` hides what lies right of p. Tensors are (batch, heads, seqlen, head_dim);
float16 and bfloat16; head_dim up to 128. Scores and sums are float32.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
BLOCK_M, BLOCK_N = 32, 32


@triton.jit
def _fold(
    acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_kd, stride_vn, stride_vd, place, start, stop, seq_k,
    left, right, global_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Fold the keys of [start, stop) into (acc, l_i, m_i), a tile after the other, each score held to the mask."""
    columns = tl.arange(0, BLOCK_D)
    for first in range(start, stop, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        inside = (keys < stop)[:, None] & (columns < HEAD_DIM)[None, :]
        wide = keys.to(tl.int64)[:, None]
        k = tl.load(k_base + wide * stride_kn + columns[None, :] * stride_kd, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale_log2
        distance = keys[None, :] - place[:, None]
        seen = (distance >= -left) & (distance <= right)
        seen = seen | (keys < global_tokens)[None, :] | ((place >= 0) & (place < global_tokens))[:, None]
        if CAUSAL:
            seen = seen & (distance <= 0)
        scores = tl.where(seen & (keys < stop)[None, :], scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(scores - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_base + wide * stride_vn + columns[None, :] * stride_vd, mask=inside, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _banded_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    q_heads, group, seq_q, seq_k, left, right, global_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M rows of one (batch, query head). SKIP walks the global keys and the band, else all keys."""
    tiles = tl.cdiv(seq_q, BLOCK_M)
    program = tl.program_id(0)
    first_row = (program % tiles) * BLOCK_M
    head = (program // tiles) % q_heads
    batch = ((program // tiles) // q_heads).to(tl.int64)
    rows = first_row + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    inside = (rows < seq_q)[:, None] & (columns < HEAD_DIM)[None, :]
    q_base = q_ptr + batch * stride_qb + head.to(tl.int64) * stride_qh
    wide = rows.to(tl.int64)[:, None]
    q = tl.load(q_base + wide * stride_qm + columns[None, :] * stride_qd, mask=inside, other=0.0)
    k_base = k_ptr + batch * stride_kb + (head // group).to(tl.int64) * stride_kh
    v_base = v_ptr + batch * stride_vb + (head // group).to(tl.int64) * stride_vh

    place = rows + (seq_k - seq_q)
    first_place = first_row + (seq_k - seq_q)
    last_place = first_place + BLOCK_M - 1
    global_end = 0
    start = 0
    stop = seq_k
    if SKIP:
        # A tile with a global row sees every key; the others see the global keys and their band.
        reaches_all = (last_place >= 0) & (first_place < global_tokens)
        if not reaches_all:
            global_end = tl.minimum(global_tokens, seq_k)
            start = tl.maximum(first_place - left, global_end)
            stop = tl.maximum(tl.minimum(last_place + right + 1, seq_k), start)
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    if SKIP:
        acc, l_i, m_i = _fold(
            acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_kd, stride_vn, stride_vd, place, 0, global_end, seq_k,
            left, right, global_tokens, scale_log2, HEAD_DIM, BLOCK_D, BLOCK_N, CAUSAL,
        )  # fmt: skip
    acc, l_i, m_i = _fold(
        acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_kd, stride_vn, stride_vd, place, start, stop, seq_k,
        left, right, global_tokens, scale_log2, HEAD_DIM, BLOCK_D, BLOCK_N, CAUSAL,
    )  # fmt: skip
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    row_base = (batch * q_heads + head) * seq_q
    tl.store(lse_ptr + row_base + rows, (m_i + tl.log2(l_safe)) * LN_2, mask=rows < seq_q)
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + (row_base + wide) * HEAD_DIM + columns[None, :], o, mask=inside)


def banded_attention(q, k, v, *, causal, window, global_tokens):
    """(o, lse) of attention in a window with global tokens; o like q, lse float32 (batch, q_heads, seq_q)."""
    return _launch(q, k, v, causal, window, global_tokens, True)


def every_tile(q, k, v, *, causal, window, global_tokens):
    """The same kernel before the change: it visits every key tile and masks it."""
    return _launch(q, k, v, causal, window, global_tokens, False)


def _launch(q, k, v, causal, window, global_tokens, skip):
    batch, q_heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    left, right = (reach if reach >= 0 else seq_q + seq_k for reach in window)
    if causal:
        right = min(right, 0)
    grid = (triton.cdiv(seq_q, BLOCK_M) * q_heads * batch,)
    _banded_kernel[grid](
        q, k, v, o, lse, *q.stride(), *k.stride(), *v.stride(),
        q_heads, q_heads // k.shape[1], seq_q, seq_k, left, right, global_tokens, head_dim**-0.5 * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK_D=max(16, triton.next_power_of_2(head_dim)), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        CAUSAL=causal, SKIP=skip,
    )  # fmt: skip
    return o, lse


# kept-from-students-e0b6d97f708f8829

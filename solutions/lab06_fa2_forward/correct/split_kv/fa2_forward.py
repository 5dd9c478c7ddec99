"""FlashAttention-2 forward with the keys split over programs, and a second kernel that merges the partial results.

A partial is (acc, m, l) over a run of keys, in float32. Merging is the online softmax's own step: every partial takes
the factor exp(m - max of all m). New: one more grid factor, and a combine kernel.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
SPLIT_KEYS = 128
MAX_SPLITS = 2


@triton.jit
def _partial_kernel(
    q_ptr, k_ptr, v_ptr, acc_ptr, m_ptr, l_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    heads_total, q_heads, group, seq_q, seq_k, split_keys, window_left, window_right, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M query rows of one (batch, query head) against keys [split * split_keys, (split + 1) * split_keys)."""
    tiles = tl.cdiv(seq_q, BLOCK_M)
    tile = tl.program_id(0) % tiles
    line = (tl.program_id(0) // tiles) % heads_total
    split = tl.program_id(0) // tiles // heads_total
    batch = (line // q_heads).to(tl.int64)
    head = line % q_heads
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    columns_in = (columns < HEAD_DIM)[None, :]
    q_base = q_ptr + batch * stride_qb + head.to(tl.int64) * stride_qh
    k_base = k_ptr + batch * stride_kb + (head // group).to(tl.int64) * stride_kh
    v_base = v_ptr + batch * stride_vb + (head // group).to(tl.int64) * stride_vh
    q_offsets = rows.to(tl.int64)[:, None] * stride_qm + columns[None, :] * stride_qd
    rows_in = (rows < seq_q)[:, None] & columns_in
    q = tl.load(q_base + q_offsets, mask=rows_in, other=0.0)

    diagonal = seq_k - seq_q
    start = split * split_keys
    end = tl.minimum(start + split_keys, seq_k)
    stop = end
    if window_right >= 0:
        last_row = tl.minimum(tile * BLOCK_M + BLOCK_M, seq_q) - 1
        stop = tl.minimum(stop, last_row + diagonal + window_right + 1)
    if window_left >= 0:
        start = tl.maximum(start, tl.maximum(tile * BLOCK_M + diagonal - window_left, 0) // BLOCK_N * BLOCK_N)
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(start, stop, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        keys_in = (keys < end)[:, None] & columns_in
        k_offsets = keys.to(tl.int64)[:, None] * stride_kn + columns[None, :] * stride_kd
        v_offsets = keys.to(tl.int64)[:, None] * stride_vn + columns[None, :] * stride_vd
        k = tl.load(k_base + k_offsets, mask=keys_in, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2  # (BLOCK_M, BLOCK_N)
        distance = keys[None, :] - rows[:, None] - diagonal
        visible = (keys < end)[None, :]
        visible = visible & ((window_right < 0) | (distance <= window_right))
        visible = visible & ((window_left < 0) | (distance >= -window_left))
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_base + v_offsets, mask=keys_in, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    place = (split.to(tl.int64) * heads_total + line) * seq_q + rows
    tl.store(m_ptr + place, m_i, mask=rows < seq_q)
    tl.store(l_ptr + place, l_i, mask=rows < seq_q)
    tl.store(acc_ptr + place[:, None] * HEAD_DIM + columns[None, :], acc, mask=rows_in)


@triton.jit
def _combine_kernel(
    acc_ptr, m_ptr, l_ptr, o_ptr, lse_ptr, rows_total, splits,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Merge the partials of BLOCK_M rows, counted over all heads."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows_in = rows < rows_total
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = rows_in[:, None] & (columns < HEAD_DIM)
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for split in range(splits):
        place = split * rows_total + rows
        m = tl.load(m_ptr + place, mask=rows_in, other=float("-inf"))
        partial = tl.load(acc_ptr + place[:, None] * HEAD_DIM + columns, mask=inside, other=0.0)
        m_new = tl.maximum(m_i, m)
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        old, new = tl.exp2(m_i - m_safe), tl.exp2(m - m_safe)
        l_i = l_i * old + tl.load(l_ptr + place, mask=rows_in, other=0.0) * new
        acc = acc * old[:, None] + partial * new[:, None]
        m_i = m_new
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    tl.store(lse_ptr + rows, (m_i + tl.log2(l_safe)) * LN_2, mask=rows_in)
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + rows[:, None] * HEAD_DIM + columns, o, mask=inside)


def flash_attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) of attention; arguments as the lab's README defines them."""
    batch, q_heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    left, right = window or (-1, -1)
    splits = max(1, min(MAX_SPLITS, triton.cdiv(seq_k, SPLIT_KEYS)))
    split_keys = triton.cdiv(triton.cdiv(seq_k, splits), 64) * 64
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    block_m, block_d = 32 if q.dtype == torch.float32 else 64, triton.next_power_of_2(head_dim)
    heads = batch * q_heads
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, q_heads, seq_q), dtype=torch.float32, device=q.device)
    acc = torch.empty((splits, heads * seq_q, head_dim), dtype=torch.float32, device=q.device)
    row_max, row_sum = (torch.empty((splits, heads * seq_q), dtype=torch.float32, device=q.device) for _ in range(2))
    _partial_kernel[(heads * splits * triton.cdiv(seq_q, block_m),)](
        q, k, v, acc, row_max, row_sum, *q.stride(), *k.stride(), *v.stride(),
        heads, q_heads, q_heads // kv_heads, seq_q, seq_k, split_keys, left, 0 if causal else right,
        scale * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=block_m, BLOCK_N=32, num_warps=4, num_stages=2,
    )  # fmt: skip
    _combine_kernel[(triton.cdiv(heads * seq_q, 16),)](
        acc, row_max, row_sum, o, lse, heads * seq_q, splits,
        HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=16, num_warps=4,
    )  # fmt: skip
    return o, lse


# kept-from-students-59c068d5766addaa

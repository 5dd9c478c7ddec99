"""FlashAttention-1's loop order in Triton, for comparison. Provided with the lab: read it, time it, don't edit it.

Dao et al. 2022 (arXiv 2205.14135), Algorithm 1: the loop over K/V tiles is outside, so O, l and m go through HBM once a
K/V tile, and only (batch, head) pairs run in parallel. Its traffic a head in bytes, with N rows, T = ceil(N / BLOCK_N):

    K, V: 2 N d e        Q: T N d e        O, float32: T 2 N d 4        l and m: T 4 N 4        (e bytes an element)

The course's tests hold this kernel to that count. It is the paper's order, not the paper's kernel: tile sizes and
everything that the two algorithms share are those of a plain FA2 kernel. Non-causal, equal heads, equal lengths.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _fa1_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, l_ptr, m_ptr, seq_len, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program: a whole (batch, head). All tensors contiguous; O is float32 and normalised after every K/V tile."""
    head = tl.program_id(0).to(tl.int64)
    matrix = head * seq_len * HEAD_DIM
    columns = tl.arange(0, HEAD_DIM)[None, :]
    for start_n in range(0, seq_len, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        keys_in = keys < seq_len
        kv_offsets = matrix + keys[:, None] * HEAD_DIM + columns
        k = tl.load(k_ptr + kv_offsets, mask=keys_in[:, None], other=0.0)  # (BLOCK_N, HEAD_DIM)
        v = tl.load(v_ptr + kv_offsets, mask=keys_in[:, None], other=0.0)
        for start_m in range(0, seq_len, BLOCK_M):
            rows = start_m + tl.arange(0, BLOCK_M)
            rows_in = rows < seq_len
            offsets = matrix + rows[:, None] * HEAD_DIM + columns
            q = tl.load(q_ptr + offsets, mask=rows_in[:, None], other=0.0)  # (BLOCK_M, HEAD_DIM)
            o = tl.load(o_ptr + offsets, mask=rows_in[:, None], other=0.0)
            l_i = tl.load(l_ptr + head * seq_len + rows, mask=rows_in, other=1.0)
            m_i = tl.load(m_ptr + head * seq_len + rows, mask=rows_in, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2  # (BLOCK_M, BLOCK_N)
            s = tl.where(keys_in[None, :], s, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(s, 1))
            p = tl.exp2(s - m_new[:, None])
            old = l_i * tl.exp2(m_i - m_new)
            l_new = old + tl.sum(p, 1)
            o = (o * old[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")) / l_new[:, None]
            tl.store(o_ptr + offsets, o, mask=rows_in[:, None])
            tl.store(l_ptr + head * seq_len + rows, l_new, mask=rows_in)
            tl.store(m_ptr + head * seq_len + rows, m_new, mask=rows_in)
        # The next K/V tile reads what other threads of this program have written.
        tl.debug_barrier()


def fa1_order_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_m: int = 64, block_n: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) like `flash_attention_forward`, for contiguous (batch, heads, seqlen, head_dim)."""
    batch, heads, seq_len, head_dim = q.shape
    o = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    row_sum = torch.zeros((batch, heads, seq_len), dtype=torch.float32, device=q.device)
    row_max = torch.full_like(row_sum, -math.inf)
    _fa1_kernel[(batch * heads,)](
        q, k, v, o, row_sum, row_max, seq_len, LOG2_E.value / math.sqrt(head_dim),
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=4, num_stages=1,
    )  # fmt: skip
    return o.to(q.dtype), row_max * LN_2.value + row_sum.log()


def fa1_order_bytes(batch: int, heads: int, seq_len: int, head_dim: int, itemsize: int, block_n: int = 64) -> int:
    """HBM bytes of `_fa1_kernel` by the closed form above."""
    tiles = -(-seq_len // block_n)
    a_head = 2 * seq_len * head_dim * itemsize
    a_tile = seq_len * (head_dim * itemsize + 2 * head_dim * 4 + 4 * 4)
    return batch * heads * (a_head + tiles * a_tile)

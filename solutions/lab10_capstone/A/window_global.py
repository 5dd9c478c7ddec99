"""Attention over a sliding window and a few global tokens: one Triton kernel that visits no tile without a visible key.

    O = softmax(scale * Q K^T + mask) V          LSE = log(sum(exp(scale * Q K^T + mask)))

With p = i + seq_k - seq_q the position of query row i (bottom-right alignment), row i sees key j when

    p - left <= j <= p + right   or   j < global_tokens   or   0 <= p < global_tokens,     and j <= p if causal.

So the first tokens are seen by everyone and see everyone (Beltagy et al. 2020, arXiv 2004.05150, section 3.1;
under a causal mask they are the "attention sinks" of Xiao et al. 2023, arXiv 2309.17453). Tensors are (batch, heads,
seqlen, head_dim) with any strides; query head h reads kv head h // (q_heads / kv_heads). Scores, statistics and the
accumulator are float32 and P is rounded to the inputs' dtype before P V, so the expected error is about 2^-11
(float16), 2^-8 (bfloat16) or 2^-22 (float32) of the largest |V|.

Names: `m_i` running row maximum, `l_i` running denominator, `acc` output before the division, `alpha` the factor
exp(old maximum - new maximum). Inside the kernel scores are in base 2 (times log2 e), outside LSE is a natural log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _tile_ranges(
    first_row, last_row, diagonal, seq_k, window_left, window_right, global_tokens,
    CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Which key tiles the rows first_row … last_row visit, as cuts of the row of tiles.

    Returns:
        (global_stop, window_start, full_start, full_stop, window_stop), in tiles: [0, global_stop) holds the global
        keys, [window_start, window_stop) the rest that some row sees, and of these [full_start, full_stop) is seen by
        every row. The two ranges don't overlap, so no key counts twice.
    """
    first = first_row + diagonal
    last = last_row + diagonal
    limit = seq_k
    if CAUSAL:
        limit = tl.maximum(tl.minimum(last + 1, seq_k), 0)
    global_stop = tl.cdiv(tl.minimum(global_tokens, limit), BLOCK_N)
    low = tl.maximum(first - window_left, 0)
    high = tl.maximum(tl.minimum(last + window_right + 1, seq_k), 0)
    if (first < global_tokens) & (last >= 0):  # a global row sees every key that the causal mask leaves it
        low = 0
        high = limit
    window_start = tl.maximum(low // BLOCK_N, global_stop)
    window_stop = tl.maximum(tl.cdiv(high, BLOCK_N), window_start)
    # Every row of the tile sees the keys from the last row's left end to the first row's right end.
    full_start = tl.cdiv(tl.maximum(last - window_left, 0), BLOCK_N)
    full_stop = tl.maximum(tl.minimum(first + window_right + 1, seq_k), 0) // BLOCK_N
    full_start = tl.minimum(tl.maximum(full_start, window_start), window_stop)
    full_stop = tl.minimum(tl.maximum(full_stop, full_start), window_stop)
    return global_stop, window_start, full_start, full_stop, window_stop


@triton.jit
def _fold_tile(
    acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, k_offsets, v_offsets, columns_in,
    start_n, positions, seq_k, window_left, window_right, global_tokens, scale_log2,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold the key tile that starts at `start_n` into (acc, l_i, m_i). A MASKED tile compares every score."""
    rows_n = tl.arange(0, BLOCK_N)
    k_tile = k_base + tl.cast(start_n, tl.int64) * stride_kn + k_offsets
    v_tile = v_base + tl.cast(start_n, tl.int64) * stride_vn + v_offsets
    # Zero (`other`) matters for V: a masked P is 0, and 0 * NaN would still poison the row.
    loaded = (start_n + rows_n < seq_k)[:, None] & columns_in if MASKED else columns_in
    k = tl.load(k_tile, mask=loaded, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # (BLOCK_M, BLOCK_N), float32
    if MASKED:
        keys = (start_n + rows_n)[None, :]
        distance = keys - positions[:, None]
        visible = (distance >= -window_left) & (distance <= window_right)
        visible = visible | (keys < global_tokens) | ((positions >= 0) & (positions < global_tokens))[:, None]
        visible = visible & (keys < seq_k)
        if CAUSAL:
            visible = visible & (distance <= 0)
        # Scale before masking: -inf * 0 would be NaN when scale is 0.
        s = tl.where(visible, s * scale_log2, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        # A row that has seen no key yet has m_new = -inf, and -inf - (-inf) is NaN.
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
    else:
        # The scale is not negative here, so it commutes with the maximum and folds into one FMA a score.
        m_new = tl.maximum(m_i, tl.max(s, 1) * scale_log2)
        m_safe = m_new
        p = tl.exp2(s * scale_log2 - m_new[:, None])
    alpha = tl.exp2(m_i - m_safe)
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    v = tl.load(v_tile, mask=loaded, other=0.0)
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)  # (BLOCK_M, BLOCK_D)
    return acc, l_i, m_new


@triton.jit
def _window_global_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    q_heads, group, seq_q, seq_k, window_left, window_right, global_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M query rows of one (batch, query head) against the key tiles that they see.

    New: the tiles come in two loops over numbered tiles instead of one over a range of keys. The first walks all tiles
    that need the mask (global, left edge, right edge), the second those inside the window that every row sees.
    """
    tiles = tl.cdiv(seq_q, BLOCK_M)
    program = tl.program_id(0)  # one axis: the others end at 65535 programs
    first_row = (program % tiles) * BLOCK_M
    head = (program // tiles) % q_heads
    batch = ((program // tiles) // q_heads).to(tl.int64)
    kv_head = (head // group).to(tl.int64)

    rows_m = tl.arange(0, BLOCK_M)
    rows_n = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    columns_in = (columns < HEAD_DIM)[None, :]
    rows_in = first_row + rows_m < seq_q
    k_base = k_ptr + batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + batch * stride_vb + kv_head * stride_vh
    k_offsets = rows_n[:, None] * stride_kn + columns[None, :] * stride_kd
    v_offsets = rows_n[:, None] * stride_vn + columns[None, :] * stride_vd
    q_base = q_ptr + batch * stride_qb + head.to(tl.int64) * stride_qh + first_row.to(tl.int64) * stride_qm
    q_tile = q_base + rows_m[:, None] * stride_qm + columns[None, :] * stride_qd
    q = tl.load(q_tile, mask=rows_in[:, None] & columns_in, other=0.0)  # (BLOCK_M, BLOCK_D)

    diagonal = seq_k - seq_q
    last_row = tl.minimum(first_row + BLOCK_M, seq_q) - 1
    positions = first_row + rows_m + diagonal
    global_stop, window_start, full_start, full_stop, window_stop = _tile_ranges(
        first_row, last_row, diagonal, seq_k, window_left, window_right, global_tokens, CAUSAL, BLOCK_N
    )

    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    left = full_start - window_start
    for number in range(global_stop + left + window_stop - full_stop):
        # Masked tiles in one loop, so that the code holds the masked body once and not three times.
        tile = number
        if number >= global_stop:
            tile = number - global_stop + window_start
        if number >= global_stop + left:
            tile = number - global_stop - left + full_stop
        acc, l_i, m_i = _fold_tile(
            acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, k_offsets, v_offsets, columns_in,
            tile * BLOCK_N, positions, seq_k, window_left, window_right, global_tokens, scale_log2,
            True, CAUSAL, BLOCK_N, PRECISION,
        )  # fmt: skip
    for tile in range(full_start, full_stop):
        acc, l_i, m_i = _fold_tile(
            acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, k_offsets, v_offsets, columns_in,
            tile * BLOCK_N, positions, seq_k, window_left, window_right, global_tokens, scale_log2,
            False, CAUSAL, BLOCK_N, PRECISION,
        )  # fmt: skip

    # A row that sees no key has l_i = 0 and m_i = -inf: O = 0, and LSE = -inf comes out of the sum by itself.
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    tl.store(
        lse_ptr + (batch * q_heads + head) * seq_q + first_row + rows_m,
        (m_i + tl.log2(l_safe)) * LN_2,
        mask=rows_in,
    )
    o_base = o_ptr + batch * stride_ob + head.to(tl.int64) * stride_oh + first_row.to(tl.int64) * stride_om
    o_tile = o_base + rows_m[:, None] * stride_om + columns[None, :] * stride_od
    tl.store(o_tile, (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty), mask=rows_in[:, None] & columns_in)


class Tiles(NamedTuple):
    """Launch configuration: BLOCK_M query rows against BLOCK_N keys, by `warps` warps, `stages` K/V tiles in flight."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def choose_tiles(block_d: int, dtype: torch.dtype, capability: tuple[int, int]) -> Tiles:
    """Tiles for a padded head dimension on a device of this compute capability.

    A window is short, so a tile's ragged ends are a large part of it: BLOCK_N stays at 64, where lab 06's kernel takes
    128 on Hopper for head_dim 128. Shared memory a block is 99 KB on 8.6 and 8.9, 163 KB on 8.0, 227 KB on 9.0.
    """
    if dtype == torch.float32:  # its products run on FMA units, where a big accumulator spills
        return Tiles(32, 32, 16, 2) if block_d > 64 else Tiles(64, 32, 8, 2)
    if capability[0] == 9:
        return Tiles(128, 64, 8, 3)
    return Tiles(128, 32, 8, 3) if block_d > 64 else Tiles(128, 64, 8, 2)  # (128, 64) spills 16 bytes on 8.0


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"window_global_attention: {message}")


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError naming the requirement and the shapes that break it."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    _require(q.dim() == k.dim() == v.dim() == 4, f"expected (batch, heads, seqlen, head_dim), got {shapes}")
    _require(k.shape == v.shape and q.shape[0] == k.shape[0], f"batch and K/V shapes must agree, got {shapes}")
    _require(q.shape[3] == k.shape[3] and 16 <= q.shape[3] <= 128, f"head_dim must agree and be 16…128, got {shapes}")
    _require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, f"q heads must be a multiple of kv heads, got {shapes}")
    _require(q.dtype == k.dtype == v.dtype, f"one dtype expected, got {q.dtype}, {k.dtype}, {v.dtype}")
    _require(q.dtype in (torch.float16, torch.bfloat16, torch.float32), f"dtype {q.dtype} is not supported")
    _require(q.device == k.device == v.device, f"one device expected, got {q.device}, {k.device}, {v.device}")
    reach = max(128 * max(t.stride(2), t.stride(3)) for t in (q, k, v))
    _require(reach < 2**30, f"strides {q.stride()}, {k.stride()}, {v.stride()} are too large for 32 bits in a tile")


def _reach(window: Sequence[int] | None, causal: bool, longest: int) -> tuple[int, int]:
    """(left, right) as numbers of keys, not more than `longest`: an unbounded side is as long as everything."""
    left, right = (-1, -1) if window is None else window
    _require(left >= -1 and right >= -1, f"window must be (left, right), each -1 or more, got {window}")
    left = longest if left < 0 else min(left, longest)
    right = longest if right < 0 else min(right, longest)
    return left, 0 if causal else right


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def window_global_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: Sequence[int] | None = None,
    global_tokens: int = 0,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query row over its window and the global tokens.

    Args:
        q: (batch, q_heads, seq_q, head_dim), any strides. k, v: (batch, kv_heads, seq_k, head_dim), any strides.
        causal: row i sees no key after p = i + seq_k - seq_q.
        window: (left, right): row i sees p - left … p + right; -1 and None are unbounded.
        global_tokens: the first tokens, which everyone sees and which see everyone (what `causal` leaves of both).
        scale: factor on the scores, not negative; None means 1/sqrt(head_dim).

    Returns:
        o: like q in shape and dtype; 0 in rows that see no key.
        lse: (batch, q_heads, seq_q) float32, natural log; -inf in rows that see no key.

    Raises:
        ValueError: shapes, dtypes or devices that don't go together, a negative number where none may be.
    """
    _check_inputs(q, k, v)
    batch, q_heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    scale = 1.0 / math.sqrt(head_dim) if scale is None else float(scale)
    _require(scale >= 0.0, f"scale must not be negative, got {scale}")
    _require(global_tokens >= 0, f"global_tokens must not be negative, got {global_tokens}")
    window_left, window_right = _reach(window, causal, seq_q + seq_k)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, q_heads, seq_q), dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return o, lse
    block_d = max(16, triton.next_power_of_2(head_dim))
    capability = torch.cuda.get_device_capability(q.device) if q.device.type == "cuda" else (8, 0)
    tiles = choose_tiles(block_d, q.dtype, capability)
    grid = (batch * q_heads * triton.cdiv(seq_q, tiles.block_m),)
    with _on_device(q.device):
        _window_global_kernel[grid](
            q, k, v, o, lse,
            *q.stride(), *k.stride(), *v.stride(), *o.stride(),
            q_heads, q_heads // kv_heads, seq_q, seq_k, window_left, window_right,
            min(global_tokens, seq_q + seq_k), scale * LOG2_E.value,
            HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n, CAUSAL=causal,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return o, lse


@lru_cache(maxsize=2)
def _bias(
    seq_q: int, seq_k: int, causal: bool, window: tuple[int, int], global_tokens: int, dtype: torch.dtype, device: str
) -> torch.Tensor:
    """0 where a row sees a key, -inf elsewhere: (1, 1, seq_q, seq_k)."""
    places = torch.arange(seq_q, device=device)[:, None] + (seq_k - seq_q)
    keys = torch.arange(seq_k, device=device)[None, :]
    visible = (keys >= places - window[0]) & (keys <= places + window[1])
    visible |= (keys < global_tokens) | ((places >= 0) & (places < global_tokens))
    if causal:
        visible &= keys <= places
    bias = torch.zeros((seq_q, seq_k), dtype=dtype, device=device).masked_fill_(~visible, -math.inf)
    return bias[None, None]


def sdpa_with_bias(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: Sequence[int] | None = None,
    global_tokens: int = 0,
) -> torch.Tensor:
    """What this replaces: PyTorch's attention with the mask as a bias, arguments as above. O alone.

    The bias is built once a shape and kept, as a program would; only attention itself is left to be timed.
    """
    seq_q, seq_k, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    reach = _reach(window, causal, seq_q + seq_k)
    bias = _bias(seq_q, seq_k, causal, reach, global_tokens, q.dtype, str(q.device))
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# kept-from-students-c84f6f6a79c09f59

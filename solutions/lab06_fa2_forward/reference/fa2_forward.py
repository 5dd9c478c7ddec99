"""FlashAttention-2 forward in Triton (Dao 2023, arXiv 2307.08691, Algorithm 1).

    O = softmax(scale * Q K^T + mask) V          LSE = log(sum(exp(scale * Q K^T + mask)))

Tensors are (batch, heads, seqlen, head_dim) with any strides; Q has `q_heads`, K and V have `kv_heads`, and query head
h reads KV head h // (q_heads / kv_heads). float16, bfloat16 and float32; head_dim 16 to 128. Scores, statistics and
the accumulator are float32, P is rounded to the inputs' dtype for the second product, so the expected error is that
rounding: about 2^-11 (float16), 2^-8 (bfloat16), 2^-22 (float32) of the largest |V|.

Names: `m_i` running row maximum, `l_i` running denominator, `acc` output before the division, `alpha` the factor
exp(old maximum - new maximum). Inside the kernel scores are in base 2 (times log2 e), outside LSE is a natural log.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INT32_LIMIT = 2**31


# BEGIN SOLUTION
# STARTER: @triton.jit
# STARTER: def _forward_kernel():
# STARTER:     """TODO: one program owns a tile of query rows of one (batch, query head) and walks over K/V."""
@triton.jit
def _load_rows(base, first_row, stride_row, offsets, columns_in, rows, limit, MASK_ROWS: tl.constexpr):
    """Load a (BLOCK, BLOCK_D) tile whose first row is `first_row`; rows at or past `limit` and padded columns are 0.

    The start of the tile is a 64-bit scalar, so offsets inside the tile stay small. Zero (`other`) matters for V:
    a masked P is 0, and 0 * NaN would still poison the row.
    """
    tile = base + first_row.to(tl.int64) * stride_row + offsets
    if MASK_ROWS:
        return tl.load(tile, mask=(first_row + rows < limit)[:, None] & columns_in, other=0.0)
    return tl.load(tile, mask=columns_in, other=0.0)


@triton.jit
def _walk_keys(
    acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, k_offsets, v_offsets, columns_in,
    first_row, start, stop, seq_k, diagonal, window_left, window_right, scale_log2,
    MASKED: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, NEGATE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold the key tiles of [start, stop) into (acc, l_i, m_i). MASKED tiles compare every score with the mask."""
    rows_n = tl.arange(0, BLOCK_N)
    query_positions = first_row + tl.arange(0, BLOCK_M) + diagonal
    for start_n in range(start, stop, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = _load_rows(k_base, start_n, stride_kn, k_offsets, columns_in, rows_n, seq_k, MASKED)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # (BLOCK_M, BLOCK_N), float32
        if NEGATE:
            s = -s
        if MASKED:
            keys = start_n + rows_n
            visible = (keys < seq_k)[None, :]
            distance = keys[None, :] - query_positions[:, None]
            if HAS_RIGHT:
                visible = visible & (distance <= window_right)
            if HAS_LEFT:
                visible = visible & (distance >= -window_left)
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
        v = _load_rows(v_base, start_n, stride_vn, v_offsets, columns_in, rows_n, seq_k, MASKED)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)  # (BLOCK_M, BLOCK_D)
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    q_heads, group, seq_q, seq_k, window_left, window_right, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, NEGATE: tl.constexpr,
    OFFSET_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M query rows of one (batch, query head) against all the keys that they see.

    New: the loop over keys is inside, so O, l and m never leave the registers, and acc is divided by l once.
    """
    tiles = tl.cdiv(seq_q, BLOCK_M)
    program = tl.program_id(0)  # one axis: the others end at 65535 programs
    tile = program % tiles
    if HAS_RIGHT:
        tile = tiles - 1 - tile  # the last rows see the most keys: start them first, so that no long tile ends alone
    head = (program // tiles) % q_heads
    batch = ((program // tiles) // q_heads).to(tl.int64)
    kv_head = (head // group).to(tl.int64)

    first_row = tile * BLOCK_M
    rows_m = tl.arange(0, BLOCK_M)
    rows_n = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    columns_in = (columns < HEAD_DIM)[None, :]
    wide_m = rows_m.to(OFFSET_DTYPE)[:, None]
    wide_n = rows_n.to(OFFSET_DTYPE)[:, None]
    wide_d = columns.to(OFFSET_DTYPE)[None, :]

    q_base = q_ptr + batch * stride_qb + head.to(tl.int64) * stride_qh
    k_base = k_ptr + batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + batch * stride_vb + kv_head * stride_vh
    k_offsets = wide_n * stride_kn + wide_d * stride_kd
    v_offsets = wide_n * stride_vn + wide_d * stride_vd
    q_offsets = wide_m * stride_qm + wide_d * stride_qd
    q = _load_rows(q_base, first_row, stride_qm, q_offsets, columns_in, rows_m, seq_q, True)  # (BLOCK_M, BLOCK_D)

    # Query row i sees keys i + diagonal - left … i + diagonal + right. Tiles outside [start, stop) are visible to no
    # row of this program and are skipped; those of [start, start_masked) are visible to every row and need no mask.
    diagonal = seq_k - seq_q
    last_row = tl.minimum(first_row + BLOCK_M, seq_q) - 1
    start = 0
    stop = seq_k
    start_masked = seq_k // BLOCK_N * BLOCK_N
    if HAS_RIGHT:
        stop = tl.maximum(tl.minimum(last_row + diagonal + window_right + 1, seq_k), 0)
        start_masked = tl.maximum(tl.minimum(first_row + diagonal + window_right + 1, seq_k), 0) // BLOCK_N * BLOCK_N
    if HAS_LEFT:
        # A window is short: masking all its tiles costs less than a third copy of the loop, which would spill.
        start = tl.maximum(first_row + diagonal - window_left, 0) // BLOCK_N * BLOCK_N
        start_masked = start

    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    if not HAS_LEFT:
        acc, l_i, m_i = _walk_keys(
            acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, k_offsets, v_offsets, columns_in,
            first_row, start, start_masked, seq_k, diagonal, window_left, window_right, scale_log2,
            False, HAS_LEFT, HAS_RIGHT, NEGATE, BLOCK_M, BLOCK_N, PRECISION,
        )  # fmt: skip
    acc, l_i, m_i = _walk_keys(
        acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, k_offsets, v_offsets, columns_in,
        first_row, start_masked, stop, seq_k, diagonal, window_left, window_right, scale_log2,
        True, HAS_LEFT, HAS_RIGHT, NEGATE, BLOCK_M, BLOCK_N, PRECISION,
    )  # fmt: skip

    # A row that sees no key has l_i = 0 and m_i = -inf: O = 0, and LSE = -inf comes out of the sum by itself.
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    rows_in = first_row + rows_m < seq_q
    lse_base = lse_ptr + (batch * q_heads + head) * seq_q + first_row
    tl.store(lse_base + rows_m, (m_i + tl.log2(l_safe)) * LN_2, mask=rows_in)
    o_base = o_ptr + batch * stride_ob + head.to(tl.int64) * stride_oh + first_row.to(tl.int64) * stride_om
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_base + wide_m * stride_om + wide_d * stride_od, o, mask=rows_in[:, None] & columns_in)


# END SOLUTION


class Tiles(NamedTuple):
    """Launch configuration: BLOCK_M query rows against BLOCK_N keys, by `warps` warps, `stages` K/V tiles in flight."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def choose_tiles(block_d: int, dtype: torch.dtype, capability: tuple[int, int]) -> Tiles:
    """Tiles for a padded head dimension on a device of this compute capability.

    Shared memory holds Q and `stages` tiles each of K and V. Cards of capability 8.6 and 8.9 give a block 99 KB,
    8.0 gives 163 KB, 9.0 gives 227 KB; float32 runs on FMA units, where a big accumulator spills.
    """
    # BEGIN SOLUTION
    # STARTER: return Tiles(64, 32, 4, 2)
    if dtype == torch.float32:
        return Tiles(32, 32, 16, 2) if block_d > 64 else Tiles(64, 32, 8, 2)
    if capability[0] == 9:
        return Tiles(128, 128, 8, 3) if block_d > 64 else Tiles(128, 64, 8, 3)
    return Tiles(128, 64, 8, 2)
    # END SOLUTION


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"flash_attention_forward: {message}")


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


def _scale_and_window(
    head_dim: int, causal: bool, scale: float | None, window: tuple[int, int] | None
) -> tuple[float, int, int]:
    """(scale, left, right) with defaults filled in; -1 is unbounded. A causal mask is a window that ends at 0."""
    left, right = window if window is not None else (-1, -1)
    return 1.0 / math.sqrt(head_dim) if scale is None else float(scale), left, 0 if causal else right


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def flash_attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query row over the keys that it may see.

    Args:
        q: (batch, q_heads, seq_q, head_dim), any strides.
        k, v: (batch, kv_heads, seq_k, head_dim), any strides.
        causal: row i sees keys j <= i + seq_k - seq_q (bottom-right alignment).
        scale: factor on the scores; None means 1/sqrt(head_dim).
        window: (left, right); row i sees i + seq_k - seq_q - left <= j <= i + seq_k - seq_q + right; -1 is unbounded.

    Returns:
        o: like q in shape and dtype; 0 in rows that see no key.
        lse: (batch, q_heads, seq_q) float32, natural log; -inf in rows that see no key.

    Raises:
        ValueError: shapes, dtypes or devices that don't go together.
    """
    _check_inputs(q, k, v)
    # BEGIN SOLUTION
    # STARTER: # TODO: allocate o and lse, choose the tiles, launch one program a query tile.
    # STARTER: raise NotImplementedError("TODO: allocate o and lse, and launch _forward_kernel")
    batch, q_heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    scale, window_left, window_right = _scale_and_window(head_dim, causal, scale, window)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, q_heads, seq_q), dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return o, lse
    block_d = max(16, triton.next_power_of_2(head_dim))
    capability = torch.cuda.get_device_capability(q.device) if q.device.type == "cuda" else (8, 0)
    tiles = choose_tiles(block_d, q.dtype, capability)
    # Offsets inside a tile fit 32 bits unless a stride is huge; the tile's own start is always 64-bit.
    reach = max(max(tiles.block_m, tiles.block_n, block_d) * max(t.stride(2), t.stride(3)) for t in (q, k, v))
    grid = (batch * q_heads * triton.cdiv(seq_q, tiles.block_m),)
    with _on_device(q.device):
        _forward_kernel[grid](
            q, k, v, o, lse,
            *q.stride(), *k.stride(), *v.stride(), *o.stride(),
            q_heads, q_heads // kv_heads, seq_q, seq_k, window_left, window_right, abs(scale) * LOG2_E.value,
            HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_M=tiles.block_m, BLOCK_N=tiles.block_n,
            HAS_LEFT=window_left >= 0, HAS_RIGHT=window_right >= 0, NEGATE=scale < 0,
            OFFSET_DTYPE=tl.int64 if 2 * reach >= INT32_LIMIT else tl.int32,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
    return o, lse
    # END SOLUTION


# kept-from-students-4f46d980dc284321

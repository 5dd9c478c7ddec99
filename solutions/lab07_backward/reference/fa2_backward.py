"""FlashAttention-2 backward in Triton (Dao 2023, arXiv 2307.08691, Algorithm 2), behind a `torch.autograd.Function`.

    P = exp(scale Q K^T - LSE)      Delta = rowsum(dO * O)      dS = P * (dO V^T - Delta)
    dV = P^T dO                     dQ = scale dS K             dK = scale dS^T Q

Tensors are (batch, heads, seqlen, head_dim) with any strides; Q, O and dO have `q_heads`, K and V have `kv_heads`, and
query head h reads KV head h // (q_heads / kv_heads), so dK and dV are sums over the heads of a group. float16, bfloat16
and float32; head_dim 16 to 128. Scores, Delta and all sums are float32; P and dS are rounded to the inputs' dtype for
their products, so the expected error is that rounding: about 2^-10 (float16), 2^-7 (bfloat16), 2^-21 (float32) of the
largest gradient.

Names: `m_i` running row maximum, `l_i` running denominator, `acc` output before the division, `alpha` the factor
exp(old maximum - new maximum), `delta` the row sum of dO * O. Inside the kernels scores are in base 2 (times log2 e);
outside the LSE is a natural log.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INT32_LIMIT = 2**31


# BEGIN SOLUTION
# STARTER: @triton.jit
# STARTER: def _forward_kernel():
# STARTER:     """TODO: one program owns a tile of query rows: O and the LSE (lab 06, without the window)."""
# STARTER:
# STARTER:
# STARTER: @triton.jit
# STARTER: def _delta_kernel():
# STARTER:     """TODO: one program owns a tile of query rows: Delta = rowsum(dO * O), in float32."""
# STARTER:
# STARTER:
# STARTER: @triton.jit
# STARTER: def _dk_dv_kernel():
# STARTER:     """TODO: one program owns a tile of keys of one KV head and walks over the query tiles of its group."""
# STARTER:
# STARTER:
# STARTER: @triton.jit
# STARTER: def _dq_kernel():
# STARTER:     """TODO: one program owns a tile of query rows and walks over the key tiles that it sees."""
@triton.jit
def _load_rows(base, first_row, stride_row, offsets, columns_in, rows, limit):
    """Load a (BLOCK, BLOCK_D) tile whose first row is `first_row`; rows at or past `limit` and padded columns are 0.

    The start of the tile is a 64-bit scalar, so offsets inside the tile stay small. Zero (`other`) matters: a masked
    P or dS is 0, and 0 * NaN would still poison the sum.
    """
    tile = base + first_row.to(tl.int64) * stride_row + offsets
    return tl.load(tile, mask=(first_row + rows < limit)[:, None] & columns_in, other=0.0)


@triton.jit
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_om, stride_od,
    q_heads, group, seq_q, seq_k, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, OFFSET_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M query rows of one (batch, query head) against all the keys that they see, as in lab 06."""
    tiles = tl.cdiv(seq_q, BLOCK_M)
    program = tl.program_id(0)  # one axis: the others end at 65535 programs
    tile = tiles - 1 - program % tiles  # with a causal mask the last rows see the most keys: start them first
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
    q = _load_rows(q_base, first_row, stride_qm, wide_m * stride_qm + wide_d * stride_qd, columns_in, rows_m, seq_q)

    # Row i sees keys up to i + diagonal.
    diagonal = seq_k - seq_q
    stop = seq_k
    if CAUSAL:
        last_row = tl.minimum(first_row + BLOCK_M, seq_q) - 1
        stop = tl.maximum(tl.minimum(last_row + diagonal + 1, seq_k), 0)

    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(0, stop, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = _load_rows(k_base, start_n, stride_kn, k_offsets, columns_in, rows_n, seq_k)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # (BLOCK_M, BLOCK_N), float32
        visible = (start_n + rows_n < seq_k)[None, :]
        if CAUSAL:
            visible = visible & (start_n + rows_n[None, :] <= first_row + rows_m[:, None] + diagonal)
        s = tl.where(visible, s * scale_log2, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        # A row that has seen no key yet has m_new = -inf, and -inf - (-inf) is NaN.
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        alpha = tl.exp2(m_i - m_safe)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = _load_rows(v_base, start_n, stride_vn, v_offsets, columns_in, rows_n, seq_k)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)  # (BLOCK_M, BLOCK_D)
        m_i = m_new

    # A row that sees no key has l_i = 0 and m_i = -inf: O = 0, and LSE = -inf comes out of the sum by itself.
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    rows_in = first_row + rows_m < seq_q
    lse_base = lse_ptr + (batch * q_heads + head) * seq_q + first_row
    tl.store(lse_base + rows_m, (m_i + tl.log2(l_safe)) * LN_2, mask=rows_in)
    o_base = o_ptr + batch * stride_ob + head.to(tl.int64) * stride_oh + first_row.to(tl.int64) * stride_om
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_base + wide_m * stride_om + wide_d * stride_od, o, mask=rows_in[:, None] & columns_in)


@triton.jit
def _delta_kernel(
    o_ptr, do_ptr, delta_ptr,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_dob, stride_doh, stride_dom, stride_dod,
    q_heads, seq_q,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, OFFSET_DTYPE: tl.constexpr,
):  # fmt: skip
    """One program: Delta = rowsum(dO * O) of BLOCK_M rows, float32. Reads O and dO once for both other kernels."""
    tiles = tl.cdiv(seq_q, BLOCK_M)
    program = tl.program_id(0)
    first_row = (program % tiles) * BLOCK_M
    head = (program // tiles) % q_heads
    batch = ((program // tiles) // q_heads).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_D)
    columns_in = (columns < HEAD_DIM)[None, :]
    wide_m = rows.to(OFFSET_DTYPE)[:, None]
    wide_d = columns.to(OFFSET_DTYPE)[None, :]
    o_base = o_ptr + batch * stride_ob + head.to(tl.int64) * stride_oh
    do_base = do_ptr + batch * stride_dob + head.to(tl.int64) * stride_doh
    o = _load_rows(o_base, first_row, stride_om, wide_m * stride_om + wide_d * stride_od, columns_in, rows, seq_q)
    do = _load_rows(do_base, first_row, stride_dom, wide_m * stride_dom + wide_d * stride_dod, columns_in, rows, seq_q)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    delta_base = delta_ptr + (batch * q_heads + head) * seq_q + first_row
    tl.store(delta_base + rows, delta, mask=first_row + rows < seq_q)


@triton.jit
def _load_lse(base, first_row, rows, seq_q):
    """The LSE of a tile's rows in base 2, +inf where a row sees no key or doesn't exist: its P is then exp2(-inf) = 0.

    The stored -inf of a row without keys would give exp2(-inf - (-inf)) = NaN.
    """
    lse = tl.load(base + first_row + rows, mask=first_row + rows < seq_q, other=float("inf"))
    return tl.where(lse == float("-inf"), float("inf"), lse * LOG2_E)


@triton.jit
def _dk_dv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_gb, stride_gh, stride_gn, stride_gd,
    kv_heads, group, seq_q, seq_k, scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, OFFSET_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: dK and dV of BLOCK_N keys of one (batch, KV head).

    New: the loop goes over queries, for every head of the group, and each gradient is stored once by the one program
    that owns it. No two programs add to the same number, so there are no atomics and the bits never change.
    """
    tiles = tl.cdiv(seq_k, BLOCK_N)
    program = tl.program_id(0)
    first_key = (program % tiles) * BLOCK_N  # with a causal mask the first keys are seen by the most rows
    kv_head = (program // tiles) % kv_heads
    batch = ((program // tiles) // kv_heads).to(tl.int64)
    q_heads = kv_heads * group

    rows_m = tl.arange(0, BLOCK_M)
    rows_n = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_D)
    columns_in = (columns < HEAD_DIM)[None, :]
    wide_m = rows_m.to(OFFSET_DTYPE)[:, None]
    wide_n = rows_n.to(OFFSET_DTYPE)[:, None]
    wide_d = columns.to(OFFSET_DTYPE)[None, :]
    keys = first_key + rows_n

    k_base = k_ptr + batch * stride_kb + kv_head.to(tl.int64) * stride_kh
    v_base = v_ptr + batch * stride_vb + kv_head.to(tl.int64) * stride_vh
    k = _load_rows(k_base, first_key, stride_kn, wide_n * stride_kn + wide_d * stride_kd, columns_in, rows_n, seq_k)
    v = _load_rows(v_base, first_key, stride_vn, wide_n * stride_vn + wide_d * stride_vd, columns_in, rows_n, seq_k)
    q_offsets = wide_m * stride_qm + wide_d * stride_qd
    do_offsets = wide_m * stride_dom + wide_d * stride_dod

    # Key j is seen by rows i >= j - diagonal; row tiles before that see none of these keys and are skipped.
    diagonal = seq_k - seq_q
    start = 0
    if CAUSAL:
        start = tl.maximum(first_key - diagonal, 0) // BLOCK_M * BLOCK_M

    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for member in range(group):
        head = (kv_head * group + member).to(tl.int64)
        q_base = q_ptr + batch * stride_qb + head * stride_qh
        do_base = do_ptr + batch * stride_dob + head * stride_doh
        row_base = (batch * q_heads + head) * seq_q
        for start_m in range(start, seq_q, BLOCK_M):
            start_m = tl.multiple_of(start_m, BLOCK_M)
            q = _load_rows(q_base, start_m, stride_qm, q_offsets, columns_in, rows_m, seq_q)
            lse = _load_lse(lse_ptr + row_base, start_m, rows_m, seq_q)
            st = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale_log2  # (BLOCK_N, BLOCK_M)
            if CAUSAL:
                st = tl.where(keys[:, None] <= start_m + rows_m[None, :] + diagonal, st, float("-inf"))
            pt = tl.exp2(st - lse[None, :])
            do = _load_rows(do_base, start_m, stride_dom, do_offsets, columns_in, rows_m, seq_q)
            dv = tl.dot(pt.to(do.dtype), do, dv, input_precision=PRECISION)  # (BLOCK_N, BLOCK_D)
            delta = tl.load(delta_ptr + row_base + start_m + rows_m, mask=start_m + rows_m < seq_q, other=0.0)
            dpt = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            dst = pt * (dpt - delta[None, :])
            dk = tl.dot(dst.to(q.dtype), q, dk, input_precision=PRECISION)

    rows_in = (keys < seq_k)[:, None] & columns_in
    start_g = batch * stride_gb + kv_head.to(tl.int64) * stride_gh + first_key.to(tl.int64) * stride_gn
    offsets = wide_n * stride_gn + wide_d * stride_gd
    tl.store(dk_ptr + start_g + offsets, (dk * scale).to(dk_ptr.dtype.element_ty), mask=rows_in)
    tl.store(dv_ptr + start_g + offsets, dv.to(dv_ptr.dtype.element_ty), mask=rows_in)


@triton.jit
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_dom, stride_dod,
    stride_gb, stride_gh, stride_gm, stride_gd,
    q_heads, group, seq_q, seq_k, scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, OFFSET_DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: dQ of BLOCK_M query rows of one (batch, query head), over the keys that they see."""
    tiles = tl.cdiv(seq_q, BLOCK_M)
    program = tl.program_id(0)
    tile = tiles - 1 - program % tiles
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
    do_base = do_ptr + batch * stride_dob + head.to(tl.int64) * stride_doh
    k_base = k_ptr + batch * stride_kb + kv_head * stride_kh
    v_base = v_ptr + batch * stride_vb + kv_head * stride_vh
    row_base = (batch * q_heads + head) * seq_q
    q = _load_rows(q_base, first_row, stride_qm, wide_m * stride_qm + wide_d * stride_qd, columns_in, rows_m, seq_q)
    do_offsets = wide_m * stride_dom + wide_d * stride_dod
    do = _load_rows(do_base, first_row, stride_dom, do_offsets, columns_in, rows_m, seq_q)
    lse = _load_lse(lse_ptr + row_base, first_row, rows_m, seq_q)
    delta = tl.load(delta_ptr + row_base + first_row + rows_m, mask=first_row + rows_m < seq_q, other=0.0)
    k_offsets = wide_n * stride_kn + wide_d * stride_kd
    v_offsets = wide_n * stride_vn + wide_d * stride_vd

    diagonal = seq_k - seq_q
    stop = seq_k
    if CAUSAL:
        last_row = tl.minimum(first_row + BLOCK_M, seq_q) - 1
        stop = tl.maximum(tl.minimum(last_row + diagonal + 1, seq_k), 0)

    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start_n in range(0, stop, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = _load_rows(k_base, start_n, stride_kn, k_offsets, columns_in, rows_n, seq_k)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2  # (BLOCK_M, BLOCK_N)
        # A key past the end is zero and adds nothing to dQ, but exp2(0 - LSE) overflows where the LSE is far below 0.
        visible = (start_n + rows_n < seq_k)[None, :]
        if CAUSAL:
            visible = visible & (start_n + rows_n[None, :] <= first_row + rows_m[:, None] + diagonal)
        p = tl.exp2(tl.where(visible, s, float("-inf")) - lse[:, None])
        v = _load_rows(v_base, start_n, stride_vn, v_offsets, columns_in, rows_n, seq_k)
        dp = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)  # (BLOCK_M, BLOCK_D)

    start_g = batch * stride_gb + head.to(tl.int64) * stride_gh + first_row.to(tl.int64) * stride_gm
    rows_in = (first_row + rows_m < seq_q)[:, None] & columns_in
    out = (dq * scale).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + start_g + wide_m * stride_gm + wide_d * stride_gd, out, mask=rows_in)


# END SOLUTION


class Tiles(NamedTuple):
    """Launch configuration: a tile of `rows` owned by a program, `step` rows a turn of its loop."""

    rows: int
    step: int
    warps: int
    stages: int


def choose_tiles(block_d: int, dtype: torch.dtype, capability: tuple[int, int]) -> tuple[Tiles, Tiles, Tiles]:
    """Tiles of the forward, the dK/dV and the dQ kernel for a padded head dimension on a compute capability.

    The dK/dV kernel holds K, V and two accumulators; the dQ kernel holds Q, dO and one. Cards of capability 8.6 and 8.9
    give a block 99 KB of shared memory, 8.0 gives 163 KB, 9.0 gives 227 KB; float32 takes twice as much of everything.
    """
    # BEGIN SOLUTION
    # STARTER: return Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2)
    if dtype == torch.float32:
        small = Tiles(32, 32, 8, 2)
        return small, small, small
    if capability[0] == 9:
        return Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 3), Tiles(128, 64, 8, 2)
    return Tiles(128, 64, 8, 2), Tiles(64, 32, 8, 2), Tiles(64, 32, 8, 2)
    # END SOLUTION


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"flash_attention: {message}")


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError naming the requirement and the shapes that break it."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    _require(q.dim() == k.dim() == v.dim() == 4, f"expected (batch, heads, seqlen, head_dim), got {shapes}")
    _require(k.shape == v.shape and q.shape[0] == k.shape[0], f"batch and K/V shapes must agree, got {shapes}")
    _require(q.shape[3] == k.shape[3] and 16 <= q.shape[3] <= 128, f"head_dim must agree and be 16…128, got {shapes}")
    _require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, f"q heads must be a multiple of kv heads, got {shapes}")
    _require(q.dtype == k.dtype == v.dtype, f"one dtype expected, got {q.dtype}, {k.dtype}, {v.dtype}")
    _require(q.dtype in (torch.float16, torch.bfloat16, torch.float32), f"dtype {q.dtype} is not supported")


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _tiles_for(q: torch.Tensor) -> tuple[Tiles, Tiles, Tiles]:
    capability = torch.cuda.get_device_capability(q.device) if q.device.type == "cuda" else (8, 0)
    return choose_tiles(max(16, triton.next_power_of_2(q.shape[3])), q.dtype, capability)


def _constants(head_dim: int, causal: bool, dtype: torch.dtype, *tensors: torch.Tensor) -> dict[str, Any]:
    """Compile-time arguments that the kernels share.

    Offsets inside a tile of at most 128 rows fit 32 bits unless a stride is huge; a tile's own start is always 64-bit.
    """
    reach = max(128 * max(tensor.stride(2), tensor.stride(3)) for tensor in tensors)
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "CAUSAL": causal,
        "OFFSET_DTYPE": tl.int64 if 2 * reach >= INT32_LIMIT else tl.int32,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }


def _scale_or_default(scale: float | None, head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim) if scale is None else float(scale)


def attention_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query row over the keys that it may see, and what the backward needs of it.

    Args:
        q: (batch, q_heads, seq_q, head_dim), any strides.
        k, v: (batch, kv_heads, seq_k, head_dim), any strides.
        causal: row i sees keys j <= i + seq_k - seq_q (bottom-right alignment).
        scale: factor on the scores; None means 1/sqrt(head_dim).

    Returns:
        o: like q in shape and dtype; 0 in rows that see no key.
        lse: (batch, q_heads, seq_q) float32, natural log; -inf in rows that see no key.

    Raises:
        ValueError: shapes or dtypes that don't go together.
    """
    _check_inputs(q, k, v)
    # BEGIN SOLUTION
    # STARTER: # TODO: allocate o and lse, launch one program a query tile.
    # STARTER: raise NotImplementedError("TODO: launch _forward_kernel")
    batch, q_heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, q_heads, seq_q), dtype=torch.float32, device=q.device)
    tiles, _, _ = _tiles_for(q)
    grid = (batch * q_heads * triton.cdiv(seq_q, tiles.rows),)
    with _on_device(q.device):
        _forward_kernel[grid](
            q, k, v, o, lse,
            *q.stride(), *k.stride(), *v.stride(), *o.stride(),
            q_heads, q_heads // kv_heads, seq_q, seq_k, _scale_or_default(scale, head_dim) * LOG2_E.value,
            BLOCK_M=tiles.rows, BLOCK_N=tiles.step, num_warps=tiles.warps, num_stages=tiles.stages,
            **_constants(head_dim, causal, q.dtype, q, k, v),
        )  # fmt: skip
    return o, lse
    # END SOLUTION


def attention_backward(
    grad_o: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of sum(grad_o * O) by q, k and v.

    Args:
        grad_o: like q in shape and dtype, any strides (0 too: the gradient of a sum is one expanded number).
        q, k, v, causal, scale: as in the forward.
        o, lse: what the forward returned.

    Returns:
        dq, dk, dv: like q, k and v in shape and dtype. dk and dv are summed over the query heads of a group. Rows that
        see no key have dq = 0 and add nothing to dk and dv.

    Raises:
        ValueError: shapes or dtypes that don't go together.
    """
    _check_inputs(q, k, v)
    # BEGIN SOLUTION
    # STARTER: # TODO: Delta first, then one launch for dK and dV and one for dQ.
    # STARTER: raise NotImplementedError("TODO: launch _delta_kernel, _dk_dv_kernel and _dq_kernel")
    batch, q_heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    group = q_heads // kv_heads
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    delta = torch.empty((batch, q_heads, seq_q), dtype=torch.float32, device=q.device)
    lse = lse.contiguous()
    scale = _scale_or_default(scale, head_dim)
    constants = _constants(head_dim, causal, q.dtype, q, k, v, o, grad_o)
    _, for_dk_dv, for_dq = _tiles_for(q)
    shared = {name: constants[name] for name in ("HEAD_DIM", "BLOCK_D", "OFFSET_DTYPE")}
    strides = (*q.stride(), *k.stride(), *v.stride(), *grad_o.stride())
    with _on_device(q.device):
        _delta_kernel[(batch * q_heads * triton.cdiv(seq_q, 32),)](
            o, grad_o, delta, *o.stride(), *grad_o.stride(), q_heads, seq_q, BLOCK_M=32, num_warps=4, **shared
        )
        _dk_dv_kernel[(batch * kv_heads * triton.cdiv(seq_k, for_dk_dv.rows),)](
            q, k, v, grad_o, lse, delta, dk, dv, *strides, *dk.stride(),
            kv_heads, group, seq_q, seq_k, scale, scale * LOG2_E.value,
            BLOCK_N=for_dk_dv.rows, BLOCK_M=for_dk_dv.step,
            num_warps=for_dk_dv.warps, num_stages=for_dk_dv.stages, **constants,
        )  # fmt: skip
        _dq_kernel[(batch * q_heads * triton.cdiv(seq_q, for_dq.rows),)](
            q, k, v, grad_o, lse, delta, dq, *strides, *dq.stride(),
            q_heads, group, seq_q, seq_k, scale, scale * LOG2_E.value,
            BLOCK_M=for_dq.rows, BLOCK_N=for_dq.step,
            num_warps=for_dq.warps, num_stages=for_dq.stages, **constants,
        )  # fmt: skip
    return dq, dk, dv
    # END SOLUTION


class FlashAttention(torch.autograd.Function):
    """Connects the two passes to autograd: saves q, k, v, O and the LSE, never P."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
    ) -> torch.Tensor:
        # BEGIN SOLUTION
        # STARTER: raise NotImplementedError("TODO: run the forward, save what the backward needs")
        o, lse = attention_forward(q, k, v, causal=causal, scale=scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        return o
        # END SOLUTION

    @staticmethod
    def backward(ctx: Any, grad_o: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # BEGIN SOLUTION
        # STARTER: raise NotImplementedError("TODO: one gradient for each argument of forward")
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = attention_backward(grad_o, q, k, v, o, lse, causal=ctx.causal, scale=ctx.scale)
        return dq, dk, dv, None, None
        # END SOLUTION


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Differentiable attention; arguments as in `attention_forward`. Returns O."""
    return FlashAttention.apply(q, k, v, causal, scale)


# kept-from-students-2dae0a1f2f3d9f29

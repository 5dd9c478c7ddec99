"""One decode step over a paged KV cache in one Triton launch and a merge: rotary embedding and append happen inside.

    a = p * theta,  theta_i = base^(-2i / rotary_dim)                     p = context_lens[b], the new token's position
    (y1, y2) = (x1 cos a - x2 sin a, x2 cos a + x1 sin a)                 of each pair of q and of the new k
    o_s = softmax(scale * y_q K_s^T) V_s,  lse_s = log(sum(exp(…)))       split s of the keys; the last one has the new
    o = sum_s exp(lse_s - lse) o_s,  lse = log(sum_s exp(lse_s))          the merge

Tensors: q is (batch, q_heads, head_dim), the new k and v (batch, kv_heads, head_dim), caches (pages, page_size,
kv_heads, head_dim); token j of sequence b is in slot j % page_size of page block_table[b, j // page_size]. Query head h
reads kv head h // (q_heads / kv_heads). Scores, statistics, accumulators and partial results are float32; inside the
kernels scores are in base 2 (times log2 e), outside LSE is a natural log. Rotated q and k are rounded to the working
dtype, as they'd be in memory, so the error is lab 08's: that of rounding P, 2^-11 (float16) or 2^-8 (bfloat16) of |V|.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MAX_SPLITS = 128
PROGRAMS_AN_SM = {(8, 0): (7, 3), (8, 6): (4, 2), (8, 9): (4, 2), (9, 0): (7, 4)}
"""Programs of the decode kernel that fit on an SM, by compute capability, for head_dim up to 64 and beyond: what the
registers and the shared memory of the compiled 16-bit kernel leave room for (README.md has the table)."""


@triton.jit
def _turn(cos_ptr, sin_ptr, position, columns, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """(which columns turn, each one's partner in its pair, cos, signed sin): four (BLOCK_D,) vectors.

    Angles come from tables: sines computed here would cost their slow path for large arguments, and a stack for it.
    """
    turned = columns < ROTARY_DIM
    if INTERLEAVED:
        partner, pair = columns ^ 1, columns // 2
        first = columns % 2 == 0
    else:
        first = columns < ROTARY_DIM // 2
        partner = tl.where(first, columns + ROTARY_DIM // 2, columns - ROTARY_DIM // 2)
        pair = columns % (ROTARY_DIM // 2)
    row = position.to(tl.int64) * (ROTARY_DIM // 2) + pair
    cosine = tl.load(cos_ptr + row, mask=turned, other=1.0)
    sine = tl.load(sin_ptr + row, mask=turned, other=0.0)
    return turned, partner, cosine, tl.where(first, -sine, sine)


@triton.jit
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lens_ptr, cos_ptr, sin_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qd, stride_nkb, stride_nkh, stride_nkd, stride_nvb, stride_nvh, stride_nvd,
    stride_kp, stride_ks, stride_kh, stride_kd, stride_vp, stride_vs, stride_vh, stride_vd,
    stride_tb, stride_tp, stride_l, kv_heads, splits, scale_log2,
    FUSED: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, PARTIAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: split `split` of the keys of one (sequence, kv head) against the GROUP query heads that share it.

    New: with FUSED, q comes unrotated and turns in registers; the program of the last split turns the new k, starts
    its softmax from that key alone, and writes k and v to their slot. Nobody reads that slot in this launch, so no
    program waits for another. Without FUSED this is lab 08's kernel: q is rotated and the cache holds all tokens.
    """
    program = tl.program_id(0)
    split = program % splits  # splits of one head are neighbours
    kv_head = (program // splits) % kv_heads
    batch = ((program // splits) // kv_heads).to(tl.int64)
    length = tl.load(lens_ptr + batch * stride_l).to(tl.int32)

    # Whole tiles a split: no key belongs to two of them. Splits past the last tile are empty.
    tiles_a_split = tl.cdiv(tl.cdiv(length, BLOCK_N), splits)
    start = split * tiles_a_split * BLOCK_N
    stop = tl.minimum(start + tiles_a_split * BLOCK_N, length)

    rows = tl.arange(0, BLOCK_H)
    columns = tl.arange(0, BLOCK_D)
    inside = columns < HEAD_DIM
    rows_in = (rows < GROUP)[:, None]
    heads = (kv_head * GROUP + rows).to(tl.int64)
    q_rows = q_ptr + batch * stride_qb + heads[:, None] * stride_qh
    q = tl.load(q_rows + columns[None, :] * stride_qd, mask=rows_in & inside[None, :], other=0.0)  # (BLOCK_H, BLOCK_D)
    m_i = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_H,), tl.float32)
    acc = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    if FUSED:
        turned, partner, cosine, sine = _turn(cos_ptr, sin_ptr, length, columns, ROTARY_DIM, INTERLEAVED)
        others = tl.load(q_rows + partner[None, :] * stride_qd, mask=rows_in & turned[None, :], other=0.0)
        spun = q.to(tl.float32) * cosine[None, :] + others.to(tl.float32) * sine[None, :]
        q = tl.where(turned[None, :], spun.to(q.dtype), q)

        # The last split has the fewest tiles: it takes the new token.
        owner = split == splits - 1
        k_new = k_ptr + batch * stride_nkb + kv_head.to(tl.int64) * stride_nkh
        v_new = v_ptr + batch * stride_nvb + kv_head.to(tl.int64) * stride_nvh
        own = tl.load(k_new + columns * stride_nkd, mask=inside & owner, other=0.0)
        pair = tl.load(k_new + partner * stride_nkd, mask=turned & owner, other=0.0)
        key = tl.where(turned, (own.to(tl.float32) * cosine + pair.to(tl.float32) * sine).to(own.dtype), own)
        value = tl.load(v_new + columns * stride_nvd, mask=inside & owner, other=0.0)
        page = tl.load(table_ptr + batch * stride_tb + length // PAGE_SIZE * stride_tp, mask=owner, other=0)
        place = page.to(tl.int64)
        slot = length % PAGE_SIZE
        k_slot = k_cache_ptr + place * stride_kp + slot * stride_ks + kv_head.to(tl.int64) * stride_kh
        v_slot = v_cache_ptr + place * stride_vp + slot * stride_vs + kv_head.to(tl.int64) * stride_vh
        tl.store(k_slot + columns * stride_kd, key, mask=inside & owner)
        tl.store(v_slot + columns * stride_vd, value, mask=inside & owner)
        score = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale_log2  # (BLOCK_H,)
        m_i = tl.where(owner, score, m_i)
        l_i = tl.where(owner, 1.0, l_i)
        acc += value.to(tl.float32)[None, :]  # zeros where this isn't the owner

    k_base = k_cache_ptr + kv_head.to(tl.int64) * stride_kh + columns[None, :] * stride_kd
    v_base = v_cache_ptr + kv_head.to(tl.int64) * stride_vh + columns[None, :] * stride_vd
    table_row = table_ptr + batch * stride_tb
    for start_n in range(start, stop, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        live = keys < stop
        # Table entries of pages that no key lives in are never read: they may hold anything.
        pages = tl.load(table_row + keys // PAGE_SIZE * stride_tp, mask=live, other=0).to(tl.int64)
        slots = keys % PAGE_SIZE
        # 64-bit before the product: page * stride passes 2^31 in a cache of a few GB.
        k_rows = (pages * stride_kp + slots * stride_ks)[:, None]
        v_rows = (pages * stride_vp + slots * stride_vs)[:, None]
        loaded = live[:, None] & inside[None, :]
        k = tl.load(k_base + k_rows, mask=loaded, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2  # (BLOCK_H, BLOCK_N), float32
        s = tl.where(live[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))  # finite: every tile of the loop holds a live key
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_base + v_rows, mask=loaded, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)  # (BLOCK_H, BLOCK_D)
        m_i = m_new

    # A split without keys has l_i = 0 and m_i = -inf: its O is 0 and its weight in the merge is 0.
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    lse = m_i + tl.log2(l_safe)
    if not PARTIAL:
        lse = lse * LN_2
    row = ((batch * kv_heads + kv_head) * GROUP + rows) * splits + split  # 64-bit, (BLOCK_H,)
    tl.store(lse_ptr + row, lse, mask=rows < GROUP)
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + row[:, None] * HEAD_DIM + columns[None, :], o, mask=rows_in & inside[None, :])


@triton.jit
def _merge_kernel(
    partial_ptr, partial_lse_ptr, o_ptr, lse_ptr, splits,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One program: the splits of one (sequence, query head), weighted by exp2 of their LSE."""
    head = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_D)
    inside = columns < HEAD_DIM
    indices = tl.arange(0, BLOCK_S)
    lses = tl.load(partial_lse_ptr + head * splits + indices, mask=indices < splits, other=float("-inf"))
    largest = tl.max(lses, 0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)  # no key in any split
    total = tl.sum(tl.exp2(lses - shift), 0)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for split in range(splits):
        lse = tl.load(partial_lse_ptr + head * splits + split)
        partial = partial_ptr + (head * splits + split) * HEAD_DIM + columns
        acc += tl.exp2(lse - shift) * tl.load(partial, mask=inside, other=0.0)
    safe = tl.where(total == 0.0, 1.0, total)
    tl.store(o_ptr + head * HEAD_DIM + columns, (acc / safe).to(o_ptr.dtype.element_ty), mask=inside)
    tl.store(lse_ptr + head, (largest + tl.log2(safe)) * LN_2)


class Tiles(NamedTuple):
    """Launch configuration of the decode kernel: BLOCK_N keys a tile, `warps` warps, `stages` tiles in flight."""

    block_n: int
    warps: int
    stages: int


def choose_tiles(dtype: torch.dtype) -> Tiles:
    """Lab 08's tiles: several blocks on an SM hide more latency than one that takes its whole shared memory."""
    if dtype == torch.float32:  # its products run on FMA units, and with four warps the operands spill
        return Tiles(32, 8, 2)
    return Tiles(64, 4, 3)


def splits_of_lab08(programs: int, tiles: int, sms: int) -> int:
    """Lab 08's rule: four programs an SM, and no split of less than four tiles."""
    return max(1, min(triton.cdiv(4 * sms, max(1, programs)), tiles // 4, MAX_SPLITS))


def splits_by_waves(programs: int, tiles: int, resident: int) -> int:
    """The split count whose waves finish first.

    `resident` programs run at once, so s splits take ceil(programs * s / resident) waves of ceil(tiles / s) tiles, and
    a split costs about two tiles beside them: filling the pipeline, and a partial result that the merge reads again. As
    in lab 08 no split has less than four tiles.
    Upstream's `num_splits_heuristic` (csrc/flash_attn/flash_api.cpp) looks at how full the last wave is instead.

    Args:
        programs: batch * kv_heads, the programs of one split. tiles: of the longest sequence that the table can hold.
    """
    most = max(1, min(tiles // 4, MAX_SPLITS))

    def cost(splits: int) -> int:
        return triton.cdiv(programs * splits, resident) * (triton.cdiv(tiles, splits) + 2)

    return min(range(1, most + 1), key=lambda splits: (cost(splits), splits))


def resident_programs(sms: int, capability: tuple[int, int], block_d: int) -> int:
    """How many programs of the decode kernel the device holds at once."""
    return sms * PROGRAMS_AN_SM.get(capability, (4, 2))[block_d > 64]


@lru_cache(maxsize=8)
def _tables(base: float, rotary_dim: int, length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position * theta, each (length, rotary_dim / 2) float32; made once a model, as weights are."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * base**-exponents
    return angles.cos(), angles.sin()


@lru_cache(maxsize=8)
def _one_page_each(batch: int, device: torch.device) -> torch.Tensor:
    """The block table of a contiguous cache: each sequence is one page."""
    return torch.arange(batch, dtype=torch.int32, device=device)[:, None]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"fused decode: {message}")


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _properties(device: torch.device) -> tuple[int, tuple[int, int]]:
    """(SMs, compute capability); an A100's where there is no GPU, so that the interpreter takes the same way."""
    if device.type != "cuda":
        return 108, (8, 0)
    return torch.cuda.get_device_properties(device).multi_processor_count, torch.cuda.get_device_capability(device)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Raise ValueError naming the requirement and the shapes that break it."""
    _require(q.dim() == 3 and k.dim() == 3 and k.shape == v.shape, "q, k, v must be (batch, heads, head_dim)")
    for name, cache in zip(("k_cache", "v_cache"), caches, strict=True):
        _require(
            cache.dim() == 4 and cache.shape[2:] == k.shape[1:] and cache.shape[3] == q.shape[2],
            f"{name} must be (pages, page_size, kv_heads, head_dim), got {tuple(cache.shape)} for k {tuple(k.shape)}",
        )
        _require(cache.dtype == q.dtype == k.dtype == v.dtype, f"{name}, q, k and v must have one dtype")
    _require(q.shape[1] % k.shape[1] == 0, f"{q.shape[1]} q heads aren't a multiple of {k.shape[1]} kv heads")
    _require(16 <= q.shape[2] <= 256, f"head_dim must be 16…256, got {q.shape[2]}")


def _attend(
    q: torch.Tensor,
    new: tuple[torch.Tensor, torch.Tensor],
    caches: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    lens: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    splits: int,
    options: dict[str, object],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the decode kernel and, where the keys are split, the merge."""
    batch, q_heads, head_dim = q.shape
    page_size, kv_heads = caches[0].shape[1], caches[0].shape[2]
    group, block_d, tiles = q_heads // kv_heads, max(16, triton.next_power_of_2(head_dim)), choose_tiles(q.dtype)
    o = torch.empty((batch, q_heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, q_heads), dtype=torch.float32, device=q.device)
    partial_o, partial_lse = o, lse
    if splits > 1:
        partial_o = torch.empty((batch, q_heads, splits, head_dim), dtype=torch.float32, device=q.device)
        partial_lse = torch.empty((batch, q_heads, splits), dtype=torch.float32, device=q.device)
    with _on_device(q.device):
        _decode_kernel[(batch * kv_heads * splits,)](
            q, *new, *caches, table, lens, *tables, partial_o, partial_lse,
            *q.stride(), *new[0].stride(), *new[1].stride(), *caches[0].stride(), *caches[1].stride(),
            *table.stride(), lens.stride(0), kv_heads, splits,
            GROUP=group, BLOCK_H=max(16, triton.next_power_of_2(group)), HEAD_DIM=head_dim, BLOCK_D=block_d,
            PAGE_SIZE=page_size, BLOCK_N=tiles.block_n, PARTIAL=splits > 1,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=tiles.warps, num_stages=tiles.stages, **options,
        )  # fmt: skip
        if splits > 1:
            _merge_kernel[(batch * q_heads,)](
                partial_o, partial_lse, o, lse, splits,
                HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_S=triton.next_power_of_2(splits), num_warps=2,
            )  # fmt: skip
    return o, lse


def fused_decode_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lab 08's `decode_step`, fused: rotate the new token's q and k, append k and v, attend over all tokens.

    Args:
        q: (batch, q_heads, head_dim), k, v: (batch, kv_heads, head_dim), the new token, not rotated yet, any strides.
        k_cache, v_cache: (pages, page_size, kv_heads, head_dim), any strides; the new token's slot is written.
        block_table: (batch, max_pages) int32 or int64, with a page for the new token of every sequence.
        context_lens: (batch,) int32 or int64, tokens before this one; not changed, the caller adds 1.
        base, interleaved, rotary_dim: of the rotary embedding; None turns all of head_dim.
        scale: factor on the scores; None means 1/sqrt(head_dim). num_splits: None lets `splits_by_waves` decide.

    Returns:
        (o, lse) of the new token: like q, and (batch, q_heads) float32, natural log.

    Raises:
        ValueError: shapes or dtypes that don't go together.
    """
    _check(q, k, v, (k_cache, v_cache))
    turned = q.shape[2] if rotary_dim is None else rotary_dim
    _require(2 <= turned <= q.shape[2] and turned % 2 == 0, f"rotary_dim must be even, 2…{q.shape[2]}, got {turned}")
    longest = block_table.shape[1] * k_cache.shape[1]
    if num_splits is None:
        resident = resident_programs(*_properties(q.device), max(16, triton.next_power_of_2(q.shape[2])))
        tiles = triton.cdiv(longest, choose_tiles(q.dtype).block_n)
        num_splits = splits_by_waves(q.shape[0] * k.shape[1], tiles, resident)
    scale_log2 = (1.0 / math.sqrt(q.shape[2]) if scale is None else float(scale)) * LOG2_E.value
    tables = _tables(float(base), turned, longest, q.device)
    options = {"scale_log2": scale_log2, "FUSED": True, "ROTARY_DIM": turned, "INTERLEAVED": interleaved}
    return _attend(q, (k, v), (k_cache, v_cache), block_table, context_lens, tables, num_splits, options)


def fused_step(
    q: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    *,
    rotary_base: float,
    rotary_dim: int,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`fused_decode_step` over a contiguous cache (batch, kv_heads, capacity, head_dim): each sequence is one page.

    Returns:
        o (batch, q_heads, 1, head_dim) and lse (batch, q_heads, 1).
    """
    o, lse = fused_decode_step(
        q[:, :, 0], k_new[:, :, 0], v_new[:, :, 0], k_cache.transpose(1, 2), v_cache.transpose(1, 2),
        _one_page_each(q.shape[0], q.device), cache_seqlens,
        base=rotary_base, interleaved=interleaved, rotary_dim=rotary_dim,
    )  # fmt: skip
    return o[:, :, None], lse[:, :, None]


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Lab 08's `apply_rope` of one token: x (batch, heads, head_dim), cos and sin (batch, 1, rotary_dim / 2)."""
    dim = 2 * cos.shape[2]
    turned = x[..., :dim].to(torch.float32)
    halves = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.split(dim // 2, dim=-1)
    pair = (halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin)
    joined = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([joined.to(x.dtype), x[..., dim:]], dim=-1)


def separate_steps(
    q: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    *,
    rotary_base: float,
    rotary_dim: int,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What this replaces, arguments and results as `fused_step`'s: rotate in PyTorch, append, then lab 08's kernels."""
    q, k_new, v_new = q[:, :, 0], k_new[:, :, 0], v_new[:, :, 0]
    tables = _tables(float(rotary_base), rotary_dim, k_cache.shape[2], q.device)
    cos, sin = (x[cache_seqlens][:, None] for x in tables)
    q, k_new = (_rotated(x, cos, sin, interleaved) for x in (q, k_new))
    table = _one_page_each(q.shape[0], q.device)
    k_cache[table[:, 0], :, cache_seqlens] = k_new
    v_cache[table[:, 0], :, cache_seqlens] = v_new
    paged = (k_cache.transpose(1, 2), v_cache.transpose(1, 2))
    tiles = triton.cdiv(k_cache.shape[2], choose_tiles(q.dtype).block_n)
    splits = splits_of_lab08(q.shape[0] * k_new.shape[1], tiles, _properties(q.device)[0])
    options = {
        "scale_log2": LOG2_E.value / math.sqrt(q.shape[2]), "FUSED": False, "ROTARY_DIM": 2, "INTERLEAVED": False,
    }  # fmt: skip
    o, lse = _attend(q, (k_new, v_new), paged, table, cache_seqlens + 1, tables, splits, options)
    return o[:, :, None], lse[:, :, None]


# kept-from-students-370508fdb619f790

"""Decoding over a paged KV cache in Triton: append a token's K and V, attend over all keys so far, merge the splits.

    o_s = softmax(scale * q K_s^T) V_s,  lse_s = log(sum(exp(scale * q K_s^T)))          one split s of the keys
    lse = log(sum_s exp(lse_s)),         o = sum_s exp(lse_s - lse) o_s                  the merge

One query row a sequence: q is (batch, q_heads, head_dim). K and V lie in caches (pages, page_size, kv_heads, head_dim);
token j of sequence b is in slot j % page_size of page block_table[b, j // page_size]. Query head h reads kv head
h // (q_heads / kv_heads). The query heads of one kv head are rows of one tile, so each byte of K and V is loaded once.
Scores, statistics, accumulators and the partial results of the splits are float32; inside the kernels scores are in
base 2 (times log2 e), outside LSE is a natural log. The expected error is that of rounding P: 2^-11 of the largest |V|
in float16, 2^-8 in bfloat16, 2^-22 in float32.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from rope import apply_rope

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
MAX_SPLITS = 128


# BEGIN SOLUTION
# STARTER: @triton.jit
# STARTER: def _append_kernel():
# STARTER:     """TODO: one program writes one kv head of one sequence's new token into its slot, K and V."""
# STARTER:
# STARTER:
# STARTER: @triton.jit
# STARTER: def _decode_kernel():
# STARTER:     """TODO: one program owns a split of the keys of one (sequence, kv head), for all its query heads."""
# STARTER:
# STARTER:
# STARTER: @triton.jit
# STARTER: def _merge_kernel():
# STARTER:     """TODO: one program merges the float32 partials of one (sequence, query head)."""
@triton.jit
def _append_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lens_ptr,
    stride_kb, stride_kh, stride_kd, stride_vb, stride_vh, stride_vd,
    stride_kcp, stride_kcs, stride_kch, stride_kcd, stride_vcp, stride_vcs, stride_vch, stride_vcd,
    stride_tb, stride_tp, stride_l, kv_heads,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one kv head of one sequence's new token, which goes to position context_lens[b]."""
    program = tl.program_id(0)
    batch = (program // kv_heads).to(tl.int64)
    head = (program % kv_heads).to(tl.int64)
    position = tl.load(lens_ptr + batch * stride_l).to(tl.int64)
    page = tl.load(table_ptr + batch * stride_tb + position // PAGE_SIZE * stride_tp).to(tl.int64)
    slot = position % PAGE_SIZE
    columns = tl.arange(0, BLOCK_D)
    inside = columns < HEAD_DIM
    k = tl.load(k_ptr + batch * stride_kb + head * stride_kh + columns * stride_kd, mask=inside)
    v = tl.load(v_ptr + batch * stride_vb + head * stride_vh + columns * stride_vd, mask=inside)
    # Page -1: this row of the batch has no page, and nothing is written for it.
    written = inside & (page >= 0)
    k_slot = k_cache_ptr + page * stride_kcp + slot * stride_kcs + head * stride_kch
    v_slot = v_cache_ptr + page * stride_vcp + slot * stride_vcs + head * stride_vch
    tl.store(k_slot + columns * stride_kcd, k, mask=written)
    tl.store(v_slot + columns * stride_vcd, v, mask=written)


@triton.jit
def _decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lens_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qd,
    stride_kp, stride_ks, stride_kh, stride_kd, stride_vp, stride_vs, stride_vh, stride_vd,
    stride_tb, stride_tp, stride_l, kv_heads, splits, scale_log2,
    GROUP: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, PARTIAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: split `split` of the keys of one (sequence, kv head) against the GROUP query heads that share it.

    New: the rows of the tile are query heads, not query positions, and each key's address comes from the block table.
    O and LSE go to (batch, q_heads, splits, HEAD_DIM) and (batch, q_heads, splits): float32 in base 2 when PARTIAL,
    the result itself otherwise.
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
    rows_in = (rows < GROUP)[:, None]
    columns_in = (columns < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    q_tile = q_ptr + batch * stride_qb + heads.to(tl.int64)[:, None] * stride_qh + columns[None, :] * stride_qd
    q = tl.load(q_tile, mask=rows_in & columns_in, other=0.0)  # (BLOCK_H, BLOCK_D)

    k_base = k_cache_ptr + kv_head.to(tl.int64) * stride_kh + columns[None, :] * stride_kd
    v_base = v_cache_ptr + kv_head.to(tl.int64) * stride_vh + columns[None, :] * stride_vd
    table_row = table_ptr + batch * stride_tb
    m_i = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_H,), tl.float32)
    acc = tl.zeros((BLOCK_H, BLOCK_D), tl.float32)
    for start_n in range(start, stop, BLOCK_N):
        keys = start_n + tl.arange(0, BLOCK_N)
        live = keys < stop
        # Table entries of pages that no key lives in are never read: they may hold anything.
        pages = tl.load(table_row + keys // PAGE_SIZE * stride_tp, mask=live, other=0).to(tl.int64)
        slots = keys % PAGE_SIZE
        # 64-bit before the product: page * stride passes 2^31 in a cache of a few GB.
        k_rows = (pages * stride_kp + slots * stride_ks)[:, None]
        v_rows = (pages * stride_vp + slots * stride_vs)[:, None]
        loaded = live[:, None] & columns_in
        k = tl.load(k_base + k_rows, mask=loaded, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale_log2  # (BLOCK_H, BLOCK_N), float32
        s = tl.where(live[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))  # finite: every tile of the loop holds a live key
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        # Unused slots may hold NaN, and 0 * NaN is NaN: they must load as 0 here too.
        v = tl.load(v_base + v_rows, mask=loaded, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)  # (BLOCK_H, BLOCK_D)
        m_i = m_new

    # An empty split (or sequence) has l_i = 0 and m_i = -inf: O = 0 and LSE = -inf.
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    lse = m_i + tl.log2(l_safe)
    if not PARTIAL:
        lse = lse * LN_2
    row = ((batch * kv_heads + kv_head) * GROUP + rows) * splits + split  # 64-bit, (BLOCK_H,)
    tl.store(lse_ptr + row, lse, mask=rows < GROUP)
    o = (acc / l_safe[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptr + row[:, None] * HEAD_DIM + columns[None, :], o, mask=rows_in & columns_in)


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


# END SOLUTION


class Tiles(NamedTuple):
    """Launch configuration of the decode kernel: BLOCK_N keys a tile, `warps` warps, `stages` tiles in flight."""

    block_n: int
    warps: int
    stages: int


def choose_tiles(block_d: int, dtype: torch.dtype, capability: tuple[int, int]) -> Tiles:
    """Tiles for a padded head dimension on a device of this compute capability.

    Shared memory holds `stages` tiles each of K and V: 99 KB a block on cards of capability 8.6 and 8.9, 163 KB on
    8.0, 227 KB on 9.0. Several blocks on an SM hide more latency than one that takes it all.
    """
    # BEGIN SOLUTION
    # STARTER: return Tiles(32, 4, 2)
    if dtype == torch.float32:  # its products run on FMA units, and with four warps the operands spill
        return Tiles(32, 8, 2)
    return Tiles(64, 4, 3)
    # END SOLUTION


def choose_splits(sequences_x_heads: int, max_len: int, block_n: int, sms: int) -> int:
    """How many splits fill the GPU when one program a (sequence, kv head) doesn't.

    Args:
        sequences_x_heads: batch * kv_heads, the programs of one split.
        max_len: the longest context that the block table can hold; the lengths themselves are on the device.
        block_n: keys a tile.
        sms: multiprocessors of the device.

    Returns:
        1 … MAX_SPLITS.
    """
    # BEGIN SOLUTION
    # STARTER: return 1
    # Four programs an SM keep enough loads in flight; a split of less than four tiles costs more than it brings.
    wanted = triton.cdiv(4 * sms, max(1, sequences_x_heads))
    worth = max_len // (4 * block_n)
    return max(1, min(wanted, worth, MAX_SPLITS))
    # END SOLUTION


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"paged decode: {message}")


def _check_cache(
    k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor, context_lens: torch.Tensor, batch: int
) -> None:
    """Raise ValueError naming the requirement and the shapes that break it."""
    _require(
        k_cache.dim() == 4 and k_cache.shape == v_cache.shape,
        f"caches must be (pages, page_size, kv_heads, head_dim) alike, got {tuple(k_cache.shape)}, "
        f"{tuple(v_cache.shape)}",
    )
    _require(
        block_table.dim() == 2 and block_table.shape[0] == batch and context_lens.shape == (batch,),
        f"block_table (batch, max_pages) and context_lens (batch,) must match batch {batch}, got "
        f"{tuple(block_table.shape)}, {tuple(context_lens.shape)}",
    )
    for name, tensor in (("block_table", block_table), ("context_lens", context_lens)):
        _require(tensor.dtype in (torch.int32, torch.int64), f"{name} must be int32 or int64, got {tensor.dtype}")


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def append_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    """Write each sequence's new token into the caches, in place, at position context_lens[b].

    Args:
        k, v: (batch, kv_heads, head_dim), the new token of each sequence (K already rotated), any strides.
        k_cache, v_cache: (pages, page_size, kv_heads, head_dim), any strides; changed.
        block_table: (batch, max_pages) int32 or int64. Where the page of the new position is -1, nothing is written.
        context_lens: (batch,) int32 or int64, tokens before this one; not changed, the caller adds 1.

    Raises:
        ValueError: shapes or dtypes that don't go together.
    """
    batch, kv_heads, head_dim = k.shape
    _check_cache(k_cache, v_cache, block_table, context_lens, batch)
    _require(k.shape == v.shape and k_cache.shape[2:] == (kv_heads, head_dim), "k, v and the caches must agree")
    # BEGIN SOLUTION
    # STARTER: # TODO: launch one program a (sequence, kv head).
    # STARTER: raise NotImplementedError("TODO: launch _append_kernel")
    if k.numel() == 0:
        return
    with _on_device(k.device):
        _append_kernel[(batch * kv_heads,)](
            k, v, k_cache, v_cache, block_table, context_lens,
            *k.stride(), *v.stride(), *k_cache.stride(), *v_cache.stride(),
            *block_table.stride(), context_lens.stride(0), kv_heads,
            PAGE_SIZE=k_cache.shape[1], HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1,
        )  # fmt: skip
    # END SOLUTION


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one query row a sequence over the first context_lens[b] tokens of its cache.

    Args:
        q: (batch, q_heads, head_dim), float16, bfloat16 or float32, any strides.
        k_cache, v_cache: (pages, page_size, kv_heads, head_dim) of q's dtype, any strides.
        block_table: (batch, max_pages) int32 or int64. Only the first ⌈context_lens[b] / page_size⌉ entries of a row
            mean anything.
        context_lens: (batch,) int32 or int64, tokens to attend to; 0 is allowed. Never read on the host.
        scale: factor on the scores; None means 1/sqrt(head_dim).
        num_splits: into how many runs the keys are split; None lets `choose_splits` decide.

    Returns:
        o: like q in shape and dtype; 0 for an empty sequence.
        lse: (batch, q_heads) float32, natural log; -inf for an empty sequence.

    Raises:
        ValueError: shapes, dtypes or splits that don't go together.
    """
    _require(q.dim() == 3, f"q must be (batch, q_heads, head_dim), got {tuple(q.shape)}")
    batch, q_heads, head_dim = q.shape
    _check_cache(k_cache, v_cache, block_table, context_lens, batch)
    kv_heads = k_cache.shape[2]
    _require(kv_heads > 0 and q_heads % kv_heads == 0, f"{q_heads} q heads aren't a multiple of {kv_heads} kv heads")
    _require(k_cache.shape[3] == head_dim and q.dtype == k_cache.dtype == v_cache.dtype, "q and caches must agree")
    _require(num_splits is None or 1 <= num_splits <= MAX_SPLITS, f"num_splits must be 1…{MAX_SPLITS}")
    # BEGIN SOLUTION
    # STARTER: # TODO: allocate o and lse, choose tiles and splits, launch the decode kernel, and merge if split.
    # STARTER: raise NotImplementedError("TODO: launch _decode_kernel and _merge_kernel")
    o = torch.empty((batch, q_heads, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, q_heads), dtype=torch.float32, device=q.device)
    if q.numel() == 0:
        return o, lse
    page_size, on_gpu = k_cache.shape[1], q.device.type == "cuda"
    block_d = max(16, triton.next_power_of_2(head_dim))
    tiles = choose_tiles(block_d, q.dtype, torch.cuda.get_device_capability(q.device) if on_gpu else (8, 0))
    if num_splits is None:
        sms = torch.cuda.get_device_properties(q.device).multi_processor_count if on_gpu else 108
        num_splits = choose_splits(batch * kv_heads, block_table.shape[1] * page_size, tiles.block_n, sms)
    group = q_heads // kv_heads
    partial_o, partial_lse = o, lse
    if num_splits > 1:
        partial_o = torch.empty((batch, q_heads, num_splits, head_dim), dtype=torch.float32, device=q.device)
        partial_lse = torch.empty((batch, q_heads, num_splits), dtype=torch.float32, device=q.device)
    scale_log2 = (1.0 / math.sqrt(head_dim) if scale is None else float(scale)) * LOG2_E.value
    with _on_device(q.device):
        _decode_kernel[(batch * kv_heads * num_splits,)](
            q, k_cache, v_cache, block_table, context_lens, partial_o, partial_lse,
            *q.stride(), *k_cache.stride(), *v_cache.stride(), *block_table.stride(), context_lens.stride(0),
            kv_heads, num_splits, scale_log2,
            GROUP=group, BLOCK_H=max(16, triton.next_power_of_2(group)), HEAD_DIM=head_dim, BLOCK_D=block_d,
            PAGE_SIZE=page_size, BLOCK_N=tiles.block_n, PARTIAL=num_splits > 1,
            PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip
        if num_splits > 1:
            _merge_kernel[(batch * q_heads,)](
                partial_o, partial_lse, o, lse, num_splits,
                HEAD_DIM=head_dim, BLOCK_D=block_d, BLOCK_S=triton.next_power_of_2(num_splits), num_warps=2,
            )  # fmt: skip
    return o, lse
    # END SOLUTION


def decode_step(
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
    """One step of decoding: rotate the new token's q and k, append k and v, attend over all tokens with the new one.

    Args:
        q: (batch, q_heads, head_dim), k, v: (batch, kv_heads, head_dim), the new token, not rotated yet.
        k_cache, v_cache, block_table: as `append_kv` takes them, each new position with a page; the caches are changed.
        context_lens: (batch,) tokens before this one; not changed, the caller adds 1.
        base, interleaved, rotary_dim: as `apply_rope` takes them. scale, num_splits: as `paged_decode` takes them.

    Returns:
        (o, lse) of the new token.
    """
    # BEGIN SOLUTION
    # STARTER: # TODO: which position does the new token have, and how many tokens does it attend to?
    # STARTER: raise NotImplementedError("TODO: apply_rope, append_kv, paged_decode")
    positions = context_lens[:, None]
    q = apply_rope(q[:, :, None], positions, base, interleaved, rotary_dim)[:, :, 0]
    k = apply_rope(k[:, :, None], positions, base, interleaved, rotary_dim)[:, :, 0]
    append_kv(k, v, k_cache, v_cache, block_table, context_lens)
    return paged_decode(q, k_cache, v_cache, block_table, context_lens + 1, scale=scale, num_splits=num_splits)
    # END SOLUTION


# kept-from-students-5ed069fdcc0c8754

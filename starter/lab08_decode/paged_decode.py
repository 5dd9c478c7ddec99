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


@triton.jit
def _append_kernel():
    """TODO: one program writes one kv head of one sequence's new token into its slot, K and V."""


@triton.jit
def _decode_kernel():
    """TODO: one program owns a split of the keys of one (sequence, kv head), for all its query heads."""


@triton.jit
def _merge_kernel():
    """TODO: one program merges the float32 partials of one (sequence, query head)."""


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
    return Tiles(32, 4, 2)


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
    return 1


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
    # TODO: launch one program a (sequence, kv head).
    raise NotImplementedError("TODO: launch _append_kernel")


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
    # TODO: allocate o and lse, choose tiles and splits, launch the decode kernel, and merge if split.
    raise NotImplementedError("TODO: launch _decode_kernel and _merge_kernel")


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
    # TODO: which position does the new token have, and how many tokens does it attend to?
    raise NotImplementedError("TODO: apply_rope, append_kv, paged_decode")

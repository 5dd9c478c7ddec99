"""Standard attention, FlashAttention-1 and FlashAttention-2 forward on a machine with two levels of memory.

Each function gets a machine (see machine.py) and leaves its result in the machine's HBM. One head, Q, K and V of shape
(N, d), scores Q K^T / sqrt(d). Only NumPy and the standard library.

Names: `row_max` (m), `row_sum` (l), `rescale` = exp(old maximum - new maximum).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def block_sizes(head_dim: int, sram_elements: int) -> tuple[int, int]:
    """(large, small): rows of the tile pair that stays in SRAM, and of the pair that streams past it.

    FlashAttention-1 has Bc = large, Br = small; FlashAttention-2 has Br = large, Bc = small.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: four tiles of head_dim columns must fit")
    large = max(1, sram_elements // (4 * head_dim))
    return large, min(large, head_dim)
    # END SOLUTION


def blocks(seq_len: int, size: int) -> list[tuple[int, int]]:
    """Row ranges [start, stop) of the blocks; the last one is ragged unless size divides seq_len."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: ceil(seq_len / size) ranges, none beyond seq_len")
    return [(start, min(start + size, seq_len)) for start in range(0, seq_len, size)]
    # END SOLUTION


# BEGIN SOLUTION
def hidden_by_mask(rows: tuple[int, int], cols: tuple[int, int], *, causal: bool) -> bool:
    """Whether no row of the block sees any key of the block: its last row comes before its first key."""
    return causal and rows[1] - 1 < cols[0]


def masked_scores(
    q: np.ndarray, k: np.ndarray, rows: tuple[int, int], cols: tuple[int, int], *, causal: bool
) -> np.ndarray:
    """float32 scores of a pair of blocks, -inf where row i doesn't see key j (j > i)."""
    scores = q.astype(np.float32) @ k.astype(np.float32).T * np.float32(1 / np.sqrt(q.shape[1]))  # (rows, cols)
    if causal:
        seen = np.arange(*cols)[None, :] <= np.arange(*rows)[:, None]
        scores = np.where(seen, scores, np.float32(-np.inf))
    return scores


# END SOLUTION
def standard_attention(machine: Any) -> None:
    """Three kernels with S and P in HBM between them: S = scores, P = softmax(S), O = P V."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: three passes; K, then O, stays in SRAM while Q, then V, streams past")
    hbm, sram, n, d = machine.hbm, machine.sram, machine.seq_len, machine.head_dim
    large, small = block_sizes(d, machine.sram_elements)
    stays, streams = sram.alloc(large, d), sram.alloc(small, d)

    for cols in blocks(n, large):
        k = hbm.load("K", cols, tile=stays)
        for rows in blocks(n, small):
            q = hbm.load("Q", rows, tile=streams)
            scores = masked_scores(q, k, rows, cols, causal=machine.causal)
            hbm.store("S", scores.astype(machine.dtype), rows, cols)

    for rows in blocks(n, small):
        scores = hbm.load("S", rows).astype(np.float32)  # (rows, N)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        p = weights / weights.sum(axis=1, keepdims=True)
        hbm.store("P", p.astype(machine.dtype), rows)

    for rows in blocks(n, large):
        acc = np.zeros((rows[1] - rows[0], d), np.float32)
        for cols in blocks(n, small):
            v = hbm.load("V", cols, tile=streams)
            p = hbm.load("P", rows, cols)
            acc += p.astype(np.float32) @ v.astype(np.float32)
        hbm.store("O", acc.astype(machine.dtype), rows, tile=stays)
    # END SOLUTION


def fa1_forward(machine: Any) -> None:
    """FlashAttention-1, Algorithm 1 of arXiv 2205.14135: K and V blocks outside, O, l and m through HBM.

    After each pass of the outer loop, HBM's O is attention over the keys so far (normalised), l and m its statistics.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: outer loop over K and V, inner loop over Q, O, l and m")
    hbm, sram, n, d = machine.hbm, machine.sram, machine.seq_len, machine.head_dim
    block_c, block_r = block_sizes(d, machine.sram_elements)
    k_tile, v_tile = sram.alloc(block_c, d), sram.alloc(block_c, d)
    q_tile, o_tile = sram.alloc(block_r, d), sram.alloc(block_r, d)

    for cols in blocks(n, block_c):
        k = hbm.load("K", cols, tile=k_tile)
        v = hbm.load("V", cols, tile=v_tile).astype(np.float32)
        for rows in blocks(n, block_r):
            if hidden_by_mask(rows, cols, causal=machine.causal):
                continue
            q = hbm.load("Q", rows, tile=q_tile)
            o = hbm.load("O", rows, tile=o_tile).astype(np.float32)
            row_sum, row_max = hbm.load("l", rows), hbm.load("m", rows)

            scores = masked_scores(q, k, rows, cols, causal=machine.causal)
            new_max = np.maximum(row_max, scores.max(axis=1))
            weights = np.exp(scores - new_max[:, None])
            old_sum = row_sum * np.exp(row_max - new_max)
            new_sum = old_sum + weights.sum(axis=1)
            # HBM's O is normalised: times its l it is the sum that the new block is added to.
            o = (old_sum[:, None] * o + weights @ v) / new_sum[:, None]

            hbm.store("O", o.astype(machine.dtype), rows, tile=o_tile)
            hbm.store("l", new_sum, rows)
            hbm.store("m", new_max, rows)
    # END SOLUTION


def fa2_forward(machine: Any) -> None:
    """FlashAttention-2, Algorithm 1 of arXiv 2307.08691: Q blocks outside, O stays on chip until its row is done."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: outer loop over Q, inner loop over K and V")
    hbm, sram, n, d = machine.hbm, machine.sram, machine.seq_len, machine.head_dim
    block_r, block_c = block_sizes(d, machine.sram_elements)
    q_tile, o_tile = sram.alloc(block_r, d), sram.alloc(block_r, d)
    k_tile, v_tile = sram.alloc(block_c, d), sram.alloc(block_c, d)

    for rows in blocks(n, block_r):
        q = hbm.load("Q", rows, tile=q_tile)
        row_max = np.full(rows[1] - rows[0], -np.inf, np.float32)
        row_sum = np.zeros_like(row_max)
        output_unnormalized = np.zeros((rows[1] - rows[0], d), np.float32)
        for cols in blocks(n, block_c):
            if hidden_by_mask(rows, cols, causal=machine.causal):
                continue
            k = hbm.load("K", cols, tile=k_tile)
            v = hbm.load("V", cols, tile=v_tile).astype(np.float32)
            scores = masked_scores(q, k, rows, cols, causal=machine.causal)
            new_max = np.maximum(row_max, scores.max(axis=1))
            weights = np.exp(scores - new_max[:, None])
            rescale = np.exp(row_max - new_max)
            row_sum = row_sum * rescale + weights.sum(axis=1)
            output_unnormalized = output_unnormalized * rescale[:, None] + weights @ v
            row_max = new_max
        o = output_unnormalized / row_sum[:, None]
        hbm.store("O", o.astype(machine.dtype), rows, tile=o_tile)
        hbm.store("LSE", row_max + np.log(row_sum), rows)
    # END SOLUTION


# kept-from-students-131d7ee1a529461e

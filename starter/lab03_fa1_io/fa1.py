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
    raise NotImplementedError("TODO: four tiles of head_dim columns must fit")


def blocks(seq_len: int, size: int) -> list[tuple[int, int]]:
    """Row ranges [start, stop) of the blocks; the last one is ragged unless size divides seq_len."""
    raise NotImplementedError("TODO: ceil(seq_len / size) ranges, none beyond seq_len")


def standard_attention(machine: Any) -> None:
    """Three kernels with S and P in HBM between them: S = scores, P = softmax(S), O = P V."""
    raise NotImplementedError("TODO: three passes; K, then O, stays in SRAM while Q, then V, streams past")


def fa1_forward(machine: Any) -> None:
    """FlashAttention-1, Algorithm 1 of arXiv 2205.14135: K and V blocks outside, O, l and m through HBM.

    After each pass of the outer loop, HBM's O is attention over the keys so far (normalised), l and m its statistics.
    """
    raise NotImplementedError("TODO: outer loop over K and V, inner loop over Q, O, l and m")


def fa2_forward(machine: Any) -> None:
    """FlashAttention-2, Algorithm 1 of arXiv 2307.08691: Q blocks outside, O stays on chip until its row is done."""
    raise NotImplementedError("TODO: outer loop over Q, inner loop over K and V")

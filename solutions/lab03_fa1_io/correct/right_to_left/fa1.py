"""The three algorithms with every order turned round: blocks from the last to the first, tiles made when needed."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np


def block_sizes(head_dim, sram_elements):
    large = 1
    while 4 * head_dim * (large + 1) <= sram_elements:
        large += 1
    return large, large if large < head_dim else head_dim


def blocks(seq_len, size):
    count = (seq_len + size - 1) // size
    return [(index * size, min(seq_len, index * size + size)) for index in range(count)]


@contextmanager
def tile(machine, part):
    number = machine.sram.alloc(part[1] - part[0], machine.head_dim)
    try:
        yield number
    finally:
        machine.sram.free(number)


def scores_of(machine, q, k, rows, cols):
    scores = np.einsum("rd,cd->rc", q.astype(np.float64), k.astype(np.float64)) / machine.head_dim**0.5
    if machine.causal:
        for place, row in enumerate(range(*rows)):
            scores[place, max(0, row + 1 - cols[0]) :] = -np.inf
    return scores


def merged(state, scores, v):
    """The state (m, l, unnormalised o) after one more block. A row that has seen no key keeps m = -inf, l = 0."""
    row_max, row_sum, o = state
    new_max = np.maximum(row_max, scores.max(axis=1))
    shift = np.where(np.isfinite(new_max), new_max, 0.0)
    weights, rescale = np.exp(scores - shift[:, None]), np.exp(row_max - shift)
    return new_max, row_sum * rescale + weights.sum(axis=1), o * rescale[:, None] + weights @ v.astype(np.float64)


def standard_attention(machine):
    hbm, n = machine.hbm, machine.seq_len
    large, small = block_sizes(machine.head_dim, machine.sram_elements)
    for cols in reversed(blocks(n, large)):
        with tile(machine, cols) as stays:
            k = hbm.load("K", cols, tile=stays)
            for rows in reversed(blocks(n, small)):
                with tile(machine, rows) as streams:
                    scores = scores_of(machine, hbm.load("Q", rows, tile=streams), k, rows, cols)
                    hbm.store("S", scores.astype(machine.dtype), rows, cols)
    for row in range(n):
        scores = hbm.load("S", (row, row + 1)).astype(np.float64)
        weights = np.exp(scores - scores.max())
        hbm.store("P", (weights / weights.sum()).astype(machine.dtype), (row, row + 1))
    for rows in reversed(blocks(n, large)):
        with tile(machine, rows) as stays:
            o = np.zeros((rows[1] - rows[0], machine.head_dim))
            for cols in reversed(blocks(n, small)):
                with tile(machine, cols) as streams:
                    p = hbm.load("P", rows, cols).astype(np.float64)
                    o = o + p @ hbm.load("V", cols, tile=streams).astype(np.float64)
            hbm.store("O", o.astype(machine.dtype), rows, tile=stays)


def fa1_forward(machine):
    hbm, n = machine.hbm, machine.seq_len
    large, small = block_sizes(machine.head_dim, machine.sram_elements)
    for cols in reversed(blocks(n, large)):
        with tile(machine, cols) as v_tile, tile(machine, cols) as k_tile:
            v = hbm.load("V", cols, tile=v_tile)
            k = hbm.load("K", cols, tile=k_tile)
            for rows in reversed(blocks(n, small)):
                if machine.causal and cols[0] >= rows[1]:
                    continue
                with tile(machine, rows) as o_tile, tile(machine, rows) as q_tile:
                    row_max, row_sum = (hbm.load(name, rows).astype(np.float64) for name in ("m", "l"))
                    o = hbm.load("O", rows, tile=o_tile).astype(np.float64) * row_sum[:, None]
                    q = hbm.load("Q", rows, tile=q_tile)
                    row_max, row_sum, o = merged((row_max, row_sum, o), scores_of(machine, q, k, rows, cols), v)
                    o = o / np.where(row_sum > 0, row_sum, 1.0)[:, None]
                    hbm.store("m", row_max.astype(np.float32), rows)
                    hbm.store("l", row_sum.astype(np.float32), rows)
                    hbm.store("O", o.astype(machine.dtype), rows, tile=o_tile)


def fa2_forward(machine):
    hbm, n = machine.hbm, machine.seq_len
    large, small = block_sizes(machine.head_dim, machine.sram_elements)
    for rows in reversed(blocks(n, large)):
        count = rows[1] - rows[0]
        with tile(machine, rows) as o_tile, tile(machine, rows) as q_tile:
            q = hbm.load("Q", rows, tile=q_tile)
            state = np.full(count, -np.inf), np.zeros(count), np.zeros((count, machine.head_dim))
            for cols in reversed(blocks(n, small)):
                if machine.causal and cols[0] >= rows[1]:
                    continue
                with tile(machine, cols) as v_tile, tile(machine, cols) as k_tile:
                    v = hbm.load("V", cols, tile=v_tile)
                    k = hbm.load("K", cols, tile=k_tile)
                    state = merged(state, scores_of(machine, q, k, rows, cols), v)
            row_max, row_sum, o = state
            hbm.store("LSE", (row_max + np.log(row_sum)).astype(np.float32), rows)
            hbm.store("O", (o / row_sum[:, None]).astype(machine.dtype), rows, tile=o_tile)


# kept-from-students-e0cc6432cb4d90e1

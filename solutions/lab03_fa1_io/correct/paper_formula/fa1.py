"""Algorithm 1 as printed, the block's own maximum and all, with P in the working dtype before P V."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

LAZY = np.float32(5.0)


def block_sizes(head_dim, sram_elements):
    rows = max(sram_elements // head_dim // 4, 1)
    return rows, min(rows, head_dim)


def blocks(seq_len, size):
    return list(pairwise([*range(0, seq_len, size), seq_len]))


def finite(row_max):
    return np.where(np.isneginf(row_max), np.float32(0), row_max)


def score(machine, q, k, rows, cols):
    scale = np.float32(machine.head_dim) ** np.float32(-0.5)
    scores = (q.astype(np.float32) * scale) @ k.astype(np.float32).T
    if machine.causal:
        scores[np.arange(*cols)[None, :] > np.arange(*rows)[:, None]] = -np.inf
    return scores


def product(machine, weights, v):
    return weights.astype(machine.dtype).astype(np.float32) @ v.astype(np.float32)


def standard_attention(machine):
    n, d, hbm = machine.seq_len, machine.head_dim, machine.hbm
    large, _ = block_sizes(d, machine.sram_elements)
    first, second = machine.sram.alloc(large, d), machine.sram.alloc(large, d)
    for cols in blocks(n, large):
        k = hbm.load("K", cols, None, first)
        for rows in blocks(n, large):
            q = hbm.load("Q", rows, None, second)
            hbm.store("S", score(machine, q, k, rows, cols).astype(machine.dtype), rows, cols)
    scores = hbm.load("S", [0, n]).astype(np.float32)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    hbm.store("P", (weights / weights.sum(axis=1, keepdims=True)).astype(machine.dtype), [0, n])
    for rows in blocks(n, large):
        p = hbm.load("P", rows).astype(np.float32)
        o = np.zeros((rows[1] - rows[0], d), np.float32)
        for cols in blocks(n, large):
            o += p[:, slice(*cols)] @ hbm.load("V", cols, tile=second).astype(np.float32)
        hbm.store("O", o.astype(machine.dtype), rows, tile=first)


def fa1_forward(machine):
    n, d, hbm = machine.seq_len, machine.head_dim, machine.hbm
    block_c, block_r = block_sizes(d, machine.sram_elements)
    k_tile, v_tile, q_tile, o_tile = (machine.sram.alloc(size, d) for size in (block_c, block_c, block_r, block_r))
    for cols in blocks(n, block_c):
        k, v = hbm.load("K", cols, tile=k_tile), hbm.load("V", cols, tile=v_tile)
        for rows in blocks(n, block_r):
            if machine.causal and rows[1] <= cols[0]:
                continue
            q, o = hbm.load("Q", rows, tile=q_tile), hbm.load("O", rows, tile=o_tile).astype(np.float32)
            l_i, m_i = hbm.load("l", rows), hbm.load("m", rows)
            scores = score(machine, q, k, rows, cols)
            m_block = scores.max(axis=1)
            p = np.exp(scores - finite(m_block)[:, None])
            l_block = p.sum(axis=1)
            m_new = np.maximum(m_i, m_block)
            old, new = np.exp(m_i - finite(m_new)), np.exp(m_block - finite(m_new))
            l_new = old * l_i + new * l_block
            o = ((l_i * old)[:, None] * o + new[:, None] * product(machine, p, v)) / l_new[:, None]
            hbm.store("l", l_new, rows)
            hbm.store("m", m_new, rows)
            hbm.store("O", o.astype(machine.dtype), rows, tile=o_tile)


def fa2_forward(machine):
    n, d, hbm = machine.seq_len, machine.head_dim, machine.hbm
    block_r, block_c = block_sizes(d, machine.sram_elements)
    k_tile, v_tile, q_tile, o_tile = (machine.sram.alloc(size, d) for size in (block_c, block_c, block_r, block_r))
    for rows in blocks(n, block_r):
        q = hbm.load("Q", rows, tile=q_tile)
        height = rows[1] - rows[0]
        m_i, l_i, acc = np.full(height, -np.inf, "f4"), np.zeros(height, "f4"), np.zeros((height, d), "f4")
        for cols in blocks(n, block_c):
            if machine.causal and rows[1] <= cols[0]:
                continue
            k, v = hbm.load("K", cols, tile=k_tile), hbm.load("V", cols, tile=v_tile)
            scores = score(machine, q, k, rows, cols)
            grown = scores.max(axis=1)
            # The reference moves only when the maximum has grown by much: any reference will do.
            m_new = np.where(grown > m_i + LAZY, grown, m_i)
            alpha = np.exp(m_i - finite(m_new))
            p = np.exp(scores - finite(m_new)[:, None])
            l_i = l_i * alpha + p.sum(axis=1)
            acc = acc * alpha[:, None] + product(machine, p, v)
            m_i = m_new
        hbm.store("O", (acc / l_i[:, None]).astype(machine.dtype), rows, tile=o_tile)
        hbm.store("LSE", m_i + np.log(l_i), rows)


# kept-from-students-5aca254620e546b7

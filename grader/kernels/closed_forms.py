"""Closed forms of attention's work: visible pairs, FLOPs, and the bytes that each algorithm moves.

Sources: FlashAttention, arXiv 2205.14135 (Theorem 2: HBM accesses of Algorithm 1; Appendix B: backward);
FlashAttention-2, arXiv 2307.08691 (Algorithm 1: loop over query blocks outside; Section 4.1: FLOPs are
4 · seqlen² · head_dim · heads forward, 2.5 times that backward, halved for causal). Here causal work is counted by
exact visible pairs instead of halved.

Masks are aligned bottom-right: row i stands at key i + k_len - q_len and, when causal, sees no key after it. A window
(left, right) keeps keys from `left` before that position to `right` after it, both included; -1 is unbounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Window = tuple[int, int]
Direction = Literal["forward", "backward", "both"]
_FLOPS_PER_PAIR = {"forward": 4.0, "backward": 10.0, "both": 14.0}
LSE_ITEMSIZE = 4


@dataclass(frozen=True)
class TrafficBytes:
    """Bytes by tensor; `loaded` and `stored` are their sums."""

    q: int
    k: int
    v: int
    o: int
    lse: int

    @property
    def loaded(self) -> int:
        return self.q + self.k + self.v

    @property
    def stored(self) -> int:
        return self.o + self.lse

    @property
    def total(self) -> int:
        return self.loaded + self.stored


@dataclass(frozen=True)
class Bounds:
    """An interval that a count must lie in, ends included."""

    low: int
    high: int

    def holds(self, count: int) -> bool:
        return self.low <= count <= self.high


def visible_keys(row: int, q_len: int, k_len: int, causal: bool = False, window: Window | None = None) -> range:
    """Keys that query row `row` sees; empty when all are masked."""
    left, right = _reach(causal, window)
    position = row + k_len - q_len
    start = 0 if left is None else max(0, position - left)
    stop = k_len if right is None else min(k_len, position + right + 1)
    return range(start, max(start, stop))


def visible_pairs(q_len: int, k_len: int, causal: bool = False, window: Window | None = None) -> int:
    """Number of (query, key) pairs that the mask leaves, for one head. Exact, in constant time.

    Args:
        window: (left, right) around a row's own position, both included; -1 is unbounded.

    Raises:
        ValueError: a length is negative, or a side of the window is less than -1.
    """
    if q_len < 0 or k_len < 0:
        raise ValueError(f"lengths must not be negative, got q_len={q_len}, k_len={k_len}")
    left, right = _reach(causal, window)
    # Keys up to the right edge, less those before the left edge; each is a staircase that keys 0 and k_len cut off.
    diagonal = k_len - q_len
    seen = q_len * k_len if right is None else _clipped_sum(diagonal + right + 1, q_len, k_len)
    unseen = 0 if left is None else _clipped_sum(diagonal - left, q_len, k_len)
    return seen - unseen


def _reach(causal: bool, window: Window | None) -> tuple[int | None, int | None]:
    """Keys seen before and after a row's own position; None is unbounded."""
    left, right = window if window is not None else (-1, -1)
    if left < -1 or right < -1:
        raise ValueError(f"window sides must be -1 (unbounded) or more, got ({left}, {right})")
    return (None if left == -1 else left), (0 if causal else None if right == -1 else right)


def _clipped_sum(first: int, rows: int, limit: int) -> int:
    """Sum over i in 0..rows-1 of (first + i), each cut off below at 0 and above at `limit`."""
    return _positive_sum(first, rows) - _positive_sum(first - limit, rows)


def _positive_sum(first: int, rows: int) -> int:
    """Sum over i in 0..rows-1 of max(0, first + i)."""
    last = first + rows - 1
    terms = min(rows, max(0, last))
    return terms * last - terms * (terms - 1) // 2


def attention_flops(
    batch: int,
    q_heads: int,
    q_len: int,
    k_len: int,
    head_dim: int,
    causal: bool = False,
    window: Window | None = None,
    direction: Direction = "forward",
) -> float:
    """FLOPs of exact attention: two products of 2·head_dim a visible pair forward, five backward (FA2, section 4.1)."""
    pairs = visible_pairs(q_len, k_len, causal, window)
    return _FLOPS_PER_PAIR[direction] * batch * q_heads * head_dim * pairs


def keys_loaded_by_block(
    block: int, q_len: int, k_len: int, block_m: int, block_n: int, causal: bool, window: Window | None = None
) -> int:
    """Keys that the row block `block` loads when it skips K/V tiles in which every one of its rows is masked.

    Tiles start at multiples of `block_n`; the last tile loads only keys that exist.
    """
    first_row, last_row = block * block_m, min((block + 1) * block_m, q_len) - 1
    start = visible_keys(first_row, q_len, k_len, causal, window).start
    stop = visible_keys(last_row, q_len, k_len, causal, window).stop
    tiles = range(start // block_n, _ceil_div(stop, block_n)) if stop > start else range(0)
    return sum(min(block_n, k_len - tile * block_n) for tile in tiles)


def fa2_forward_traffic(
    batch: int,
    q_heads: int,
    kv_heads: int,
    q_len: int,
    k_len: int,
    head_dim: int,
    block_m: int,
    block_n: int,
    causal: bool = False,
    itemsize: int = 2,
    window: Window | None = None,
) -> TrafficBytes:
    """Bytes that FA2's forward moves: each Q row once, K and V once a row block, O and LSE once.

    Without a mask the loads are batch·q_heads·(q_len·d + ⌈q_len/block_m⌉·2·k_len·d)·itemsize. A query head loads its
    group's K and V itself, so `kv_heads` doesn't enter: grouped heads save memory, not (without packing) loads.

    Raises:
        ValueError: q_heads isn't a multiple of kv_heads.
    """
    if kv_heads < 1 or q_heads % kv_heads:
        raise ValueError(f"q_heads ({q_heads}) must be a multiple of kv_heads ({kv_heads})")
    blocks = _ceil_div(q_len, block_m)
    keys = sum(keys_loaded_by_block(b, q_len, k_len, block_m, block_n, causal, window) for b in range(blocks))
    heads = batch * q_heads
    return TrafficBytes(
        q=heads * q_len * head_dim * itemsize,
        k=heads * keys * head_dim * itemsize,
        v=heads * keys * head_dim * itemsize,
        o=heads * q_len * head_dim * itemsize,
        lse=heads * q_len * LSE_ITEMSIZE,
    )


def fa1_backward_bytes(seq_len: int, head_dim: int, block_c: int, itemsize: int = 2) -> int:
    """HBM bytes a head of FA1's backward (Algorithm 4 of 2205.14135): 4Nd + Tc·(5Nd + 2N) elements.

    K and V are read, dK and dV written once; each column block reads Q, O, dO and dQ, writes dQ, and reads l and m.
    """
    columns, tile = _ceil_div(seq_len, block_c), seq_len * head_dim
    return (4 * tile + columns * 5 * tile) * itemsize + columns * 2 * seq_len * LSE_ITEMSIZE


def decode_traffic_bounds(
    live_keys: list[int], q_heads: int, kv_heads: int, head_dim: int, itemsize: int, num_splits: int, table_bytes: int
) -> Bounds:
    """Bytes that one paged decode step may load: each live K/V byte once a kv head, Q, tables and partials.

    Args:
        live_keys: context length of each sequence.
        num_splits: splits of the key axis; each loads Q again and leaves a float32 partial (O, and its LSE).
        table_bytes: size of the block table and lengths together; read at most once a query head and split.
    """
    cache = 2 * sum(live_keys) * kv_heads * head_dim * itemsize
    query = len(live_keys) * q_heads * head_dim * itemsize
    partials = len(live_keys) * q_heads * num_splits * (head_dim + 2) * LSE_ITEMSIZE
    return Bounds(
        low=cache + (query if any(live_keys) else 0),
        high=cache + query * num_splits + partials + table_bytes * q_heads * num_splits,
    )


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)

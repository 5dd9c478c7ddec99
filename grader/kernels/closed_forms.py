"""Closed forms of attention's work: visible pairs, FLOPs, and the bytes that each algorithm moves.

Sources: FlashAttention, arXiv 2205.14135 (Theorem 2: HBM accesses of Algorithm 1; Appendix B: backward);
FlashAttention-2, arXiv 2307.08691 (Algorithm 1: loop over query blocks outside; Section 4.1: FLOPs are
4 · seqlen² · head_dim · heads forward, 2.5 times that backward, halved for causal). Here causal work is counted by
exact visible pairs instead of halved.

Masks are aligned bottom-right: row i sees keys j <= i + k_len - q_len. A window of w keeps, besides, keys
j > i + k_len - q_len - w, that is the w newest keys that row i may see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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


def visible_keys(row: int, q_len: int, k_len: int, causal: bool = False, window: int | None = None) -> range:
    """Keys that query row `row` sees; empty when all are masked."""
    newest = row + k_len - q_len
    stop = min(newest + 1, k_len) if causal or window is not None else k_len
    start = 0 if window is None else newest - window + 1
    return range(max(start, 0), max(stop, max(start, 0)))


def visible_pairs(q_len: int, k_len: int, causal: bool = False, window: int | None = None) -> int:
    """Number of (query, key) pairs that the mask leaves, for one head. Exact, in O(1) without a window.

    Args:
        window: keys a row sees at most, itself included; implies causal.

    Raises:
        ValueError: a length is negative or the window is less than 1.
    """
    if q_len < 0 or k_len < 0:
        raise ValueError(f"lengths must not be negative, got q_len={q_len}, k_len={k_len}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    if not causal and window is None:
        return q_len * k_len
    return _staircase(q_len, k_len) - (_staircase(q_len, k_len - window) if window is not None else 0)


def _staircase(rows: int, last: int) -> int:
    """Sum over rows i of max(0, i + last - rows + 1): the last row sees `last` keys, each row before it one less."""
    steps = max(0, min(rows, last))
    return steps * last - steps * (steps - 1) // 2


def attention_flops(
    batch: int,
    q_heads: int,
    q_len: int,
    k_len: int,
    head_dim: int,
    causal: bool = False,
    window: int | None = None,
    direction: Direction = "forward",
) -> float:
    """FLOPs of exact attention: two products of 2·head_dim a visible pair forward, five backward (FA2, section 4.1)."""
    pairs = visible_pairs(q_len, k_len, causal, window)
    return _FLOPS_PER_PAIR[direction] * batch * q_heads * head_dim * pairs


def keys_loaded_by_block(
    block: int, q_len: int, k_len: int, block_m: int, block_n: int, causal: bool, window: int | None = None
) -> int:
    """Keys that the row block `block` loads when it skips K/V tiles in which every one of its rows is masked.

    Tiles start at multiples of `block_n`; the last tile loads only keys that exist.
    """
    first_row, last_row = block * block_m, min((block + 1) * block_m, q_len) - 1
    newest = visible_keys(last_row, q_len, k_len, causal, window).stop
    oldest = visible_keys(first_row, q_len, k_len, causal, window).start
    tiles = range(oldest // block_n, _ceil_div(newest, block_n)) if newest > oldest else range(0)
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
    window: int | None = None,
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


def fa2_forward_load_bounds(
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
    window: int | None = None,
) -> Bounds:
    """Bytes that an FA2 forward may load.

    Low: nothing is read more than its visible part needs at `block_n` = 1, so that skipping exactly is no mistake.
    High: the closed form with tiles of `block_n`, plus one float32 statistic a row.
    """
    exact = fa2_forward_traffic(batch, q_heads, kv_heads, q_len, k_len, head_dim, block_m, 1, causal, itemsize, window)
    tiled = fa2_forward_traffic(
        batch, q_heads, kv_heads, q_len, k_len, head_dim, block_m, block_n, causal, itemsize, window
    )
    return Bounds(low=exact.loaded, high=tiled.loaded + batch * q_heads * q_len * LSE_ITEMSIZE)


def fa1_forward_bytes(seq_len: int, head_dim: int, block_c: int, itemsize: int = 2) -> int:
    """HBM bytes a head of FA1's forward (Algorithm 1 of 2205.14135): 2Nd + Tc·(3Nd + 4N) elements.

    K and V once; for each of the Tc = ⌈N/Bc⌉ column blocks Q and O are read and O written, and l and m, in float32,
    are read and written.
    """
    columns, tile = _ceil_div(seq_len, block_c), seq_len * head_dim
    return (2 * tile + columns * 3 * tile) * itemsize + columns * 4 * seq_len * LSE_ITEMSIZE


def fa1_backward_bytes(seq_len: int, head_dim: int, block_c: int, itemsize: int = 2) -> int:
    """HBM bytes a head of FA1's backward (Algorithm 4 of 2205.14135): 4Nd + Tc·(5Nd + 2N) elements.

    K and V are read, dK and dV written once; each column block reads Q, O, dO and dQ, writes dQ, and reads l and m.
    """
    columns, tile = _ceil_div(seq_len, block_c), seq_len * head_dim
    return (4 * tile + columns * 5 * tile) * itemsize + columns * 2 * seq_len * LSE_ITEMSIZE


def fa2_forward_bytes(seq_len: int, head_dim: int, block_r: int, itemsize: int = 2) -> int:
    """HBM bytes a head of FA2's forward (Algorithm 1 of 2307.08691): 2Nd + N + Tr·2Nd elements, the N in float32."""
    rows, tile = _ceil_div(seq_len, block_r), seq_len * head_dim
    return (2 * tile + rows * 2 * tile) * itemsize + seq_len * LSE_ITEMSIZE


def standard_attention_bytes(
    batch: int, q_heads: int, kv_heads: int, q_len: int, k_len: int, head_dim: int, itemsize: int = 2
) -> int:
    """Bytes of unfused attention (Algorithm 0 of 2205.14135): S and P each written and read once, Q, K, V, O once."""
    scores = 4 * batch * q_heads * q_len * k_len
    operands = 2 * batch * q_heads * q_len * head_dim + 2 * batch * kv_heads * k_len * head_dim
    return (scores + operands) * itemsize


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

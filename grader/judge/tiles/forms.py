"""How many HBM bytes each algorithm of lab03 moves, in all and by tensor.

N is the sequence length, d the head dimension, M the SRAM in elements. Capacity counts the four tiles Q, K, V and O;
S, P and statistics are registers. Sources: FlashAttention (arXiv 2205.14135), Algorithms 0, 1 and 4, with block sizes
rounded down so that the tiles fit; FlashAttention-2 (arXiv 2307.08691), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grader.kernels.closed_forms import LSE_ITEMSIZE, fa1_backward_bytes

STANDARD, FA1, FA2 = "standard_attention", "fa1_forward", "fa2_forward"
FUNCTIONS = (STANDARD, FA1, FA2)
STATISTICS = ("l", "m", "LSE")
Moves = dict[tuple[str, str], int]
"""("load" or "store", tensor) → bytes."""


@dataclass(frozen=True)
class Setting:
    """One run's sizes. `itemsize` is that of Q, K, V, O, S and P in bytes; statistics take four."""

    n: int
    d: int
    m: int
    itemsize: int = 2
    causal: bool = False


def block_sizes(d: int, m: int) -> tuple[int, int]:
    """(large, small): FA1's Bc and Br, FA2's Br and Bc."""
    large = max(1, m // (4 * d))
    return large, min(large, d)


def blocks(n: int, size: int) -> list[tuple[int, int]]:
    """[start, stop) of ⌈n / size⌉ blocks."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def visited(rows: tuple[int, int], cols: tuple[int, int], causal: bool) -> bool:
    """Whether some row of the block sees some key of the block (square mask: row i sees j <= i)."""
    return not causal or rows[1] - 1 >= cols[0]


def moves(function: str, setting: Setting, sizes: tuple[int, int] | None = None) -> Moves:
    """Bytes by direction and tensor.

    Args:
        sizes: (large, small) block sizes instead of the prescribed ones.
    """
    elements = _ELEMENTS[function](setting, sizes or block_sizes(setting.d, setting.m))
    return {
        key: count * (LSE_ITEMSIZE if key[1] in STATISTICS else setting.itemsize) for key, count in elements.items()
    }


def total(function: str, setting: Setting) -> int:
    return sum(moves(function, setting).values())


def backward_total(setting: Setting) -> int:
    """Bytes of FA1's backward, Algorithm 4 with the forward's Bc: 4Nd + Tc (5Nd + 2N) elements."""
    return fa1_backward_bytes(setting.n, setting.d, block_sizes(setting.d, setting.m)[0], setting.itemsize)


def _standard(setting: Setting, sizes: tuple[int, int]) -> Moves:
    n, d = setting.n, setting.d
    passes = len(blocks(n, sizes[0]))
    scores = {(way, name): n * n for way in ("load", "store") for name in ("S", "P")}
    streamed = {("load", "Q"): passes * n * d, ("load", "V"): passes * n * d}
    return {("load", "K"): n * d, ("store", "O"): n * d, **streamed, **scores}


def _fa1(setting: Setting, sizes: tuple[int, int]) -> Moves:
    n, d = setting.n, setting.d
    large, small = sizes
    # A block of keys is visited from the block of rows on that holds the row of its first key.
    rows = sum(n - (first // small * small if setting.causal else 0) for first in range(0, n, large))
    matrices = {("load", "Q"): rows * d, ("load", "O"): rows * d, ("store", "O"): rows * d}
    statistics = {(way, name): rows for way in ("load", "store") for name in ("l", "m")}
    return {("load", "K"): n * d, ("load", "V"): n * d, **matrices, **statistics}


def _fa2(setting: Setting, sizes: tuple[int, int]) -> Moves:
    n, d = setting.n, setting.d
    large, small = sizes
    # A block of rows visits whole blocks of keys, up to the one that holds the key of its last row.
    keys = sum(
        min(n, -(-min(first + large, n) // small) * small) if setting.causal else n for first in range(0, n, large)
    )
    once = {("load", "Q"): n * d, ("store", "O"): n * d, ("store", "LSE"): n}
    return {**once, ("load", "K"): keys * d, ("load", "V"): keys * d}


_ELEMENTS: dict[str, Callable[[Setting, tuple[int, int]], Moves]] = {STANDARD: _standard, FA1: _fa1, FA2: _fa2}

"""Closed forms of the HBM bytes that attention moves, and the table that holds them against counted bytes.

Run it in this folder: ``python io_model.py`` writes io.csv and io.png. All forms are for one head. N is the sequence
length, d the head dimension, M the SRAM in *elements*; Q, K, V, O, S and P have `itemsize` bytes an element, l, m and
LSE four.
"""

from __future__ import annotations

import csv
from pathlib import Path

import fa1
from fa1 import block_sizes, blocks
from machine import Machine

STATISTIC_BYTES = 4
FUNCTIONS = ("standard_attention", "fa1_forward", "fa2_forward")
COLUMNS = ("function", "seq_len", "head_dim", "sram_elements", "counted_bytes", "model_bytes", "max_error")
SWEEP = tuple((128, 16, 4 * 16 * 2**k) for k in range(2, 8))
PAPER = (1024, 64, 192 * 1024 // 2)
PAPER_HEADS = 16 * 64


def io_standard(n: int, d: int, m: int, itemsize: int = 2) -> int:
    """Bytes of `standard_attention`: S and P written and read, Q and V read once a block of K and of O."""
    raise NotImplementedError("TODO: add up the three passes")


def io_fa1(n: int, d: int, m: int, itemsize: int = 2, causal: bool = False) -> int:
    """Bytes of `fa1_forward`: 2Nd + Tc (3Nd + 4N) elements; causal: blocks without a visible pair aren't visited."""
    raise NotImplementedError("TODO: K and V once; Q, O, l and m once a block of K")


def io_fa1_backward(n: int, d: int, m: int, itemsize: int = 2) -> int:
    """Bytes of FlashAttention-1's backward (Algorithm 4): 4Nd + Tc (5Nd + 2N) elements, with the forward's Bc."""
    raise NotImplementedError("TODO: once a block of K, and once in all")


def io_fa2(n: int, d: int, m: int, itemsize: int = 2, causal: bool = False) -> int:
    """Bytes of `fa2_forward`: 2Nd + N + Tr 2Nd elements; causal: blocks without a visible pair aren't visited."""
    raise NotImplementedError("TODO: Q, O and LSE once; K and V once a block of Q")


def measure(function: str, n: int, d: int, m: int) -> dict[str, str | int | float]:
    """One row of the table: run `function` on a machine in float16, count its bytes, test its output."""
    raise NotImplementedError("TODO: a Machine, the function of fa1 by that name, its closed form")


def make_table() -> list[dict[str, str | int | float]]:
    """One row a function and point: the sweep over M, and the paper's setting."""
    return [measure(function, *point) for function in FUNCTIONS for point in (*SWEEP, PAPER)]


def write_table(rows: list[dict[str, str | int | float]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def plot_table(rows: list[dict[str, str | int | float]], path: Path) -> None:
    """Bytes against SRAM on logarithmic axes: counted as points, the closed forms as lines, over the sweep.

    matplotlib is imported here and not above, so that `make_table` runs where it isn't installed.
    """
    raise NotImplementedError("TODO: one line and one set of points a function")


def main() -> None:
    rows = make_table()
    write_table(rows, Path("io.csv"))
    plot_table(rows, Path("io.png"))
    forward, backward = (PAPER_HEADS * form(*PAPER) / 1e9 for form in (io_fa1, io_fa1_backward))
    print(f"FlashAttention-1 at the paper's setting: {forward:.2f} GB forward + {backward:.2f} GB backward")


if __name__ == "__main__":
    main()

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
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: add up the three passes")
    block, _ = block_sizes(d, m)
    passes = len(blocks(n, block))
    return (4 * n * n + 2 * n * d + passes * 2 * n * d) * itemsize
    # END SOLUTION


def io_fa1(n: int, d: int, m: int, itemsize: int = 2, causal: bool = False) -> int:
    """Bytes of `fa1_forward`: 2Nd + Tc (3Nd + 4N) elements; causal: blocks without a visible pair aren't visited."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: K and V once; Q, O, l and m once a block of K")
    block_c, block_r = block_sizes(d, m)
    # The first row block that sees the first key of the column block, and every one after it.
    rows = sum(n - (first // block_r * block_r if causal else 0) for first, _ in blocks(n, block_c))
    return (2 * n * d + 3 * rows * d) * itemsize + 4 * rows * STATISTIC_BYTES
    # END SOLUTION


def io_fa1_backward(n: int, d: int, m: int, itemsize: int = 2) -> int:
    """Bytes of FlashAttention-1's backward (Algorithm 4): 4Nd + Tc (5Nd + 2N) elements, with the forward's Bc."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: once a block of K, and once in all")
    block_c, _ = block_sizes(d, m)
    passes = len(blocks(n, block_c))
    return (4 * n * d + passes * 5 * n * d) * itemsize + passes * 2 * n * STATISTIC_BYTES
    # END SOLUTION


def io_fa2(n: int, d: int, m: int, itemsize: int = 2, causal: bool = False) -> int:
    """Bytes of `fa2_forward`: 2Nd + N + Tr 2Nd elements; causal: blocks without a visible pair aren't visited."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: Q, O and LSE once; K and V once a block of Q")
    block_r, block_c = block_sizes(d, m)
    keys = sum(min(n, -(-last // block_c) * block_c) if causal else n for _, last in blocks(n, block_r))
    return (2 * n * d + 2 * keys * d) * itemsize + n * STATISTIC_BYTES
    # END SOLUTION


def measure(function: str, n: int, d: int, m: int) -> dict[str, str | int | float]:
    """One row of the table: run `function` on a machine in float16, count its bytes, test its output."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: a Machine, the function of fa1 by that name, its closed form")
    machine = Machine(n, d, m, function)
    getattr(fa1, function)(machine)
    model = {"standard_attention": io_standard, "fa1_forward": io_fa1, "fa2_forward": io_fa2}[function]
    found = (function, n, d, m, machine.total_bytes, model(n, d, m), machine.max_error())
    return dict(zip(COLUMNS, found, strict=True))
    # END SOLUTION


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
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: one line and one set of points a function")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    n, d, _ = SWEEP[0]
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for function in FUNCTIONS:
        line = [row for row in rows if row["function"] == function and row["seq_len"] == n]
        sizes = [row["sram_elements"] for row in line]
        (drawn,) = axis.plot(sizes, [row["model_bytes"] for row in line], "-", label=f"{function}, closed form")
        counted = [row["counted_bytes"] for row in line]
        axis.plot(sizes, counted, "o", color=drawn.get_color(), label=f"{function}, counted")
    axis.axvline(d * d, color="grey", linestyle=":", label="M = d²")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("SRAM M (elements)")
    axis.set_ylabel("HBM bytes, one head")
    axis.set_title(f"N = {n}, d = {d}, float16, forward")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    # END SOLUTION


def main() -> None:
    rows = make_table()
    write_table(rows, Path("io.csv"))
    plot_table(rows, Path("io.png"))
    forward, backward = (PAPER_HEADS * form(*PAPER) / 1e9 for form in (io_fa1, io_fa1_backward))
    print(f"FlashAttention-1 at the paper's setting: {forward:.2f} GB forward + {backward:.2f} GB backward")


if __name__ == "__main__":
    main()
# kept-from-students-1d8ddef67c86e04e

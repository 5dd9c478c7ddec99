"""Measures `blockwise_attention` in float16 and bfloat16 against float64; writes tolerance.csv and tolerance.png.

Run it in this folder: ``python tolerance.py``. The grid and the inputs are fixed, so that two people's tables compare.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import ml_dtypes
import numpy as np
from online_softmax import blockwise_attention

COLUMNS = ("dtype", "accumulate", "block", "length", "max_error", "rms_error", "lse_error")
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ACCUMULATORS = ("float32", "working")
BLOCKS = (16, 64, 256)
LENGTHS = (128, 512, 2048)
QUERIES = 32
HEAD_DIM = 64
SEED = 2


@functools.cache
def inputs(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (QUERIES, HEAD_DIM), k and v (length, HEAD_DIM): standard normal, float64, the same on every machine.

    Twelve points of the grid share them, so they are drawn once.
    """
    rng = np.random.default_rng([SEED, length])
    return tuple(rng.standard_normal((rows, HEAD_DIM)) for rows in (QUERIES, length, length))


# BEGIN SOLUTION
@functools.cache
def rounded_inputs(dtype: str, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inputs in the working dtype."""
    return tuple(x.astype(DTYPES[dtype]) for x in inputs(length))


@functools.cache
def oracle_of(dtype: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(o, lse) of the rounded inputs in float64; six points of the grid share them."""
    return blockwise_attention(*(x.astype(np.float64) for x in rounded_inputs(dtype, length)), length)


# END SOLUTION
def measure(dtype: str, accumulate: str, block: int, length: int) -> dict[str, float]:
    """Errors of one point of the grid.

    The oracle is float64 attention of the *rounded* inputs: rounding q, k and v is not the algorithm's error.

    Args:
        dtype: a key of DTYPES, the working dtype.
        accumulate: ``float32``, or ``working`` to round l and o to the working dtype after each block.

    Returns:
        max_error: max |o - oracle|; rms_error: RMS of o - oracle over RMS of oracle; lse_error: max |lse - oracle|.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: round the inputs, run both precisions, compare")
    working = DTYPES[dtype]
    q, k, v = rounded_inputs(dtype, length)
    o, lse = blockwise_attention(q, k, v, block, accumulate=working if accumulate == "working" else None)
    oracle, oracle_lse = oracle_of(dtype, length)
    error = o.astype(np.float64) - oracle
    return {
        "max_error": float(np.abs(error).max()),
        "rms_error": float(np.sqrt(np.mean(error**2) / np.mean(oracle**2))),
        "lse_error": float(np.abs(lse.astype(np.float64) - oracle_lse).max()),
    }
    # END SOLUTION


def make_table() -> list[dict[str, str | int | float]]:
    """One row a point of the grid, with the keys of COLUMNS."""
    return [
        {"dtype": dtype, "accumulate": accumulate, "block": block, "length": length}
        | measure(dtype, accumulate, block, length)
        for dtype in DTYPES
        for accumulate in ACCUMULATORS
        for block in BLOCKS
        for length in LENGTHS
    ]


def write_table(rows: list[dict[str, str | int | float]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def plot_table(rows: list[dict[str, str | int | float]], path: Path) -> None:
    """Error against block size and against length, one line a dtype and accumulator, on logarithmic axes.

    matplotlib is imported here and not above, so that `make_table` runs where it isn't installed.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: two panels: error against block size, error against length")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.5), sharey=True, layout="constrained")
    panels = ((axes[0], "block", "length", max(LENGTHS)), (axes[1], "length", "block", min(BLOCKS)))
    for axis, along, fixed, value in panels:
        for dtype in DTYPES:
            for accumulate in ACCUMULATORS:
                line = [r for r in rows if (r["dtype"], r["accumulate"], r[fixed]) == (dtype, accumulate, value)]
                style = "o-" if accumulate == "float32" else "s--"
                errors = [r["rms_error"] for r in line]
                axis.plot([r[along] for r in line], errors, style, label=f"{dtype}, {accumulate}")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xlabel(f"{along} (keys), at {fixed} {value}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("RMS error of O over RMS of O, against float64")
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, title="working dtype, accumulator", loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    # END SOLUTION


def main() -> None:
    rows = make_table()
    write_table(rows, Path("tolerance.csv"))
    plot_table(rows, Path("tolerance.png"))


if __name__ == "__main__":
    main()
# kept-from-students-1c0a81a9ab56f1f3

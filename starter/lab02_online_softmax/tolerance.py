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


def measure(dtype: str, accumulate: str, block: int, length: int) -> dict[str, float]:
    """Errors of one point of the grid.

    The oracle is float64 attention of the *rounded* inputs: rounding q, k and v is not the algorithm's error.

    Args:
        dtype: a key of DTYPES, the working dtype.
        accumulate: ``float32``, or ``working`` to round l and o to the working dtype after each block.

    Returns:
        max_error: max |o - oracle|; rms_error: RMS of o - oracle over RMS of oracle; lse_error: max |lse - oracle|.
    """
    raise NotImplementedError("TODO: round the inputs, run both precisions, compare")


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
    raise NotImplementedError("TODO: two panels: error against block size, error against length")


def main() -> None:
    rows = make_table()
    write_table(rows, Path("tolerance.csv"))
    plot_table(rows, Path("tolerance.png"))


if __name__ == "__main__":
    main()

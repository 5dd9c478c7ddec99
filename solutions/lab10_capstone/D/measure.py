"""Measures the port against FlashAttention-2's own kernel: `python measure.py` in this folder on a GPU. Four minutes.

Writes benchmark.csv, benchmark.png, appendix/tiles.csv (other tile sizes of the port, so that the choice has figures)
and README.md's block of figures. No time without a passed test: each output is first compared with float64 on sampled
rows of the very tensors that are timed. Rows that are there from this machine are kept: delete benchmark.csv to start
anew.
"""

from __future__ import annotations

import csv
import statistics
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import local_forward
from local_forward import Tiles

from grader.bench import capstone as kit

HERE = Path(__file__).resolve().parent
TRIED = ("d64-4k", "d128-4k")
CANDIDATES = (Tiles(128, 128, 8, 2), Tiles(128, 64, 8, 3), Tiles(128, 64, 4, 3), Tiles(64, 64, 4, 3))
"""Upstream's for head_dim 64 with Triton's warps; this port's; upstream's for 128; a small one, two programs an SM."""


def try_tiles(table: kit.Table) -> list[tuple[str, str, str]]:
    """(shape, tiles, median or why there is none), also in appendix/tiles.csv."""
    import torch

    rows = [("shape", "tiles", "median_ms")]
    for name in TRIED:
        shape = table.capstone.shape(name)
        assert shape is not None
        torch.manual_seed(shape.seed)
        size = (shape.batch, shape.q_heads, shape.seq_q, shape.head_dim)
        q, k, v = (torch.randn(size, device="cuda", dtype=getattr(torch, shape.dtype)) for _ in "qkv")
        for tiles in CANDIDATES:
            call = partial(local_forward.local_attention, q, k, v, **shape.visible.options())
            with mock.patch.object(local_forward, "choose_tiles", lambda *_, tiles=tiles: tiles):
                try:
                    error, allowed = kit.attention_error(shape, q, k, v, call()[0])
                    text = f"off by {error:.2e}, allowed {allowed:.2e}"
                    if error <= allowed:
                        text = f"{statistics.median(kit.interleaved_ms({'port': call}, 20)['port']):.5g}"
                except RuntimeError as problem:  # too much shared memory, among others
                    text = str(problem).strip().splitlines()[0][:120]
            rows.append((name, " x ".join(map(str, tiles[:2])) + f", {tiles.warps} warps, {tiles.stages} stages", text))
    path = HERE / "appendix" / "tiles.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return rows[1:]


def main() -> int:
    table = kit.measure_attention(HERE, local_forward.local_attention, local_forward.upstream_local)
    kit.draw(HERE)
    tried = ["| at | tiles | median, ms |", "|---|---|---|"]
    tried += [f"| {name} | {tiles} | {text} |" for name, tiles, text in try_tiles(table)]
    kit.put_figures(
        HERE,
        f"{kit.measured_on(table.rows)} CUDA events around one call, both kernels in turns, each call on a cold L2.\n\n"
        f"{kit.comparison(table.rows, ('tflops', 'gbs'))}\n\nOther tiles of the port (appendix/tiles.csv):\n\n"
        + "\n".join(tried),
    )
    return 0


if __name__ == "__main__":
    sys.exit(kit.run(main))


# kept-from-students-607d3ee18c34e221

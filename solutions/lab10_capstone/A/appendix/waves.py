"""How many key tiles the busiest SM walks, and what a tile then takes: `python appendix/waves.py`, on any machine.

No profile: tiles with a visible pair are counted from the masks of capstone.toml, programs are dealt in the order of
their numbers to SMs that hold one each, and every tile counts the same. Times come from benchmark.csv.
"""

from __future__ import annotations

import csv
import heapq
import sys
from pathlib import Path

import numpy as np

from grader.judge.capstone import manifest

HERE = Path(__file__).resolve().parents[1]
ROWS, KEYS, SMS = 128, 64, 132
"""The kernel's tiles on Hopper, and an H200's SMs. 170 registers · 256 threads: one program an SM."""


def tiles_walked(shape: manifest.CapstoneShape) -> list[int]:
    """Of each query tile of a head: key tiles in which some row sees a key."""
    found = []
    for first in range(0, shape.seq_q, ROWS):
        rows = np.arange(first, min(first + ROWS, shape.seq_q))
        seen = shape.visible.visible(rows, shape.seq_q, shape.seq_k).any(axis=0)
        found.append(int(np.logical_or.reduceat(seen, np.arange(0, shape.seq_k, KEYS)).sum()))
    return found


def busiest(programs: list[int]) -> int:
    """Tiles of the SM that ends last, each program going to the SM that is free first."""
    walked = [0] * SMS
    for tiles in programs:
        heapq.heapreplace(walked, walked[0] + tiles)
    return max(walked)


def main() -> int:
    capstone = manifest.read((HERE / "capstone.toml").read_bytes())
    with (HERE / "benchmark.csv").open(encoding="utf-8", newline="") as file:
        ms = {(row["shape"], row["variant"]): float(row["median_ms"]) for row in csv.DictReader(file)}
    print("| at | square / visited tiles | measured | busiest SM, tiles | of 132 equal parts | µs a tile |")
    print("|---|---|---|---|---|---|")
    for shape in capstone.timed:
        a_head, heads = tiles_walked(shape), shape.batch * shape.q_heads
        square = -(-shape.seq_q // ROWS) * -(-shape.seq_k // KEYS)
        before, after = ms[shape.name, "before"], ms[shape.name, "after"]
        most = busiest(a_head * heads)
        print(
            f"| {shape.name} | {square / sum(a_head):.2f} | {before / after:.2f} | {most} "
            f"| {sum(a_head) * heads / SMS:.0f} | {1000 * after / most:.2f} |"
        )
        longest_first = busiest([tiles for tiles in a_head for _ in range(heads)])
        if longest_first < 0.9 * most:
            print(f"{shape.name}, query tile by query tile over all heads: {longest_first} tiles", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())


# kept-from-students-3112b929406bdd8c

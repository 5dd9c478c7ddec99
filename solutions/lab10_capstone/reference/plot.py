"""Draws benchmark.png from benchmark.csv: `python plot.py`."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path


def figure(rows):
    """A matplotlib Figure of the table's rows (dicts, column -> text)."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: draw the table")
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = drawing.subplots()
    names = list(dict.fromkeys(row["shape"] for row in rows))
    for offset, variant in ((-0.2, "before"), (0.2, "after")):
        here = {row["shape"]: row for row in rows if row["variant"] == variant}
        places = [names.index(name) + offset for name in here]
        heights = [float(row["median_ms"]) for row in here.values()]
        spread = [float(row["iqr_ms"]) / 2 for row in here.values()]
        axes.bar(places, heights, width=0.38, yerr=spread, capsize=3, label=variant)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("shape (window and global tokens: capstone.toml)")
    axes.set_ylabel("median time a call, ms")
    machine = rows[0]
    axes.set_title(f"{machine['hardware']}, {machine['device']}, n = {machine['n']}")
    axes.legend()
    return drawing
    # END SOLUTION


def main() -> None:
    """Write benchmark.png with the table's hash in its metadata."""
    here = Path(__file__).resolve().parent
    table = (here / "benchmark.csv").read_bytes()
    rows = list(csv.DictReader(table.decode().splitlines()))
    digest = hashlib.sha256(table).hexdigest()
    figure(rows).savefig(here / "benchmark.png", dpi=110, metadata={"Source": f"benchmark.csv sha256:{digest}"})


if __name__ == "__main__":
    main()


# kept-from-students-b04736a20572c91d

"""Draws benchmark.png from benchmark.csv: `python plot.py`."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path


def figure(rows):
    """A matplotlib Figure of the table's rows (dicts, column -> text)."""
    from matplotlib.figure import Figure

    medians = {(row["shape"], row["variant"]): float(row["median_ms"]) for row in rows}
    names = [row["shape"] for row in rows if row["variant"] == "after"]
    drawing = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = drawing.subplots()
    axes.plot(range(len(names)), [medians[name, "before"] / medians[name, "after"] for name in names], marker="o")
    axes.axhline(1.0, color="grey", linestyle=":")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("shape of capstone.toml")
    axes.set_ylabel("time before over time after")
    axes.grid(alpha=0.3)
    return drawing


def main() -> None:
    """Write benchmark.png with the table's hash in its metadata."""
    here = Path(__file__).resolve().parent
    table = (here / "benchmark.csv").read_bytes()
    rows = list(csv.DictReader(table.decode().splitlines()))
    digest = hashlib.sha256(table).hexdigest()
    figure(rows).savefig(here / "benchmark.png", dpi=110, metadata={"Source": f"benchmark.csv sha256:{digest}"})


if __name__ == "__main__":
    main()


# kept-from-students-0b1b245b0011a717

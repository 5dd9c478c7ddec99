"""The picture of benchmark.csv: milliseconds of a training step's call path, before and after, a group a shape."""

from __future__ import annotations

from typing import Any


def figure(rows: list[dict[str, str]]) -> Any:
    """A matplotlib Figure of the table's rows (column → text)."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    drawn = Figure(figsize=(8, 4), dpi=120, layout="constrained")
    axis = drawn.subplots()
    for offset, variant in ((-0.2, "before"), (0.2, "after")):
        mine = {row["shape"]: row for row in rows if row["variant"] == variant}
        places = [place + offset for place, shape in enumerate(shapes) if shape in mine]
        medians = [float(mine[shape]["median_ms"]) for shape in shapes if shape in mine]
        spread = [float(mine[shape]["iqr_ms"]) / 2 for shape in shapes if shape in mine]
        bars = axis.bar(places, medians, 0.38, yerr=spread, capsize=3, label=variant)
        axis.bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
    axis.set_yscale("log")
    axis.set_xticks(range(len(shapes)), shapes, rotation=20, ha="right", fontsize=8)
    axis.set_ylabel("ms, without the kernel")
    axis.set_title(f"One forward and backward call on {rows[0]['hardware']}", fontsize=9)
    axis.grid(alpha=0.3, axis="y")
    axis.legend()
    return drawn


# kept-from-students-24bf03040b29e3ef

"""The picture of benchmark.csv: time of a decode step, and the bandwidth that it comes to, before and after."""

from __future__ import annotations

from typing import Any


def figure(rows: list[dict[str, str]]) -> Any:
    """A matplotlib Figure of the table's rows (column → text)."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    drawn = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    axes = drawn.subplots(1, 2)
    labels = (("median_ms", "ms a step", "%.3g"), ("gbs", "GB/s of K, V, q and o", "%.0f"))
    for axis, (column, label, form) in zip(axes, labels, strict=True):
        for offset, variant in ((-0.2, "before"), (0.2, "after")):
            mine = {row["shape"]: float(row[column]) for row in rows if row["variant"] == variant and row[column]}
            places = [place + offset for place, shape in enumerate(shapes) if shape in mine]
            bars = axis.bar(places, list(mine.values()), 0.38, label=variant)
            axis.bar_label(bars, fmt=form, fontsize=7, padding=2)
        axis.set_xticks(range(len(shapes)), shapes, fontsize=8)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, axis="y")
    drawn.axes[0].set_yscale("log")
    drawn.axes[0].legend()
    drawn.suptitle(f"{rows[0]['hardware']}, {rows[0]['dtype']}, replayed from a CUDA graph", fontsize=10)
    return drawn


# kept-from-students-46b642bb16f24b57

"""The picture of benchmark.csv: time of each shape before and after, and how many times as fast."""

from __future__ import annotations

from typing import Any


def figure(rows: list[dict[str, str]]) -> Any:
    """A matplotlib Figure of the table's rows (column → text)."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    drawn = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    times, ratios = drawn.subplots(1, 2, width_ratios=(2, 1))
    medians: dict[str, dict[str, float]] = {}
    for offset, variant in ((-0.2, "before"), (0.2, "after")):
        mine = {row["shape"]: row for row in rows if row["variant"] == variant}
        medians[variant] = {shape: float(row["median_ms"]) for shape, row in mine.items()}
        places = [place + offset for place, shape in enumerate(shapes) if shape in mine]
        spread = [float(mine[shape]["iqr_ms"]) / 2 for shape in shapes if shape in mine]
        bars = times.bar(places, list(medians[variant].values()), 0.38, yerr=spread, capsize=3, label=variant)
        times.bar_label(bars, fmt="%.3g", fontsize=7, padding=2)
    times.set_yscale("log")
    times.set_xticks(range(len(shapes)), shapes, rotation=25, ha="right", fontsize=8)
    times.set_ylabel("median time, ms")
    times.legend()
    both = [shape for shape in shapes if shape in medians["before"] and shape in medians["after"]]
    ratio = [medians["before"][shape] / medians["after"][shape] for shape in both]
    ratios.barh(range(len(both)), ratio, color="C2")
    ratios.set_yticks(range(len(both)), both, fontsize=8)
    ratios.axvline(1.0, color="black", linewidth=0.8)
    ratios.set_xlabel("before / after")
    ratios.invert_yaxis()
    drawn.suptitle(f"{rows[0]['hardware']}, {rows[0]['dtype']}", fontsize=10)
    return drawn


# kept-from-students-05b7b19d759d3050

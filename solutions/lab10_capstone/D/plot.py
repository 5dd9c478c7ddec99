"""The picture of benchmark.csv: TFLOP/s of upstream's kernel and of the port, and their ratio with a band of 20 %."""

from __future__ import annotations

from typing import Any


def figure(rows: list[dict[str, str]]) -> Any:
    """A matplotlib Figure of the table's rows (column → text)."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    table = {(row["shape"], row["variant"]): row for row in rows}
    shapes = [name for name in dict.fromkeys(row["shape"] for row in rows) if (name, "after") in table]
    drawn = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    rates, times, ratios = drawn.subplots(1, 3)
    for marker, variant, label in (("s", "before", "FlashAttention-2"), ("o", "after", "this port")):
        mine = [table[name, variant] for name in shapes]
        rates.plot([float(row["tflops"]) for row in mine], range(len(shapes)), marker, label=label)
        times.errorbar(
            [float(row["median_ms"]) for row in mine],
            range(len(shapes)),
            xerr=[float(row["iqr_ms"]) / 2 for row in mine],
            fmt=marker,
        )
    rates.set_xlabel("TFLOP/s of visible pairs")
    rates.legend(fontsize=8)
    times.set_xscale("log")
    times.xaxis.set_major_locator(FixedLocator([0.2, 0.4, 0.6, 0.8, 1.0]))
    times.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    times.xaxis.set_minor_locator(NullLocator())
    times.set_xlabel("median time, ms")
    ratio = [float(table[name, "before"]["median_ms"]) / float(table[name, "after"]["median_ms"]) for name in shapes]
    ratios.barh(range(len(shapes)), ratio, color="C2")
    ratios.axvspan(0.8, 1.2, color="grey", alpha=0.25)
    ratios.axvline(1.0, color="black", linewidth=0.8)
    ratios.set_xlabel("upstream / port (grey: within 20 %)")
    for axis in (rates, times, ratios):
        axis.set_yticks(range(len(shapes)), shapes, fontsize=8)
        axis.invert_yaxis()
        axis.grid(alpha=0.3, axis="x")
    drawn.suptitle(f"{rows[0]['hardware']}, {rows[0]['dtype']}", fontsize=10)
    return drawn


# kept-from-students-60a686f67c8607f2

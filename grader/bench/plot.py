"""A benchmark's picture: one line a kernel, one panel a shape family, drawn from the table alone."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path

from grader.bench.plans import BenchPlan
from grader.bench.table import Row
from grader.errors import InfrastructureError
from grader.files import replace_bytes
from grader.machine import unwritable

DPI = 110


def draw(path: Path, plan: BenchPlan, rows: Sequence[Row], title: str) -> bool:
    """Write the PNG; False when no row has a time, so that there is nothing to draw.

    Raises:
        InfrastructureError: matplotlib isn't installed. UsageError: the file can't be written.
    """
    timed = [row for row in rows if row["median_ms"]]
    if not timed:
        return False
    try:
        import matplotlib
    except ImportError as error:
        raise InfrastructureError(
            "The plot needs matplotlib, which isn't installed; the table is written.", hint="`pip install matplotlib`."
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys(tuple(row[name] for name in plan.panels) for row in timed))
    grid = list(itertools.product(plan.y, panels))
    wide = len(panels) if plan.panels else len(plan.y)
    high = len(grid) // wide
    figure, axes = plt.subplots(high, wide, figsize=(4.4 * wide, 3.8 * high), squeeze=False, layout="constrained")
    colours = {name: f"C{place % 10}" for place, name in enumerate(dict.fromkeys(row["kernel"] for row in timed))}
    lines = {}
    for axis, ((column, label), panel) in zip(axes.flat, grid, strict=True):
        here = [row for row in timed if tuple(row[name] for name in plan.panels) == panel and row[column]]
        for kernel in dict.fromkeys(row["kernel"] for row in here):
            line = sorted((float(row[plan.x]), float(row[column])) for row in here if row["kernel"] == kernel)
            x, y = zip(*line, strict=True)
            lines[kernel] = axis.plot(x, y, marker="o", color=colours[kernel])[0]
        axis.set_xscale("log", base=2)
        if column.endswith("_ms"):
            axis.set_yscale("log")
        axis.set_xlabel(plan.x)
        axis.set_ylabel(f"{label}, {timed[0]['dtype']}")
        axis.set_title(", ".join(f"{name} {value}" for name, value in zip(plan.panels, panel, strict=True)))
        axis.grid(alpha=0.3)
    # Below the panels: inside of one it would cover a line.
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), fontsize=8)
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    plt.close(figure)
    try:
        replace_bytes(path, picture.getvalue())
    except OSError as error:
        raise unwritable(str(path), error, hint="Choose another --out.") from error
    return True

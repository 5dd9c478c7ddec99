"""The picture of benchmark.csv: row errors against length, a panel a dtype and setting, a colour a kind of inputs."""

from __future__ import annotations

from typing import Any

SETTINGS = ("plain", "causal", "window", "rotary")


def figure(rows: list[dict[str, str]]) -> Any:
    """A matplotlib Figure of the table's rows (column → text): solid max, dashed median, the tolerance in black."""
    from matplotlib.figure import Figure

    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    inputs = list(dict.fromkeys(row["inputs"] for row in rows))
    drawn = Figure(figsize=(13, 3.1 * len(dtypes)), dpi=110, layout="constrained")
    axes = drawn.subplots(len(dtypes), len(SETTINGS), sharex=True, sharey="row", squeeze=False)
    for line, dtype in zip(axes, dtypes, strict=True):
        for axis, setting in zip(line, SETTINGS, strict=True):
            here = [row for row in rows if row["dtype"] == dtype and row["shape"].split("-")[-2] == setting]
            for number, kind in enumerate(inputs):
                own = sorted((row for row in here if row["inputs"] == kind), key=lambda row: int(row["seq_q"]))
                x = [int(row["seq_q"]) for row in own]
                axis.plot(x, [float(row["max"]) for row in own], "o-", color=f"C{number}", label=kind, markersize=3)
                axis.plot(x, [float(row["p50"]) for row in own], "--", color=f"C{number}", linewidth=0.9)
            if here:
                axis.axhline(float(here[0]["tolerance"]), color="black", linewidth=0.9)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_title(f"{dtype}, {setting}", fontsize=9)
            axis.grid(alpha=0.3)
        line[0].set_ylabel("error of a row")
    for axis in axes[-1]:
        axis.set_xlabel("length")
    axes[0][0].legend(fontsize=7, title="max (dashed: median)", title_fontsize=7)
    drawn.suptitle(f"{rows[0]['hardware']}, {rows[0]['rows']} rows each; black: the audited tolerance", fontsize=9)
    return drawn


# kept-from-students-a366f4c7c025285a

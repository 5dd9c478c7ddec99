"""How long `grade --help` takes, as a whole process: the median of many runs, against its budget.

    python benchmarks/startup.py [--runs 30] [--json FILE]

Exits 1 when the median is over the budget. `python -c pass` is measured between the runs of `grade`, so that a busy
machine shows in both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

BUDGET_S = 0.25


def wall_s(command: list[str]) -> float:
    """Wall time of one run in seconds.

    Raises:
        CalledProcessError: the command failed; its time would say nothing.
    """
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def quartiles(times: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"median_s": middle, "q1_s": low, "q3_s": high, "min_s": min(times)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the start-up time of `grade`.")
    parser.add_argument("--runs", type=int, default=30, help="runs of each command, after two to warm up")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    grade = shutil.which("grade", path=sysconfig.get_path("scripts")) or shutil.which("grade")
    if grade is None:
        print("error: `grade` is not installed; run `pip install -e .` first.", file=sys.stderr)
        return 2
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "grade --help": [grade, "--help"]}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(options.runs + 2):
        for name, command in commands.items():
            taken = wall_s(command)
            if turn >= 2:
                times[name].append(taken)
    figures = {name: quartiles(values) for name, values in times.items()}
    for name, row in figures.items():
        spread = f"quartiles {row['q1_s']:.3f} to {row['q3_s']:.3f}, least {row['min_s']:.3f}"
        print(f"{name:<15} median {row['median_s']:.3f} s ({spread}; {options.runs} runs)")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
    within = figures["grade --help"]["median_s"] <= BUDGET_S
    print(f"budget {BUDGET_S} s: {'held' if within else 'missed'}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())

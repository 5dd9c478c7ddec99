"""How long the command takes: start-up, one grade of a lab's reference, a worker's start.

Usage: ``python -m benchmarks.latency [--runs N] [--only NAME] [--output FILE]``. Wall time of whole processes, medians
of N runs after one warm-up, on an otherwise idle machine. Exits with 1 when a median misses its target.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GRADE = Path(sys.executable).with_name("grade")


@dataclass(frozen=True)
class Case:
    """One thing that is timed.

    Attributes:
        run: does it once; returns the seconds that count.
        target_s: the median must stay below this.
        runs: how many times, unless asked for otherwise.
    """

    name: str
    what: str
    run: Callable[[], float]
    target_s: float
    runs: int


def timed_command(*arguments: str) -> float:
    """Wall seconds of one `grade` command that must end with exit code 0."""
    start = time.perf_counter()
    done = subprocess.run([GRADE, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(
            f"grade {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return seconds


def graded_reference(lab_id: str, *options: str) -> Callable[[], float]:
    return lambda: timed_command(
        "run", lab_id, "--submission", f"solutions/{lab_id}/reference", "--device", "cpu", *options
    )


def worker_start() -> float:
    """Seconds from asking for a worker of a NumPy lab to its readiness, sealed where this machine can."""
    from grader.course import Course
    from grader.profiles import load_profile
    from grader.sandbox.levels import choose_isolation
    from grader.sandbox.stage import stage
    from grader.sandbox.submission import Submission

    course = Course.find(ROOT)
    lab = course.lab("lab02")
    profile = load_profile(course.root, "cpu")
    with stage(course.solution_dir(lab.id) / "reference", lab, course.starter_dir(lab.id)) as staged:
        start = time.perf_counter()
        with Submission(staged, lab, choose_isolation("auto"), "cpu", profile) as submission:
            submission.signature("softmax")
            return time.perf_counter() - start


CASES = (
    Case("help", "grade --help", lambda: timed_command("--help"), 0.25, 21),
    Case("worker", "worker start without torch, until the submission is imported", worker_start, 0.5, 11),
    Case("lab02", "grade lab02 on the reference", graded_reference("lab02_online_softmax"), 3.0, 7),
    Case("lab06", "grade lab06 on the reference, CPU", graded_reference("lab06_fa2_forward"), 90.0, 3),
)


def measure(case: Case, runs: int) -> dict[str, object]:
    """One row: median, interquartile range, n, target, verdict."""
    case.run()
    seconds = [case.run() for _ in range(runs)]
    low, _, high = statistics.quantiles(seconds, n=4) if runs > 1 else (seconds[0],) * 3
    median = statistics.median(seconds)
    print(
        f"{case.name:8} {median:8.3f} s  (IQR {high - low:.3f}, n {runs}, target {case.target_s:g} s)  {case.what}",
        flush=True,
    )
    return {
        "name": case.name,
        "what": case.what,
        "median_s": round(median, 4),
        "iqr_s": round(high - low, 4),
        "runs": runs,
        "target_s": case.target_s,
        "met": median < case.target_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, help="runs a case (default: each case's own)")
    parser.add_argument("--only", choices=[case.name for case in CASES], action="append")
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if not arguments.only or case.name in arguments.only]
    rows = [measure(case, arguments.runs or case.runs) for case in chosen]
    if arguments.output:
        environment = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            **{name: version(name) for name in ("numpy", "torch", "triton", "pytest", "typer")},
        }
        arguments.output.write_text(json.dumps({"environment": environment, "rows": rows}, indent=2) + "\n")
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

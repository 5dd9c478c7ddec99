"""What grading a class costs: time, CPU, memory, and what a `kill -9` or a cluster changes about the result.

Usage: ``python -m benchmarks.classroom [--count 200] [--part NAME]… [--output FILE]`` on an otherwise idle machine with
two cores. The class is made up (`benchmarks.classroom_corpus`): of 200 submissions 160 are honest, 40 hang, crash,
attack or can't be read. Ends with 1 when something that must hold doesn't.

Parts: ``throughput`` (--jobs 1 and 2, the same table from both), ``memory`` (of the run with two jobs), ``cpu`` (of one
right submission), ``kill`` (kill -9 in the middle, --resume), ``dask`` (a scheduler with two workers).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.classroom_corpus import make_corpus
from benchmarks.process_group import ProcessGroup

ROOT = Path(__file__).resolve().parent.parent
RESULTS_FILE = Path(__file__).parent / "results" / "classroom.json"
LAB = "lab02_online_softmax"
SECRET = "the benchmark's own secret"
TIMES = ("received_at", "graded_at")
PARTS = ("throughput", "memory", "cpu", "kill", "dask")
SAMPLE_S = 0.5
CPU_COPIES = (2, 22)
"""Right submissions in the two batches whose difference is the cost of one: what a batch costs once drops out."""

MIN_SPEEDUP = 1.7
MAX_CPU_S = 0.8
MAX_GROWTH_MIB = 10.0
"""Growth of the batch's lasting processes from the second quarter of a run to its last."""


@dataclass
class Run:
    """One batch, measured from outside.

    Attributes:
        cpu_s: of all its processes, sandboxes included.
        lasting_mib: (submissions done, resident MiB of the parent and the warm judge) over the run.
        total_mib: resident MiB of all its processes, at the same moments.
        orphans: what still ran when it had ended.
    """

    results: Path
    code: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    lasting_mib: list[tuple[int, float]] = field(default_factory=list)
    total_mib: list[float] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    def records(self) -> int:
        return len(list((self.results / "records").glob("*/*/*.json")))

    def table(self) -> list[dict[str, str]]:
        """The gradebook but for its times."""
        with open(self.results / "gradebook.csv", newline="", encoding="utf-8") as file:
            return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


class Bench:
    """The corpus and the folders of one invocation."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.corpus = folder / "class"
        make_corpus(self.corpus, count=count)
        self.runs: dict[str, Run] = {}
        self.checks: dict[str, bool] = {}

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADE_")}
        return {**kept, "GRADE_SECRET": SECRET, "TMPDIR": str(self.tmp), "NO_COLOR": "1"}

    def words(self, submissions: Path, results: Path, *more: str) -> list[str]:
        grade = [sys.executable, "-c", "from grader.cli.main import main; main()"]
        return [*grade, "batch", str(submissions), "-o", str(results), "--labs", LAB, *more]

    def batch(
        self, name: str, *more: str, submissions: Path | None = None, until: Callable[[Run], bool] | None = None
    ) -> Run:
        """Run one batch; with `until`, kill it by SIGKILL as soon as that holds."""
        run = Run(self.folder / name)
        print(f"{name}: grade batch {' '.join(more)}", flush=True)
        with ProcessGroup() as group, open(self.folder / f"{name}.log", "ab") as log:
            start = time.monotonic()
            process = subprocess.Popen(
                self.words(submissions or self.corpus, run.results, *more),
                cwd=ROOT,
                env=self.environment(),
                stdout=log,
                stderr=log,
                preexec_fn=group.join,
            )
            while process.poll() is None:
                time.sleep(SAMPLE_S)
                lasting, total = group.resident_mib(process.pid)
                run.lasting_mib.append((run.records(), lasting))
                run.total_mib.append(total)
                if until is not None and until(run):
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            run.code, run.wall_s = process.returncode, time.monotonic() - start
            run.orphans = group.left(patience_s=10.0)
            run.cpu_s = group.cpu_s()
        print(f"  {run.wall_s:.1f} s, {run.cpu_s:.1f} s of CPU, {run.records()} records, exit {run.code}", flush=True)
        return run

    def check(self, name: str, holds: bool) -> None:
        self.checks[name] = holds
        print(f"  {'ok  ' if holds else 'FAIL'} {name}", flush=True)

    def whole(self, jobs: int) -> Run:
        """The undisturbed run with so many jobs, made once."""
        name = f"jobs-{jobs}"
        if name not in self.runs:
            run = self.runs[name] = self.batch(name, "--jobs", str(jobs))
            rows = len(run.table()) if run.code == 0 else 0
            self.check(f"{name}: exit 0", run.code == 0)
            self.check(f"{name}: {self.count} rows", rows == self.count)
            self.check(f"{name}: no orphan", not run.orphans)
            self.check(f"{name}: no file but results", self._clean(run))
        return self.runs[name]

    def _clean(self, run: Run) -> bool:
        return not list(self.tmp.iterdir()) and not (run.results / ".work").exists()

    # Parts

    def throughput(self) -> dict[str, object]:
        one, two = self.whole(1), self.whole(2)
        speedup = one.wall_s / two.wall_s
        self.check(f"--jobs 2 is at least {MIN_SPEEDUP} times as fast as 1", speedup >= MIN_SPEEDUP)
        self.check("the same table from 1 and 2 jobs", one.table() == two.table())
        return {
            "jobs_1_s": round(one.wall_s, 2),
            "jobs_2_s": round(two.wall_s, 2),
            "speedup": round(speedup, 3),
            "jobs_1_per_minute": round(60 * self.count / one.wall_s, 1),
            "jobs_2_per_minute": round(60 * self.count / two.wall_s, 1),
            "cpu_s_a_submission_of_the_class": round(one.cpu_s / self.count, 3),
        }

    def memory(self) -> dict[str, object]:
        run = self.whole(2)
        lasting = [mib for done, mib in run.lasting_mib if done]
        quarter = max(len(lasting) // 4, 1)
        early, late = lasting[quarter : 2 * quarter] or lasting, lasting[-quarter:]
        growth = statistics.median(late) - statistics.median(early)
        self.check(f"lasting processes grow by less than {MAX_GROWTH_MIB:g} MiB", growth < MAX_GROWTH_MIB)
        return {
            "peak_of_all_processes_mib": round(max(run.total_mib), 1),
            "lasting_early_mib": round(statistics.median(early), 1),
            "lasting_late_mib": round(statistics.median(late), 1),
            "growth_mib": round(growth, 2),
        }

    def cpu(self) -> dict[str, object]:
        costs = []
        for copies in CPU_COPIES:
            folder = self.folder / f"references-{copies}"
            for number in range(copies):
                shutil.copytree(ROOT / "solutions" / LAB / "reference", folder / f"s{number:02d}" / LAB)
            run = self.batch(f"cpu-{copies}", "--jobs", "1", submissions=folder)
            self.check(f"cpu-{copies}: all full marks", {row["final"] for row in run.table()} == {"100"})
            self.check(f"cpu-{copies}: sealed", {row["isolation"] for row in run.table()} == {"sealed"})
            costs.append(run.cpu_s)
        each = (costs[1] - costs[0]) / (CPU_COPIES[1] - CPU_COPIES[0])
        once = costs[0] - CPU_COPIES[0] * each
        self.check(f"a right submission takes at most {MAX_CPU_S} s of CPU", each <= MAX_CPU_S)
        return {"cpu_s_a_submission": round(each, 3), "cpu_s_a_batch": round(once, 3)}

    def kill(self) -> dict[str, object]:
        calm = self.whole(2)
        half = self.count * 2 // 5
        killed = self.batch("killed", "--jobs", "2", until=lambda run: run.records() >= half)
        kept = killed.records()
        self.check("killed in the middle", killed.code == -signal.SIGKILL and half <= kept < self.count)
        self.check("no orphan after kill -9", not killed.orphans)
        resumed = self.batch("killed", "--jobs", "2", "--resume")
        self.check("resumed: exit 0", resumed.code == 0)
        self.check("resumed: no orphan, no file but results", not resumed.orphans and self._clean(resumed))
        self.check("the table of an undisturbed run", resumed.table() == calm.table())
        return {"records_when_killed": kept, "resume_s": round(resumed.wall_s, 2)}

    def dask(self) -> dict[str, object]:
        calm = self.whole(2)
        with ExitStack() as stack:
            address = self.folder / "scheduler.json"

            def start(*words: str) -> None:
                code = f"from distributed.cli.{words[0]} import main; main()"
                command = [sys.executable, "-c", code, *words[1:], "--scheduler-file", str(address), "--no-dashboard"]
                log = stack.enter_context(open(self.folder / "dask.log", "ab"))
                process = subprocess.Popen(command, cwd=ROOT, env=self.environment(), stdout=log, stderr=log)
                stack.callback(process.wait)
                stack.callback(process.terminate)

            start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")
            while not (address.exists() and address.read_text().endswith("\n}")):  # there, and empty, before
                time.sleep(0.1)
            for name in ("one", "two"):
                folder = str(self.folder / name)
                start("dask_worker", "--no-nanny", "--nthreads", "1", "--name", name, "--local-directory", folder)
            where = json.loads(address.read_text())["address"]
            run = self.batch("dask", "--scheduler", where)
        self.check("dask: exit 0", run.code == 0)
        self.check("dask: the table of this machine", run.table() == calm.table())
        return {"two_workers_s": round(run.wall_s, 2)}


def _surroundings() -> set[str]:
    """Names in the places where a careless program leaves files."""
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home(), ROOT]
    return {str(path) for place in places if place.is_dir() for path in place.iterdir()}


def _written(output: Path, count: int) -> dict[str, Any]:
    """What other parts have measured on a class of the same size; empty when there's nothing of the kind."""
    try:
        document: dict[str, Any] = json.loads(output.read_text())
    except (OSError, ValueError):
        return {}
    return document if document.get("submissions") == count else {}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="submissions of the class")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be given several times")
    parser.add_argument("--output", type=Path, default=RESULTS_FILE)
    words = parser.parse_args(argv)
    chosen = words.part or list(PARTS)
    before = _surroundings()
    with tempfile.TemporaryDirectory(prefix="classroom-") as folder:
        before |= {folder}
        bench = Bench(Path(folder), words.count)
        figures = {part: getattr(bench, part)() for part in chosen}
        strays = sorted(_surroundings() - before)
        bench.check("no file outside the results", not strays)
    before_now = _written(words.output, words.count) if words.part else {}
    document = {
        **before_now,
        "environment": {
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
            "machine": platform.machine(),
            **{name: version(name) for name in ("numpy", "pytest", "distributed")},
        },
        "submissions": words.count,
        **figures,
        "checks": {**before_now.get("checks", {}), **bench.checks},
        "strays": strays,
    }
    words.output.parent.mkdir(exist_ok=True)
    words.output.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    return 0 if all(bench.checks.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())

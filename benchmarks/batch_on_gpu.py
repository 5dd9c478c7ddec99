"""How many lab06 submissions a minute `grade batch` grades on this machine's GPUs, and how long each holds a card.

Usage: ``python -m benchmarks.batch_on_gpu [--count N] [--devices 0[,1]] [--output FILE] [--device cpu]``

The submissions are lab06's right answers, taken in turn, each with a comment of its own so that none is graded twice.
The file is taken up again: the figures of each set of devices stand beside those of the others. ``--device cpu`` is a
rehearsal of the public checks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.race_bench import LAB, ROOT
from benchmarks.reference_grades import held_s
from grader.classroom.records import results_folder
from grader.course import Course
from grader.errors import ExitCode
from grader.mutants import load_variants, materialise
from grader.profiles import detect

RESULTS = Path(__file__).parent / "results" / "batch_h200.json"
GRADE = [sys.executable, "-m", "grader"]
LEAST_A_MINUTE = 3.0
"""On one card."""
LEAST_GAIN = 1.8
"""Of two cards of one host over one."""
Json = dict[str, Any]


def submissions(course: Course, into: Path, count: int) -> dict[str, str]:
    """So many folders of students, and which right answer each holds."""
    lab = course.lab(LAB)
    solutions = course.solution_dir(lab.id)
    variants = load_variants(solutions)
    names = itertools.cycle(["reference", *(variant.name for variant in variants)])
    held = {}
    for number, name in enumerate(itertools.islice(names, count), start=1):
        student = into / f"student{number:02}" / lab.id
        student.parent.mkdir(parents=True)
        variant = next((each for each in variants if each.name == name), None)
        shutil.copytree(solutions / "reference", student) if variant is None else materialise(variant, student)
        for file in lab.files.edit:
            if (student / file).suffix == ".py":
                with (student / file).open("a", encoding="utf-8") as text:
                    text.write(f"# {number}\n")
        held[student.parent.name] = name
    return held


def batch(folder: Path, results: Path, options: list[str]) -> float:
    """Wall seconds of `grade batch`."""
    start = time.perf_counter()
    done = subprocess.run([*GRADE, "batch", str(folder), "-o", str(results), "--labs", LAB, *options], cwd=ROOT)
    if done.returncode not in (ExitCode.OK, ExitCode.POINTS_LOST, ExitCode.INFRASTRUCTURE):
        raise SystemExit(f"grade batch ended with {done.returncode}.")
    return time.perf_counter() - start


def figures(results: Path, held: dict[str, str], seconds: float) -> Json:
    """Rate, and for each submission its points, seconds and how long it had a card to itself."""
    rows = {}
    for record in results_folder(results).records():
        if record.report is None:
            raise SystemExit(f"{record.student} was not graded: {record.message}")
        checks = record.report.checks
        rows[record.student] = {
            "answer": held[record.student],
            "seconds": record.report.duration_s,
            "held_s": round(sum(map(held_s, checks)), 2),
            "lost": {
                check.id: f"{check.status.value}, {check.points:g} of {check.max_points:g}: {check.message}"
                for check in checks
                if check.points < check.max_points and check.status.value != "skipped"
            },
        }
    times, holds = ([row[name] for row in rows.values()] for name in ("seconds", "held_s"))
    return {
        "submissions": len(rows),
        "wall_s": round(seconds, 1),
        "a_minute": round(60.0 * len(rows) / seconds, 2),
        "median_s": statistics.median(times),
        "median_held_s": statistics.median(holds),
        "longest_held_s": max(holds),
        "rows": rows,
    }


def unmet(found: Json) -> list[str]:
    """Expectations that the figures of all sets of devices don't meet."""
    said = []
    for devices, one in found.items():
        count = len(devices.split(","))
        if one["a_minute"] < LEAST_A_MINUTE * (1.0 if count == 1 else LEAST_GAIN):
            said.append(f"devices {devices}: {one['a_minute']} submissions a minute")
        said += [
            f"devices {devices}, {student} ({row['answer']}): {row['lost']}"
            for student, row in one["rows"].items()
            if row["lost"]
        ]
    if "0" in found and "0,1" in found and found["0,1"]["a_minute"] < LEAST_GAIN * found["0"]["a_minute"]:
        said.append(f"two cards: {found['0,1']['a_minute'] / found['0']['a_minute']:.2f} times one")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--devices", default="0")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    options = ["--device", chosen.device]
    options += ["--devices", chosen.devices] if chosen.device == "cuda" else ["--public-only"]
    options += ["--jobs", str(chosen.jobs)] if chosen.jobs else []
    results: Json = json.loads(chosen.output.read_text()) if chosen.output.exists() else {"devices": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch) / "class", Path(scratch) / "results"
        held = submissions(Course.find(ROOT), folder, chosen.count)
        seconds = batch(folder, out, options)
        found = figures(out, held, seconds)
    gpu = detect().gpu
    results["device"] = (
        {name: value for name, value in asdict(gpu).items() if name not in ("index", "uuid")} if gpu else "CPU"
    )
    results["command"] = "python -m benchmarks.batch_on_gpu"
    results["devices"][chosen.devices if chosen.device == "cuda" else "cpu"] = found
    chosen.output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}, indent=1))
    said = unmet({name: one for name, one in results["devices"].items() if name != "cpu"})
    for line in said:
        print(f"NOT MET {line}")
    return int(bool(said))


if __name__ == "__main__":
    raise SystemExit(main())

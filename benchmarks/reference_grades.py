"""The references of labs 06 to 08, graded on the GPUs at hand: every check, the timed ones with a GPU to themselves.

A part of `benchmarks.speed_on_gpu`. As a program, ``python -m benchmarks.reference_grades LAB CHECK,… FILE [--device
cpu]``, it grades some checks of one lab; FILE is written after each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import side_by_side
from grader.course import Course, Lab
from grader.files import replace_text
from grader.profiles import detect
from grader.report.model import CheckResult, Kind
from grader.session import GradeRequest, grade

LABS = ("lab06", "lab07", "lab08")
CORES_A_JOB = 3
"""Of the jobs into which a lab's other checks are dealt: most of their time they compile."""
FINE = ("pass", "skipped", "pending")
Json = dict[str, Any]


def timed(lab: Lab) -> list[str]:
    """The checks that need a GPU to themselves."""
    return [name for name, spec in lab.checks.items() if spec.kind is Kind.SPEED]


def dealt(lab: Lab, cores: int) -> list[list[str]]:
    """The other checks in as many groups as the machine has cores for; a group's checks run one after the other."""
    others = [name for name, spec in lab.checks.items() if spec.kind is not Kind.SPEED]
    count = max(1, min(len(others), cores // (CORES_A_JOB * len(LABS))))
    return [others[first::count] for first in range(count)]


def grade_checks(
    course: Course, lab_name: str, checks: Iterable[str], device: str, keep: Callable[[Json], None]
) -> None:
    """Call `keep` after each check with all that is known: check → status, points, message, a timed one's measures."""
    lab, chosen = course.lab(lab_name), frozenset(checks)
    found: Json = {}
    start = time.perf_counter()
    # While checks run, standard output is the grading's log.
    told = sys.stdout

    def note(check: CheckResult) -> None:
        found[check.id] = {"status": check.status.value, "points": check.points, "of": check.max_points}
        found[check.id] |= {"message": check.message} if check.message else {}
        found[check.id] |= {"measured": check.measured} if lab.checks[check.id].kind is Kind.SPEED else {}

    def progress(check_id: str, result: CheckResult | None) -> None:
        if result is not None:
            note(result)
            keep(found)
            print(f"{check_id}: {result.status.value}, {time.perf_counter() - start:.0f} s", file=told, flush=True)

    folder = course.solution_dir(lab.id) / "reference"
    request = GradeRequest(course=course, lab_id=lab.id, submission=folder, device=device, checks=chosen)
    for check in grade(request, progress=progress).checks:
        if check.id in chosen:
            note(check)
    keep(found)


def summary(lab: Lab, found: Mapping[str, Any], *, on_gpu: bool) -> Json:
    """A lab's points, and what isn't as a reference's should be.

    Args:
        found: check → its table.
        on_gpu: every check must have run, the timed ones too.
    """
    checks = {name: found[name] for name in lab.checks if name in found}
    unmet = [f"{name}: {check['status']}" for name, check in checks.items() if check["status"] not in FINE]
    wanted = list(lab.checks) if on_gpu else timed(lab)
    unmet += [f"{name}: not graded" for name in wanted if name not in checks]
    if on_gpu:
        unmet += [f"{name}: not timed" for name in timed(lab) if checks.get(name, {}).get("status") == "skipped"]
    counted = [check for check in checks.values() if check["status"] not in ("skipped", "pending")]
    return {
        "points": sum(check["points"] or 0.0 for check in counted),
        "gradable": sum(check["of"] for check in counted),
        "checks": checks,
        "unmet": unmet,
    }


def grades(
    course: Course,
    device: str,
    before: Mapping[str, Any],
    say: Callable[[str], None],
    keep: Callable[[Json], None],
) -> Json:
    """Every lab's summary. Labs that `before` has without anything unmet aren't graded again.

    A rehearsal on a CPU leaves out all but the timed checks: the others take minutes in the interpreter.

    Args:
        keep: called with the summaries, also when the run is broken off.
    """
    labs: Json = {name: part for name, part in before.items() if not part["unmet"]}
    left = {name: course.lab(name) for name in LABS if name not in labs}
    on_gpu = device == "cuda"
    devices = [gpu.uuid for gpu in detect().gpus] if on_gpu else [""]
    others = [(name, checks) for name, lab in left.items() if on_gpu for checks in dealt(lab, os.cpu_count() or 1)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            side_by_side.run(_jobs(others, device, folder), devices, say, on_each=max(1, len(others)))
            say("the timed checks begin")
            last = [(name, timed(lab)) for name, lab in left.items()]
            side_by_side.run(_jobs(last, device, folder), devices, say, on_each=1)
        finally:
            for name, lab in left.items():
                found: Json = {}
                for file in sorted(folder.glob(f"{name}*.json")):
                    found |= json.loads(file.read_text(encoding="utf-8"))
                labs[name] = summary(lab, found, on_gpu=on_gpu)
            keep(labs)
    return {name: labs[name] for name in LABS}


def _jobs(parts: Sequence[tuple[str, list[str]]], device: str, folder: Path) -> dict[str, list[str]]:
    """Programs for `side_by_side.run`, each of which writes LAB…json in the folder."""
    jobs = {}
    for name, checks in parts:
        label = f"{name}, {checks[0]}…"
        file = folder / f"{name}-{checks[0]}.json"
        jobs[label] = ["-m", "benchmarks.reference_grades", name, ",".join(checks), str(file), f"--device={device}"]
    return jobs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("lab")
    parser.add_argument("checks")
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen = parser.parse_args()

    def keep(found: Json) -> None:
        replace_text(chosen.output, json.dumps(found))

    grade_checks(Course.find(side_by_side.ROOT), chosen.lab, chosen.checks.split(","), chosen.device, keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The references of labs 06 to 08 by `grade`, as an instructor would: points, seconds, and how long they hold the card.

A part of `benchmarks.speed_on_gpu`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grader.course import Course
from grader.report.json import loads
from grader.report.model import CheckResult, Kind, Report, Status

LABS = ("lab06", "lab07", "lab08")
MOST_S, MOST_HELD_S = 60.0, 15.0
"""What a lab may take on 16 cores and one card, and for how long it may have the card to itself."""
FINE = (Status.PASS, Status.SKIPPED, Status.PENDING)
Json = dict[str, Any]


def graded(course: Course, lab: str, device: str) -> Report:
    """`grade` of a lab's reference; on a CPU, where a rehearsal needs no more, of its timed checks."""
    folder = course.solution_dir(course.lab(lab).id) / "reference"
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "report.json"
        command = [
            sys.executable,
            "-m",
            "grader",
            lab,
            f"--submission={folder}",
            f"--device={device}",
            f"--json={file}",
        ]
        done = subprocess.run([*command, *(["-k", "speed"] if device == "cpu" else [])], cwd=course.root, check=False)
        if not file.exists():
            raise RuntimeError(f"grade {lab} ended with {done.returncode} and wrote no report.")
        return loads(file.read_text(encoding="utf-8"))


def held_s(check: CheckResult) -> float:
    """Seconds for which a check's races had the card."""
    return sum(float(value) for name, value in check.measured.items() if name.endswith(": device held_s"))


def summary(report: Report, *, on_gpu: bool) -> Json:
    """A lab's points and times, and what isn't as a reference's should be.

    Args:
        on_gpu: the timed checks must have run, and the times are held to their goals.
    """
    counted = [check for check in report.checks if check.status not in (Status.SKIPPED, Status.PENDING)]
    held = sum(map(held_s, report.checks))
    unmet = [f"{check.id}: {check.status.value}" for check in report.checks if check.status not in FINE]
    if on_gpu:
        timed = [check for check in report.checks if check.kind is Kind.SPEED]
        unmet += [f"{check.id}: not timed" for check in timed if check.status is Status.SKIPPED]
        unmet += [f"{report.duration_s:.0f} s"] if report.duration_s > MOST_S else []
        unmet += [f"the card held for {held:.1f} s"] if held > MOST_HELD_S else []
    return {
        "points": sum(check.points for check in counted),
        "gradable": sum(check.max_points for check in counted),
        "seconds": round(report.duration_s, 1),
        "held_s": round(held, 1),
        "checks": {check.id: _told(check) for check in report.checks},
        "unmet": unmet,
    }


def _told(check: CheckResult) -> Json:
    found: Json = {"status": check.status.value, "points": check.points, "of": check.max_points}
    found |= {"message": check.message} if check.message else {}
    return found | ({"measured": check.measured} if check.kind is Kind.SPEED else {})


def grades(
    course: Course,
    device: str,
    before: Mapping[str, Any],
    say: Callable[[str], None],
    keep: Callable[[Json], None],
) -> Json:
    """Every lab's summary. Labs that `before` has without anything unmet aren't graded again.

    Args:
        keep: called with the summaries after each lab.
    """
    labs: Json = {name: part for name, part in before.items() if not part["unmet"]}
    for name in (each for each in LABS if each not in labs):
        labs[name] = part = summary(graded(course, name, device), on_gpu=device == "cuda")
        say(f"{name}: {part['points']:g} of {part['gradable']:g} points, {part['seconds']} s, held {part['held_s']} s")
        keep(labs)
    return {name: labs[name] for name in LABS}

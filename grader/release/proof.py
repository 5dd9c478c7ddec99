"""Grades with the bundle alone, as a student would: its own grader and course, nothing of the instructor's copy.

A starter's points don't show whether the capstones' harness finds all that it needs: it makes a report of each option.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.errors import CourseError
from grader.judge.anatomy import source
from grader.judge.capstone import patch, report_form
from grader.report import json as report_json
from grader.report.model import Report, Status, tally

MAX_STARTER_POINTS = 5
GRADE_TIMEOUT_S = 900.0
PATCH_OPTION, PATCHED = "E", "flash_attn/flash_attn_interface.py"
KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "GRADE_OFFLINE",
    "GRADE_FORBID_NAMESPACES",
)


@dataclass(frozen=True)
class Proof:
    """What the bundle's own grader says of one lab's starter."""

    lab_id: str
    report: Report

    @property
    def points(self) -> float:
        return tally(self.report.checks).points


def bundle_environment(bundle: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a student's shell: no secret, no other course, the bundle's grader before an installed one."""
    kept = {name: environ[name] for name in KEPT_VARIABLES if name in environ}
    return {**kept, "PYTHONPATH": str(bundle), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def run_grade(bundle: Path, words: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the bundle's `grade` in a process of its own.

    Raises:
        CourseError: it doesn't end in time.
    """
    command = [sys.executable, "-P", "-c", "from grader.cli.main import main; main()", *words]
    environment = bundle_environment(bundle, os.environ)
    try:
        return subprocess.run(
            command, cwd=cwd or bundle, env=environment, capture_output=True, text=True, timeout=GRADE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise CourseError(f"`grade {' '.join(words)}` of the bundle took more than {GRADE_TIMEOUT_S:g} s.") from error


def prove(bundle: Path, lab_id: str) -> Proof:
    """Grade the starter of a lab with the bundle; `grade init` must have been run in it.

    Raises:
        CourseError: the bundle's grader fails, runs a hidden check, or gives the starter more than it may have.
    """
    done = run_grade(bundle, ["run", lab_id, "--json", "-"])
    if done.returncode not in (0, 1):
        last = " ".join(done.stderr.split())[-500:]
        raise CourseError(f"{lab_id}: the bundle's own `grade` fails (exit {done.returncode}): {last}")
    proof = Proof(lab_id, report_json.loads(done.stdout))
    ran = [check.id for check in proof.report.checks if check.hidden and check.status is not Status.SKIPPED]
    if ran:
        raise CourseError(f"{lab_id}: hidden checks ran in the bundle: {', '.join(ran)}.")
    if proof.points > MAX_STARTER_POINTS:
        raise CourseError(
            f"{lab_id}: the starter in the bundle gets {proof.points:g} points, expected at most {MAX_STARTER_POINTS}.",
            hint="Run `make starters`, and look at what the starter still has.",
        )
    return proof


def prove_report(bundle: Path, option: str, folder: Path) -> int:
    """Lay out a capstone with the bundle and have its harness write a report; how many rows that has.

    What is laid out is no answer, so its rows fail: what counts is that the harness gets that far. Of option E, whose
    code is a patch of the pinned tree, the patch adds a line without a meaning.

    Args:
        folder: where to lay it out.

    Raises:
        UnavailableError: the pinned tree can't be had here. CourseError: the bundle's `grade capstone` fails.
    """
    _capstone(bundle, option, ["new", "--option", option, str(folder)], (0,))
    if option == PATCH_OPTION:
        (folder / patch.FILE).write_text(_idle_patch(), encoding="utf-8")
    _capstone(bundle, option, ["report", str(folder), "--device", "cpu"], (0, 1))
    return len(report_form.read((folder / report_form.FILE).read_bytes()).rows)


def _capstone(bundle: Path, option: str, words: Sequence[str], expected: Sequence[int]) -> None:
    done = run_grade(bundle, ["capstone", *words])
    if done.returncode not in expected:
        last = " ".join(done.stderr.split())[-500:]
        raise CourseError(
            f"option {option}: the bundle's own `grade capstone {words[0]}` fails (exit {done.returncode}): {last}",
            hint="A file that the harness reads may belong to a lab that isn't handed out.",
        )


def _idle_patch() -> str:
    lines = source.load().files[PATCHED].splitlines(keepends=True)
    changed = [lines[0], "# graded with the bundle alone\n", *lines[1:]]
    return "".join(difflib.unified_diff(lines, changed, f"a/{PATCHED}", f"b/{PATCHED}"))

"""What `grade release` does: checks the labs, makes the bundle, looks for leaks in it, grades with it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grader.capstones.layout import LAB as CAPSTONE
from grader.capstones.layout import OPTIONS
from grader.cli.console import say
from grader.course import Course
from grader.errors import CourseError, ExitCode, UsageError
from grader.judge.upstream import UnavailableError
from grader.release.bundle import BUNDLE_NAME, bundle_files, find_leaks, write_bundle
from grader.release.labs import problems_of
from grader.release.proof import prove, prove_report, run_grade
from grader.report.text import clean, count, one_line

MAX_LEAKS_TOLD = 10


def release_and_tell(dist: Path | None, *, check: bool, labs: str) -> int:
    """Exit code 0 when every lab asked for may be handed out, and the bundle is written.

    Raises:
        UsageError: neither a folder nor --check was given, or a lab is unknown.
        CourseError: a lab or the bundle fails its proof; nothing is left in `dist` then.
    """
    if dist is None and not check:
        raise UsageError("Where to?", hint="grade release DIST makes the bundle; grade release --check only checks.")
    course = Course.find()
    lab_ids = [course.resolve(name) for name in labs.split(",") if name.strip()] or course.lab_ids()
    if check:
        _check(course, lab_ids)
    if dist is not None:
        _release(course, lab_ids, dist)
    return int(ExitCode.OK)


def _check(course: Course, lab_ids: Sequence[str]) -> None:
    failed = []
    for number, lab_id in enumerate(lab_ids, start=1):
        say(f"[{number}/{len(lab_ids)}] {lab_id[:5]}: grading the starter and the reference …")
        problems = list(problems_of(course, lab_id))
        for problem in problems:
            print(f"{lab_id[:5]}  {one_line(problem, max_characters=400)}", flush=True)
        if problems:
            failed.append(lab_id[:5])
        else:
            print(f"{lab_id[:5]}  may be handed out", flush=True)
    if failed:
        raise CourseError(f"Not to be handed out as it is: {', '.join(failed)}.")


def _release(course: Course, lab_ids: Sequence[str], dist: Path) -> None:
    files = bundle_files(course, lab_ids)
    leaks = find_leaks(course, files)
    if leaks:
        told = "; ".join(f"{leak.place} holds {leak.what!r} of {leak.source}" for leak in leaks[:MAX_LEAKS_TOLD])
        raise CourseError(f"{len(leaks)} leaks in the bundle, which was not written: {clean(told)}.")
    say(f"{len(files)} files, no mark and no line of a hidden test or a solution in them")
    with tempfile.TemporaryDirectory(prefix="grade-release-") as scratch:
        bundle, _ = write_bundle(files, Path(scratch))
        laid_out = run_grade(bundle, ["init"])
        if laid_out.returncode:
            raise CourseError(f"The bundle's own `grade init` fails: {clean(laid_out.stderr)}")
        for number, lab_id in enumerate(lab_ids, start=1):
            proof = prove(bundle, lab_id)
            hidden = sum(check.hidden for check in proof.report.checks)
            say(
                f"[{number}/{len(lab_ids)}] the bundle grades {lab_id[:5]} alone: starter {proof.points:g} points, "
                f"{hidden} hidden checks not run"
            )
        if CAPSTONE in lab_ids:
            _prove_reports(bundle, Path(scratch))
    folder, packed = write_bundle(files, dist)
    print(f"{folder}\n{packed}\nsha256 of the zip {hashlib.sha256(packed.read_bytes()).hexdigest()}")
    say(f"hand out {packed.name}: students unpack it, install it and run `grade init` in {BUNDLE_NAME}/")


def _prove_reports(bundle: Path, scratch: Path) -> None:
    for option in OPTIONS:
        try:
            rows = prove_report(bundle, option, scratch / f"capstone-{option}")
        except UnavailableError as error:
            say(f"option {option}: no report was made, {error}")
        else:
            say(f"option {option}: the bundle's harness makes a report of {count(rows, 'row')}")

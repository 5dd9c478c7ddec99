"""What `grade profile calibrate` and `grade profile thresholds` show while and after they measure."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from grader.cli.console import STDOUT, say
from grader.cli.listing import emit
from grader.cli.progress import Progress
from grader.cli.submission import shown
from grader.course import Course
from grader.errors import ExitCode


def calibrate_and_show(name: str | None, *, dry_run: bool, json_target: str | None) -> int:
    """Measure the card, show the rates, write the profile.

    Raises:
        GraderError: no card, or it can't be measured or written. The rates are shown before the file is written.
    """
    from grader.calibration.calibrate import calibrate, write

    course = Course.find()
    done = calibrate(course, name, lambda what: say(f"measuring: {what}"))
    if json_target is not None:
        emit({"profile": done.name, "new": done.new, "written": not dry_run, "table": done.table}, json_target)
    if json_target != STDOUT:
        found = done.found
        print(f"{found.gpu.name}, sm_{found.sm}, driver {found.gpu.driver}")
        print(f"  copy      {found.copy_gbs:.0f} GB/s (read plus write)")
        for dtype, rate in found.gemm_tflops.items():
            print(f"  {dtype:<9} {rate:.1f} TFLOP/s, GEMM")
        for dtype, reason in found.unmeasured.items():
            print(f"  {dtype:<9} not measured: {reason}")
        for mib, rate in found.cached:
            print(f"  {mib:>5g} MiB {rate:.0f} GB/s, copies of this footprint")
    if not dry_run:
        path = write(course, done)
        say(f"{'profile' if done.new else 'measured rates'} written to {shown(path)}")
    return int(ExitCode.OK)


def thresholds_and_show(
    lab_name: str, submission: Path | None, profile: str | None, *, dry_run: bool, json_target: str | None
) -> int:
    """Grade the reference's speed, show what follows, write it.

    Raises:
        GraderError: no card or no reference here, or nothing usable was measured.
    """
    from grader.calibration import files
    from grader.calibration.thresholds import measure_thresholds, speed_checks, write_thresholds

    course = Course.find()
    if not dry_run:
        files.check_writable(course.root)
    progress = Progress(len(speed_checks(course.lab(lab_name))))
    try:
        derived = measure_thresholds(course, lab_name, submission=submission, profile=profile, progress=progress)
    finally:
        progress.close()
    if json_target is not None:
        reached = {ref.check_id: {m: asdict(i) for m, i in ref.reached.items()} for ref in derived.references}
        payload = {
            "lab": derived.lab_id,
            "profile": derived.profile,
            "reached": reached,
            "thresholds": derived.numbers,
            "written": not dry_run,
        }
        emit(payload, json_target)
    if json_target != STDOUT:
        for reference in derived.references:
            print(f"{reference.check_id}: {reference.text}")
            print(f"  thresholds {json.dumps(reference.numbers)}")
    if not dry_run:
        say(f"thresholds written to {shown(write_thresholds(course, derived))}")
    return int(ExitCode.OK)

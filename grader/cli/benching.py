"""What `grade bench` does once its words are parsed: find the submission, bench it, write table, plot and summary."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.cli.console import STDOUT, say
from grader.cli.listing import emit
from grader.cli.output import write_below
from grader.cli.submission import find_submission, shown
from grader.course import Course
from grader.errors import ExitCode, UsageError


@dataclass(frozen=True)
class BenchOptions:
    """How a benchmark was asked for."""

    submission: Path | None
    device: str
    profile: str | None
    isolation: str
    out: Path | None
    sweep: Literal["quick", "full"]
    only: str | None
    resume: bool


def _names(only: str | None) -> tuple[str, ...]:
    """The kernels that --only names; none where the option was left out."""
    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    if only is not None and not names:
        raise UsageError(f"--only {only!r} names no kernel.", hint="Leave the option out to bench all.")
    return names


def bench_and_show(lab_name: str, options: BenchOptions, *, json_target: str | None) -> int:
    """Bench and show; 1 when a row of the submission is wrong or lacks.

    Raises:
        GraderError: whatever kept the benchmark from its table, or the plot from its file. The table comes first.
    """
    from grader.bench.plans import plan_of
    from grader.bench.plot import draw
    from grader.bench.run import ON_CPU, BenchRequest, bench, summary, told

    course = Course.find()
    lab = course.lab(lab_name)
    stem = plan_of(lab.short_id).stem
    submission = find_submission(course, lab, options.submission)
    out = options.out or Path(f"bench-{lab.short_id}")
    say(f"benching {lab.short_id} from {shlex.quote(shown(submission))}")
    request = BenchRequest(
        course=course,
        lab_id=lab.id,
        submission=submission,
        out=out,
        device=options.device,
        profile=options.profile,
        isolation=options.isolation,
        sweep=options.sweep,
        only=_names(options.only),
        resume=options.resume,
    )
    try:
        result = bench(request, say)
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(
            f"the rows so far are in {shown(out / f'{stem}.csv')}; the same command with --resume adds what lacks"
        ) from stopped
    write_below(
        out, f"{stem}.json", json.dumps(summary(request, result), indent=2, sort_keys=True) + "\n", option="--out"
    )
    if json_target is not None:
        emit(result.payload(), json_target)
    if json_target != STDOUT:
        for row in result.rows:
            print(" ".join(row[name] for name in ("batch", "q_heads", result.plan.x, *result.plan.panels)), told(row))
    say(f"table written to {shown(out / f'{stem}.csv')}")
    title = f"{lab.short_id}, {result.gpu}" if result.device == "cuda" else f"{lab.short_id}: {ON_CPU}"
    if draw(out / f"{stem}.png", result.plan, result.rows, title):
        say(f"plot written to {shown(out / f'{stem}.png')}")
    return int(ExitCode.POINTS_LOST if result.own_missing else ExitCode.OK)

"""`grade debug LAB -k CHECK`: one public check on a submission's file, run plainly for its author; never a grade."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from grader.cli.options import LabArgument, ProfileOption, SeedOption, SubmissionOption

if TYPE_CHECKING:
    from grader.course import Lab
    from grader.report.model import CheckResult

KERNELS = """\
This runs in Triton's interpreter, in this process, on CPU tensors that have values: print(), breakpoint() and
tl.device_print work, in kernels too. A graded run differs:
- the launcher gets tensors without values on cuda:0, so reading one (.item(), `if x.any()`) is an error there;
- what it launches is compiled for the card, and runs without it: prints and breakpoints in kernels are dropped;
- bytes, launches and machine code are judged as well."""
PLAIN = "This runs in this process: print() and breakpoint() work. A graded run is kept apart and has limits."


def debug(
    lab: LabArgument,
    check: Annotated[str, typer.Option("-k", "--select", metavar="CHECK", help="A public check, by its id.")],
    submission: SubmissionOption = None,
    profile: ProfileOption = None,
    seed: SeedOption = None,
) -> None:
    """Run one public check on your file with values, prints and breakpoints; ungraded."""
    from grader.cli.console import say
    from grader.cli.submission import find_submission, shown
    from grader.course import Course

    course = Course.find()
    chosen = course.lab(lab)
    check_id = public_check(chosen, check)
    folder = find_submission(course, chosen, submission)

    from grader.debugging import run_plainly
    from grader.judge.requirements import need_runtime
    from grader.judge.seeds import Seeds

    need_runtime(chosen)
    say(f"debugging {chosen.short_id} {check_id} from {shlex.quote(shown(folder))}: ungraded")
    say(KERNELS if chosen.record or chosen.record_paths else PLAIN)
    seeds = Seeds.replay(seed) if seed is not None else Seeds.random()
    result = run_plainly(course, chosen, folder, check_id, profile=profile, seeds=seeds)
    print("\n".join(lines(result)))
    say(f"the same inputs again: --seed {seeds.key.hex()}")
    raise typer.Exit(exit_code(result))


def public_check(lab: Lab, name: str) -> str:
    """`name`, where a public check is called so.

    Raises:
        UsageError: it's a hidden check, or none.
    """
    import difflib

    from grader.errors import UsageError

    public = [check_id for check_id, spec in lab.checks.items() if not spec.hidden]
    if name in public:
        return name
    if name in lab.checks:
        raise UsageError(
            f"{name!r} is a hidden check, whose inputs stay with the grader.",
            hint=f"Debug a public one of {lab.short_id}: {', '.join(public)}.",
        )
    close = difflib.get_close_matches(name, public, n=1, cutoff=0.5)
    raise UsageError(
        f"{lab.short_id} has no check {name!r}.",
        hint=f"Did you mean {close[0]}?" if close else f"Its public checks: {', '.join(public)}.",
    )


def lines(result: CheckResult) -> Iterator[str]:
    """The comparison, as plain text."""
    from grader.report.error_map import draw
    from grader.report.text import clean

    yield f"{result.id}: {result.status.value}"
    for text in (result.message, result.diagnosis.text if result.diagnosis is not None else ""):
        if text:
            yield clean(text)
    for name, value in result.measured.items():
        yield f"  {clean(name)} = {clean(str(value))}"
    if result.error_map is not None:
        yield from (f"  {line.plain}" for line in draw(result.error_map, shaded=not sys.stdout.isatty()))


def exit_code(result: CheckResult) -> int:
    """As `grade run`: 0 right, 1 wrong, 2 nothing was decided, 3 the grader's or the machine's fault."""
    from grader.errors import ExitCode
    from grader.report.model import Status

    codes = {
        Status.PASS: ExitCode.OK,
        Status.SKIPPED: ExitCode.USAGE,
        Status.ERROR: ExitCode.INFRASTRUCTURE,
    }
    return int(codes.get(result.status, ExitCode.POINTS_LOST))

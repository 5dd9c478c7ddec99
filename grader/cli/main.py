"""The command `grade`: knows the commands, hands over to the one that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from typing import Annotated

import typer

from grader.cli import (
    batch,
    bench,
    capstone,
    debug,
    diff,
    doctor,
    export,
    gradebook,
    hint,
    init,
    labs,
    leaderboard,
    merge,
    merge_reports,
    profile,
    release,
    replay,
    report,
    rubric,
    run,
    secret,
    similar,
)
from grader.cli.arguments import rewrite
from grader.cli.console import forgive_encoding
from grader.cli.failure import guarded
from grader.cli.helping import GroupedCommands, examples
from grader.errors import UsageError
from grader.machine import ONE_THREAD

WORK, CLASS, GRADES, OUTSIDE, COURSE = (
    "Work on a lab",
    "Grade a class",
    "Decide and compare grades",
    "Show grades elsewhere",
    "The course and this machine",
)

# Plain help: rich's boxes cost start-up time and break in a pipe.
app = typer.Typer(
    name="grade",
    cls=GroupedCommands,
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _add(heading: str, name: str, command: Callable[..., None], *shown: str) -> None:
    app.command(name, rich_help_panel=heading, epilog=examples(*shown))(command)


_add(WORK, "init", init.init, "grade init", "grade init ~/my-labs")
_add(
    WORK,
    "run",
    run.run,
    "grade lab02                    # short for grade run lab02",
    "grade 6 -k 'ragged or mask' --device cpu",
    "grade lab06 --submission path/to/lab06 --json report.json",
)
_add(
    WORK,
    "debug",
    debug.debug,
    "grade debug lab06 -k several-tiles",
    "grade debug lab08 -k one-page --submission path/to/lab08",
)
_add(WORK, "hint", hint.hint, "grade hint lab02", "grade hint lab02 merge --level 2")
_add(
    WORK,
    "bench",
    bench.bench,
    "grade bench lab06 --shapes quick",
    "grade bench lab08 --only paged,contiguous --resume",
)
app.add_typer(capstone.app, name="capstone", rich_help_panel=WORK)
_add(WORK, "list", labs.list_labs, "grade list")
_add(
    CLASS,
    "batch",
    batch.batch,
    "grade batch SUBMISSIONS -o RESULTS --labs lab02,lab06 --jobs 4",
    "grade batch SUBMISSIONS -o RESULTS --resume",
    "grade batch SUBMISSIONS -o part-1 --shard 1/4",
    "grade batch SUBMISSIONS -o RESULTS --scheduler tcp://10.0.0.1:8786",
)
_add(CLASS, "merge", merge.merge, "grade merge RESULTS part-1 part-2 part-3 part-4")
_add(CLASS, "merge-reports", merge_reports.merge_reports, "grade merge-reports RESULTS gpu-reports/")
_add(
    GRADES,
    "gradebook",
    gradebook.gradebook,
    "grade gradebook RESULTS",
    "grade gradebook RESULTS --overrides overrides.toml --json -",
)
_add(
    GRADES,
    "rubric",
    rubric.rubric,
    "grade rubric RESULTS",
    "grade rubric RESULTS --student ada --set focus=7 --set why=6.5",
)
_add(GRADES, "replay", replay.replay, "grade replay RESULTS/records/ada/lab02_online_softmax/1-….json -k merge")
_add(GRADES, "diff", diff.diff, "grade diff RESULTS RESULTS-regraded")
_add(
    GRADES,
    "similar",
    similar.similar,
    "grade similar SUBMISSIONS --against solutions",
    "grade similar RESULTS --against last-term/ --threshold 0.5",
)
_add(
    OUTSIDE,
    "export",
    export.export,
    "grade export csv RESULTS -o grades.csv",
    "grade export gradescope RESULTS -o uploads/",
    "grade export junit report.json -o junit.xml",
    "grade export github-workflow lab02 lab06 -o .github/workflows/classroom.yml",
    "grade export gradescope-zip lab02 --secret-file KEY -o autograder.zip",
)
_add(OUTSIDE, "report", report.report, "grade report RESULTS -o pages/", "grade report report.json -o page/")
_add(
    OUTSIDE,
    "leaderboard",
    leaderboard.leaderboard,
    "grade leaderboard RESULTS",
    "grade leaderboard RESULTS --json board.json --html site/ --roster roster.csv",
)
_add(
    COURSE,
    "release",
    release.release,
    "grade release --check --labs lab02",
    "grade release dist/",
)
app.add_typer(secret.app, name="secret", rich_help_panel=COURSE)
app.add_typer(profile.app, name="profile", rich_help_panel=COURSE)
_add(COURSE, "doctor", doctor.doctor, "grade doctor")


def _print_version(wanted: bool) -> None:
    if wanted:
        from grader import __version__

        typer.echo(f"grade {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def grade(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Grade the labs of the FlashAttention kernel course.

    `grade lab06` (or `grade 6`) grades a lab: it is short for `grade run lab06`.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the console script."""
    forgive_encoding()
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)  # before NumPy is loaded
    sys.exit(guarded(lambda: invoke(sys.argv[1:])))


def _check_working_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            f"The working folder can't be used ({error.strerror}).", hint="Change into another."
        ) from error


def invoke(argv: list[str]) -> int:
    """Parse and run one command line.

    Raises:
        UsageError: the words don't parse. Whatever the command raises.
    """
    _check_working_folder()
    command = typer.main.get_command(app)
    commands: Collection[str] = getattr(command, "commands", {})
    words = rewrite(argv, commands, _lab_names)
    try:
        # Not `main()`: it turns Ctrl-C and a closed pipe into exit codes of its own.
        with command.make_context("grade", words) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except Exception as error:
        raise _as_usage(error) from error
    return 0


def _as_usage(error: Exception) -> Exception:
    """The parser's own errors in this project's words; any other exception as it is.

    typer carries its parser as a private copy in some versions and as a package in others, so the class is told by
    the method that all of them have.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        return error
    said = " ".join(str(message()).replace("Value error, ", "").split())
    context = getattr(error, "ctx", None)
    return UsageError(said, hint=f"See `{context.command_path if context else 'grade'} --help`.")


def _lab_names() -> list[str]:
    from grader.course import Course

    try:
        ids = Course.find().lab_ids()
    except UsageError:
        # Only a suggestion hangs on it: outside a course there are no labs to suggest.
        return []
    return [*(lab_id[:5] for lab_id in ids), *ids]

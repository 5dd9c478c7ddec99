"""The command `grade`: knows the commands, hands over to the one that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Annotated

import typer

from grader.cli import (
    batch,
    bench,
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
    run,
    secret,
    similar,
)
from grader.cli.arguments import rewrite
from grader.cli.console import forgive_encoding
from grader.cli.failure import guarded
from grader.errors import UsageError

# Plain help: rich's boxes cost start-up time and break in a pipe.
app = typer.Typer(
    name="grade", add_completion=False, no_args_is_help=False, rich_markup_mode=None, pretty_exceptions_enable=False
)
app.command("run")(run.run)
app.command("batch")(batch.batch)
app.command("merge")(merge.merge)
app.command("init")(init.init)
app.command("release")(release.release)
app.command("list")(labs.list_labs)
app.command("hint")(hint.hint)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("gradebook")(gradebook.gradebook)
app.command("merge-reports")(merge_reports.merge_reports)
app.command("diff")(diff.diff)
app.command("similar")(similar.similar)
app.command("replay")(replay.replay)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("leaderboard")(leaderboard.leaderboard)
app.add_typer(profile.app, name="profile")
app.add_typer(secret.app, name="secret")


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
        raise _as_usage(error, words) from error
    return 0


def _as_usage(error: Exception, words: list[str]) -> Exception:
    """The parser's own errors in this project's words; any other exception as it is.

    typer carries its parser as a private copy in some versions and as a package in others, so the class is told by
    the method that all of them have.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        return error
    named = words[0] if words and not words[0].startswith("-") else ""
    said = str(message()).replace("Value error, ", "")
    return UsageError(said, hint=f"See `grade {named} --help`.".replace("  ", " "))


def _lab_names() -> list[str]:
    from grader.course import Course

    try:
        ids = Course.find().lab_ids()
    except UsageError:
        # Only a suggestion hangs on it: outside a course there are no labs to suggest.
        return []
    return [*(lab_id[:5] for lab_id in ids), *ids]

"""`grade replay REPORT -k ID`: runs a check of a report again with its very inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import IsolationChoice, JsonOption


def replay(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A report (grade --json) or a record of a batch.")],
    select: Annotated[str, typer.Option("-k", "--select", metavar="ID", help="The check, or an expression as of run.")],
    submission: Annotated[
        Path | None, typer.Option("--submission", metavar="DIR", help="The graded files, where the report can't say.")
    ] = None,
    isolation: Annotated[
        IsolationChoice | None, typer.Option("--isolation", help="In place of the level that the report had.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Run a check of an earlier report again, with the same inputs (for instructors)."""
    from grader.cli.replaying import show_replay

    level = isolation.value if isolation is not None else ""
    raise typer.Exit(show_replay(report, select, submission, isolation=level, json_target=json))

"""`grade merge-reports RESULTS REPORT…`: takes in reports of the same submissions from another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import ResultsArgument


def merge_reports(
    results: ResultsArgument,
    reports: Annotated[
        list[Path], typer.Argument(metavar="REPORT...", help="Reports (grade --json), records, or folders of them.")
    ],
) -> None:
    """Decide what couldn't be graded here by reports of the same submissions from a machine with a GPU."""
    from grader.cli.classroom import merge_in

    raise typer.Exit(merge_in(results, reports))

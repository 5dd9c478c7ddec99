"""`grade report RESULTS|REPORT`: a page a student, and an index for the instructor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.export import OverridesOption, RosterOption, RubricOption


def report(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RESULTS|REPORT...", help="The -o folder of a batch, or JSON reports.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the pages.")],
    with_hidden: Annotated[
        bool, typer.Option("--with-hidden", help="Show hidden checks in full: pages for the instructor alone.")
    ] = False,
    roster: RosterOption = None,
    overrides: OverridesOption = None,
    rubric: RubricOption = None,
) -> None:
    """Write a page a student: scorecard, roofline, traffic against its bound, error maps."""
    from grader.classroom.book import ClassFiles
    from grader.cli.reporting import write_pages

    raise typer.Exit(write_pages(sources, output, ClassFiles(roster, overrides, rubric), instructor=with_hidden))

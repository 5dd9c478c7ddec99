"""`grade leaderboard RESULTS`: the ranking of a class, for a terminal, a machine and a web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="The -o folder of a batch.")]


def leaderboard(
    results: ResultsArgument,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write it as JSON to FILE; - for stdout.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="DIR", help="Write a static page to DIR/index.html.")
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option("--roster", metavar="FILE", help="Column `pseudonym` names who chose one; else of RESULTS."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="Key of the hashes, where no GRADE_SECRET is set."),
    ] = None,
    lab: Annotated[str | None, typer.Option("--lab", metavar="LAB", help="Only this lab.")] = None,
) -> None:
    """Rank the results whose hidden checks passed in isolation; nobody is named who didn't choose a pseudonym."""
    from grader.cli.ranking import RankingOptions, show_leaderboard

    raise typer.Exit(show_leaderboard(results, RankingOptions(json, html, roster, key_file, lab)))

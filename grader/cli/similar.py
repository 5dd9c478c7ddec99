"""`grade similar SUBMISSIONS|RESULTS`: which submissions share code, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import RosterOption


def similar(
    folder: Annotated[
        Path, typer.Argument(metavar="SUBMISSIONS|RESULTS", help="Submissions, or the results of a batch over them.")
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", metavar="DIR", help="Also compare with this code; may be repeated."),
    ] = None,
    labs: Annotated[str | None, typer.Option("--labs", metavar="LABS", help="Only these, e.g. lab02,lab06.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Where the report goes; else RESULTS, or here.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", min=0.0, max=1.0, help="Tell pairs from this score on.")
    ] = None,
    roster: RosterOption = None,
) -> None:
    """Find submissions that share code which the course didn't give them."""
    from grader.cli.likeness import SimilarOptions, show_similar

    options = SimilarOptions(folder, tuple(against or ()), labs, out, threshold, roster)
    raise typer.Exit(show_similar(options))

"""`grade release DIST`: makes the students' bundle and proves that it works alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def release(
    dist: Annotated[Path | None, typer.Argument(metavar="DIST", help="The folder that gets the bundle.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Prove every lab: starter at most 5 points, reference all, a hint for each check."
        ),
    ] = False,
    labs: Annotated[str, typer.Option("--labs", metavar="LABS", help="Only these, e.g. lab02,lab06.")] = "",
) -> None:
    """Make the students' bundle: no hidden test and no solution in it; graded to prove that it works alone."""
    from grader.cli.releasing import release_and_tell

    raise typer.Exit(release_and_tell(dist, check=check, labs=labs))

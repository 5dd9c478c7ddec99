"""`grade hint LAB [CHECK]`: a question, then the concept, then where to look; never the answer."""

from __future__ import annotations

from typing import Annotated

import typer

from grader.cli.options import LabArgument


def hint(
    lab: LabArgument,
    check: Annotated[str | None, typer.Argument(metavar="[CHECK]", help="The check; all questions without it.")] = None,
    level: Annotated[
        int, typer.Option("--level", min=1, max=3, help="1 asks a question, 2 names the concept, 3 says where to look.")
    ] = 1,
) -> None:
    """Show a check's hints, one step at a time."""
    from grader.cli.listing import show_hints

    raise typer.Exit(show_hints(lab, check, level=level))

"""`grade diff OLD NEW`: every score that changed, with the checks that changed it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import JsonOption


def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A results folder, or one report.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The later one, of the same kind.")],
    json: JsonOption = None,
) -> None:
    """List the scores that changed between two gradings; ends with 1 when any did."""
    from grader.cli.classroom import show_changes

    raise typer.Exit(show_changes(old, new, json_target=json))

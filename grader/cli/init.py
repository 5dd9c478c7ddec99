"""`grade init [DIR]`: lays out the folder to work in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The folder to work in; else flash-attn-course.")
    ] = None,
) -> None:
    """Lay out a folder to work in, with every lab's starter; never overwrite what is there."""
    from grader.cli.starting import lay_out_and_tell

    raise typer.Exit(lay_out_and_tell(folder))

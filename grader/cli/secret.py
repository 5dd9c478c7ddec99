"""`grade secret new|id`: the instructor's secret, which makes hidden inputs unknown to the class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.helping import GroupedCommands, examples

app = typer.Typer(
    cls=GroupedCommands, help="Make the instructor's secret, or tell which one is in use.", rich_markup_mode=None
)


@app.command("new", epilog=examples("grade secret new", "grade secret new ~/course/secret"))
def new(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A new file, outside of the course; else one in ~/.config.")
    ] = None,
) -> None:
    """Make a secret in a file that only you can read."""
    from grader.cli.secrecy import make_secret

    raise typer.Exit(make_secret(file))


@app.command("id", epilog=examples("grade secret id"))
def show_id() -> None:
    """Print the id of the secret in use, as reports have it; never the secret."""
    from grader.cli.secrecy import show_secret_id

    raise typer.Exit(show_secret_id())

"""`grade profile list|show|detect`: the cards that results are held to."""

from __future__ import annotations

from typing import Annotated

import typer

from grader.cli.options import JsonOption

app = typer.Typer(help="Show the hardware profiles and the card of this machine.", rich_markup_mode=None)


@app.command("list")
def list_profiles(json: JsonOption = None) -> None:
    """List the hardware profiles."""
    from grader.cli.listing import show_profiles

    raise typer.Exit(show_profiles(json_target=json))


@app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A profile, e.g. h200; else that of a run here.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show one profile: every figure with its source."""
    from grader.cli.listing import show_profile

    raise typer.Exit(show_profile(name, json_target=json))


@app.command("detect")
def detect(json: JsonOption = None) -> None:
    """Find the GPU of this machine and its profile."""
    from grader.cli.listing import show_detected

    raise typer.Exit(show_detected(json_target=json))

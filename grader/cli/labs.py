"""`grade list`: the labs of this course."""

from __future__ import annotations

import typer

from grader.cli.options import JsonOption


def list_labs(json: JsonOption = None) -> None:
    """List the labs of this course."""
    from grader.cli.listing import show_labs

    raise typer.Exit(show_labs(json_target=json))

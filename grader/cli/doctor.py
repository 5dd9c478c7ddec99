"""`grade doctor`: what this machine can grade, and how to mend what it can't."""

from __future__ import annotations

import typer

from grader.cli.options import JsonOption


def doctor(json: JsonOption = None) -> None:
    """Check this machine: versions, isolation, limits, GPU tools; a fix for each."""
    from grader.cli.examination import show_examination

    raise typer.Exit(show_examination(json_target=json))

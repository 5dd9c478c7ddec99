"""`grade rubric RESULTS`: enters the points that a person gives after reading a submission."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import JsonOption, ResultsArgument, RosterOption, RubricOption


def rubric(
    results: ResultsArgument,
    student: Annotated[
        str | None, typer.Option("--student", metavar="ID", help="Whose; else everybody whose points are open.")
    ] = None,
    lab: Annotated[str, typer.Option("--lab", metavar="LAB", help="The lab whose rubric it is.")] = "lab10",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="ITEM=POINTS", help="Points of one item, without a question; may be repeated."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="CHECK",
            help="Full points for a check that is pending for want of its card (`pending`: for all of them), of one "
            "student or of everybody; written to overrides.toml.",
        ),
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A remark for the student.")] = None,
    file: RubricOption = None,
    roster: RosterOption = None,
    json: JsonOption = None,
) -> None:
    """Enter points by hand into rubric.toml: asked for item by item, or given with --set; decide what is pending."""
    from grader.cli.judging_by_hand import Entry, enter_points

    entry = Entry(Path(results), lab, student, tuple(settings or ()), tuple(accept or ()), note, file, roster)
    raise typer.Exit(enter_points(entry, json_target=json))

"""`grade gradebook RESULTS`: makes gradebook.csv anew from the records, and shows it."""

from __future__ import annotations

from pathlib import Path

import typer

from grader.cli.options import JsonOption, OverridesOption, ResultsArgument, RosterOption, RubricOption


def gradebook(
    results: ResultsArgument,
    roster: RosterOption = None,
    overrides: OverridesOption = None,
    rubric: RubricOption = None,
    json: JsonOption = None,
) -> None:
    """Make gradebook.csv from a batch's records and show it."""
    from grader.classroom.book import ClassFiles
    from grader.cli.classroom import show_gradebook

    raise typer.Exit(show_gradebook(Path(results), ClassFiles(roster, overrides, rubric), json_target=json))

"""`grade export FORMAT SOURCE`: stored results in the formats of other systems."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    GRADESCOPE = "gradescope"
    GRADESCOPE_ZIP = "gradescope-zip"
    GITHUB = "github"
    GITHUB_WORKFLOW = "github-workflow"
    CTRF = "ctrf"
    JUNIT = "junit"
    CANVAS = "canvas"
    AUTOLAB = "autolab"
    CSV = "csv"


RosterOption = Annotated[
    Path | None, typer.Option("--roster", metavar="FILE", help="roster.csv, else RESULTS/roster.csv or the course's.")
]
OverridesOption = Annotated[
    Path | None, typer.Option("--overrides", metavar="FILE", help="overrides.toml, else that of RESULTS or the course.")
]
RubricOption = Annotated[
    Path | None, typer.Option("--rubric", metavar="FILE", help="rubric.toml, else that of RESULTS or the course.")
]


def export(
    format: Annotated[Format, typer.Argument(metavar="FORMAT", help=", ".join(Format))],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RESULTS|REPORT|LAB]...",
            help="The -o folder of a batch, or JSON reports; labs for gradescope-zip and github-workflow.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="A file, or a folder for a file a student.")
    ] = "-",
    roster: RosterOption = None,
    overrides: OverridesOption = None,
    rubric: RubricOption = None,
    secret_file: Annotated[
        Path | None,
        typer.Option("--secret-file", metavar="FILE", help="gradescope-zip: the secret that hidden inputs come from."),
    ] = None,
    wheels: Annotated[
        Path | None,
        typer.Option("--wheels", metavar="DIR", help="gradescope-zip: wheels to install from, without a network."),
    ] = None,
) -> None:
    """Write results for Gradescope, GitHub Classroom, CTRF, JUnit, Canvas, Autolab, or as CSV."""
    from grader.cli.exporting import Files, write_export

    files = Files(roster, overrides, rubric, secret_file, wheels)
    raise typer.Exit(write_export(format.value, sources or [], output, files))

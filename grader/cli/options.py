"""Options that several commands share, declared once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class DeviceChoice(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class IsolationChoice(StrEnum):
    AUTO = "auto"
    SEALED = "sealed"
    UID = "uid"
    PROCESS = "process"


LabArgument = Annotated[str, typer.Argument(metavar="LAB", help="The lab: 6, lab06 or lab06_fa2_forward.")]

SubmissionOption = Annotated[
    Path | None,
    typer.Option(
        "--submission",
        metavar="DIR",
        help="Folder with the answer; else flash-attn-course/LAB, else starter/LAB.",
    ),
]
DeviceOption = Annotated[DeviceChoice, typer.Option("--device", help="Where the submission runs.")]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Card that results are held to; see `grade profile list`."),
]
IsolationOption = Annotated[
    IsolationChoice, typer.Option("--isolation", help="How the submission is kept apart; auto takes the strongest.")
]
PublicOnlyOption = Annotated[bool, typer.Option("--public-only", help="Leave the hidden checks out.")]
SelectOption = Annotated[
    str, typer.Option("-k", "--select", metavar="EXPR", help="Only the checks that match, e.g. 'ragged or mask'.")
]
SeedOption = Annotated[
    str | None,
    typer.Option("--seed", metavar="KEY", help="Draw an earlier run's inputs again: `seed.key` of its JSON report."),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the result as JSON to FILE; - for stdout, and nothing else there."
    ),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="With every measured value and time.")]

ResultsArgument = Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder that a batch wrote (-o).")]
RosterOption = Annotated[
    Path | None, typer.Option("--roster", metavar="FILE", help="Who is in the class; else RESULTS/roster.csv.")
]
OverridesOption = Annotated[
    Path | None,
    typer.Option("--overrides", metavar="FILE", help="Points that a person decided; else RESULTS/overrides.toml."),
]
RubricOption = Annotated[
    Path | None, typer.Option("--rubric", metavar="FILE", help="Points given by hand; else RESULTS/rubric.toml.")
]

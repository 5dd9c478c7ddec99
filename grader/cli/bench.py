"""`grade bench LAB`: a lab's kernel beside its peers, as a CSV table and a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import (
    DeviceChoice,
    DeviceOption,
    IsolationChoice,
    IsolationOption,
    JsonOption,
    LabArgument,
    ProfileOption,
    SubmissionOption,
)


class SweepChoice(StrEnum):
    QUICK = "quick"
    FULL = "full"


def bench(
    lab: LabArgument,
    submission: SubmissionOption = None,
    device: DeviceOption = DeviceChoice.AUTO,
    profile: ProfileOption = None,
    isolation: IsolationOption = IsolationChoice.AUTO,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where the table and the plot go; else bench-LAB.")
    ] = None,
    shapes: Annotated[SweepChoice, typer.Option("--shapes", help="How many shapes; a lab's table needs full.")] = (
        SweepChoice.FULL
    ),
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAMES", help="Kernels to bench, e.g. 'fa2,sdpa-flash'; else all.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the rows of an earlier run on the same machine; add what lacks.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Test and time a lab's kernel beside its peers; write a CSV table and its plot (labs 06 to 09)."""
    from grader.cli.benching import BenchOptions, bench_and_show

    options = BenchOptions(submission, device.value, profile, isolation.value, out, shapes.value, only, resume)
    raise typer.Exit(bench_and_show(lab, options, json_target=json))

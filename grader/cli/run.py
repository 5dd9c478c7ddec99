"""`grade run LAB`, also `grade LAB`: grades one submission for one lab."""

from __future__ import annotations

import typer

from grader.cli.options import (
    DeviceChoice,
    DeviceOption,
    IsolationChoice,
    IsolationOption,
    JsonOption,
    LabArgument,
    ProfileOption,
    PublicOnlyOption,
    SeedOption,
    SelectOption,
    SubmissionOption,
    VerboseOption,
)


def run(
    lab: LabArgument,
    submission: SubmissionOption = None,
    device: DeviceOption = DeviceChoice.AUTO,
    profile: ProfileOption = None,
    isolation: IsolationOption = IsolationChoice.AUTO,
    public_only: PublicOnlyOption = False,
    select: SelectOption = "",
    seed: SeedOption = None,
    json: JsonOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Grade one lab and print its scorecard."""
    from grader.cli.running import RunOptions, grade_and_show

    options = RunOptions(submission, device.value, profile, isolation.value, public_only, select, seed)
    raise typer.Exit(grade_and_show(lab, options, json_target=json, verbose=verbose))

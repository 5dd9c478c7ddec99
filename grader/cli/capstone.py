"""`grade capstone new|check|report`: lays out, grades and tests a capstone (lab10)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from grader.cli.helping import GroupedCommands, examples
from grader.cli.options import (
    DeviceChoice,
    DeviceOption,
    IsolationChoice,
    IsolationOption,
    JsonOption,
    ProfileOption,
    PublicOnlyOption,
    SeedOption,
    SelectOption,
    VerboseOption,
)

app = typer.Typer(
    cls=GroupedCommands, help="Lay out, test and grade a capstone: one focused change.", rich_markup_mode=None
)


class OptionChoice(StrEnum):
    A = "A"
    B = "B"
    C = "C"
    D = "D"
    E = "E"


FolderArgument = Annotated[Path | None, typer.Argument(metavar="DIR", help="The capstone; else ./capstone.")]


@app.command("new", epilog=examples("grade capstone new --option A", "grade capstone new --option C my-audit"))
def new(
    option: Annotated[OptionChoice, typer.Option("--option", case_sensitive=False, help="What kind of capstone.")],
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="A new folder; else ./capstone.")] = None,
) -> None:
    """Lay out a capstone's folder; never overwrite what is there."""
    from grader.cli.capstoning import lay_out_and_tell

    raise typer.Exit(lay_out_and_tell(option.value, folder))


@app.command("check", epilog=examples("grade capstone check", "grade capstone check my-audit --json report.json"))
def check(
    folder: FolderArgument = None,
    device: DeviceOption = DeviceChoice.AUTO,
    profile: ProfileOption = None,
    isolation: IsolationOption = IsolationChoice.AUTO,
    public_only: PublicOnlyOption = False,
    select: SelectOption = "",
    seed: SeedOption = None,
    json: JsonOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Grade a capstone and print its scorecard; the same as `grade lab10 --submission DIR`."""
    from grader.cli.capstoning import check_and_show
    from grader.cli.running import RunOptions

    options = RunOptions(folder, device.value, profile, isolation.value, public_only, select, seed)
    raise typer.Exit(check_and_show(options, json_target=json, verbose=verbose))


@app.command("report", epilog=examples("grade capstone report", "grade capstone report my-audit --device cuda"))
def report(
    folder: FolderArgument = None,
    device: DeviceOption = DeviceChoice.AUTO,
    isolation: IsolationOption = IsolationChoice.AUTO,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=2**31, metavar="N", help="Draw the inputs of an earlier report.")
    ] = None,
) -> None:
    """Run the harness on the changed path and write correctness_report.json."""
    from grader.cli.capstoning import write_report

    raise typer.Exit(write_report(folder, device.value, isolation.value, seed))

"""`grade profile list|show|detect|calibrate|thresholds`: the cards that results are held to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.helping import GroupedCommands, examples
from grader.cli.options import JsonOption, LabArgument, ProfileOption

app = typer.Typer(
    cls=GroupedCommands,
    help="Hardware profiles: show them, find this machine's card, measure it.",
    rich_markup_mode=None,
)


@app.command("list", epilog=examples("grade profile list"))
def list_profiles(json: JsonOption = None) -> None:
    """List the hardware profiles."""
    from grader.cli.listing import show_profiles

    raise typer.Exit(show_profiles(json_target=json))


@app.command("show", epilog=examples("grade profile show h200"))
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A profile, e.g. h200; else that of a run here.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Show one profile: every figure with its source."""
    from grader.cli.listing import show_profile

    raise typer.Exit(show_profile(name, json_target=json))


@app.command("detect", epilog=examples("grade profile detect"))
def detect(json: JsonOption = None) -> None:
    """Find the GPU of this machine and its profile."""
    from grader.cli.listing import show_detected

    raise typer.Exit(show_detected(json_target=json))


NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The profile to write; else this card's, or one named after it.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Measure and show, write nothing.")]


@app.command("calibrate", epilog=examples("grade profile calibrate --dry-run", "grade profile calibrate"))
def calibrate(name: NameArgument = None, dry_run: DryRunOption = False, json: JsonOption = None) -> None:
    """Measure this machine's card (copy bandwidth, GEMM rates, L2 cache) and write its profile."""
    from grader.cli.calibrating import calibrate_and_show

    raise typer.Exit(calibrate_and_show(name, dry_run=dry_run, json_target=json))


@app.command("thresholds", epilog=examples("grade profile thresholds lab06"))
def thresholds(
    lab: LabArgument,
    submission: Annotated[
        Path | None, typer.Option("--submission", metavar="DIR", help="Measured in place of the lab's reference.")
    ] = None,
    profile: ProfileOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = None,
) -> None:
    """Measure a lab's reference on this machine's card and write its speed thresholds into the card's profile."""
    from grader.cli.calibrating import thresholds_and_show

    raise typer.Exit(thresholds_and_show(lab, submission, profile, dry_run=dry_run, json_target=json))

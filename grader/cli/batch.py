"""`grade batch SUBMISSIONS -o RESULTS`: grades a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.options import (
    DeviceChoice,
    DeviceOption,
    IsolationChoice,
    IsolationOption,
    ProfileOption,
    PublicOnlyOption,
    SeedOption,
)

ResultsOption = Annotated[Path, typer.Option("-o", "--output", metavar="RESULTS", help="Folder for the results.")]
LabsOption = Annotated[
    str | None, typer.Option("--labs", metavar="LABS", help="Which labs, e.g. lab02,lab06; all by default.")
]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Submissions at a time; one a core by default.")
]
DevicesOption = Annotated[
    str | None,
    typer.Option("--devices", metavar="IDS", help="GPUs to use, e.g. 0,1; each grades a few submissions at a time."),
]


def batch(
    submissions: Annotated[Path, typer.Argument(metavar="SUBMISSIONS", help="Folder with the class's submissions.")],
    results: ResultsOption,
    labs: LabsOption = None,
    jobs: JobsOption = None,
    devices: DevicesOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the good results that are there already.")] = False,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Grade one of N parts; see `grade merge`.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS", help="Grade on this dask.distributed cluster.")
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, metavar="S", help="Seconds for all checks of one submission.")
    ] = 900.0,
    patience: Annotated[
        int, typer.Option("--patience", min=1, metavar="N", help="Timeouts after which a function isn't called again.")
    ] = 2,
    device: DeviceOption = DeviceChoice.AUTO,
    profile: ProfileOption = None,
    isolation: IsolationOption = IsolationChoice.AUTO,
    public_only: PublicOnlyOption = False,
    hidden_at_process: Annotated[
        bool,
        typer.Option("--hidden-at-process", help="Run hidden checks even where a submission could read them."),
    ] = False,
    seed: SeedOption = None,
    roster: Annotated[
        Path | None, typer.Option("--roster", metavar="FILE", help="Who is in the class; else roster.csv if there.")
    ] = None,
) -> None:
    """Grade every submission of a class, each in a process of its own, and write the gradebook."""
    from grader.cli.batching import BatchWords, grade_class

    words = BatchWords(
        submissions=submissions,
        results=results,
        labs=labs,
        jobs=jobs,
        devices=devices,
        resume=resume,
        shard=shard,
        scheduler=scheduler,
        time_limit_s=time_limit,
        patience=patience,
        device=device.value,
        profile=profile,
        isolation=isolation.value,
        public_only=public_only,
        hidden_at_process=hidden_at_process,
        seed=seed,
        roster=roster,
    )
    raise typer.Exit(grade_class(words))

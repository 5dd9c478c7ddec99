"""`batch.json` in a results folder: under what the records beside it were made."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, ValidationError

from grader.batch.conditions import Conditions
from grader.errors import UsageError
from grader.report.model import Frozen, SeedRecord
from grader.report.places import first_fault

BATCH_FILE = "batch.json"


class BatchFile(Frozen):
    """The settings of the last batch that wrote here.

    Attributes:
        submissions: the folder that was graded.
        shard: ``i/n`` when this is a part of a class; None for the whole, or for parts that were merged.
        conditions: one a lab.
    """

    schema_version: Literal[1] = 1
    submissions: str
    shard: str | None = None
    seed: SeedRecord
    time_limit_s: float
    patience: int
    conditions: list[Conditions]
    started_at: AwareDatetime


def read_batch_file(results: Path) -> BatchFile | None:
    """The settings; None when no batch has written there.

    Raises:
        UsageError: the file is damaged.
    """
    path = results / BATCH_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from error
    try:
        return BatchFile.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(
            f"{path}: {first_fault(error, None, 'the file')}.", hint="Remove the file; the records beside it are kept."
        ) from error

"""correctness_report.json of a capstone: lab 07's table, with the mask of each shape and the harness's version.

``grade capstone report DIR`` writes it. The form is that of `grader.judge.correctness_report`, whose words hold here
too, but for three things: `shape` is a `[[shapes]]` table of capstone.toml, `errors` and `tolerances` are of the
tensors that the path has (o and lse; o alone of an audit), and `harness_version` says what made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from grader.judge.capstone.manifest import CapstoneShape
from grader.judge.correctness_report import MAX_ROWS, Found, Report, ReportError, plain_data, read_as

FILE = "correctness_report.json"
HARNESS_VERSION = "1"
"""Rises whenever inputs, tolerances or what is looked at change: reports of two versions can't be compared."""


class CapstoneRow(Found):
    shape: CapstoneShape

    @property
    def place(self) -> str:
        return self.shape.name

    @model_validator(mode="after")
    def _held(self) -> Self:
        if "o" not in self.errors or set(self.errors) != set(self.tolerances):
            raise ValueError("`errors` and `tolerances` must be of the same tensors, o among them")
        return self


class CapstoneReport(Report):
    """See the module."""

    harness_version: str
    rows: Annotated[list[CapstoneRow], Field(min_length=1, max_length=MAX_ROWS)]

    @property
    def table(self) -> Sequence[Found]:
        return self.rows


def read(raw: bytes) -> CapstoneReport:
    """The report in a file.

    Raises:
        ReportError: it's too large, no JSON, or not a report of a capstone.
    """
    value = plain_data(raw)
    if isinstance(value, dict) and "harness_version" not in value:
        raise ReportError("`harness_version` is missing: `grade capstone report` writes it")
    return read_as(CapstoneReport, value)

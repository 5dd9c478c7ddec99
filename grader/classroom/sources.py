"""Reads reports from wherever a person has them: a report, a record of a batch, a folder of either."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from grader.classroom import records
from grader.classroom.records import Record
from grader.errors import UsageError
from grader.report import json as report_json
from grader.report.model import Report

MAX_BYTES = 32 << 20
"""Of one file. A report is some tens of KiB."""


@dataclass(frozen=True)
class Source:
    """One report, where it was read, and the record that it came in, if any."""

    path: Path
    report: Report
    record: Record | None = None

    @property
    def student(self) -> str:
        """Whose it is; empty where only a report tells."""
        return self.record.student if self.record is not None else ""


def read_source(path: Path) -> Source:
    """The report in a file that `grade --json` or a batch wrote.

    Raises:
        UsageError: the file can't be read, or holds neither; names it.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB, which no report is.")
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).", hint="Check the path.") from error
    try:
        if not _is_record(raw):
            return Source(path, report_json.loads(raw))
        record = records.loads(raw)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint="Name a file of `grade LAB --json FILE`.") from error
    if record.report is None:
        raise UsageError(f"{path}: a record without a report ({record.outcome}: {record.message}).")
    return Source(path, record.report, record)


def read_sources(paths: Iterable[Path]) -> Iterator[Source | UsageError]:
    """Every report among the files and, in the folders, the ``*.json`` files.

    What isn't a report in a folder (a batch's settings, the record of a refused archive) comes as an error to be said.

    Raises:
        UsageError: a named file holds no report, or a folder no ``*.json`` file.
    """
    for path in paths:
        if not path.is_dir():
            yield read_source(path)
            continue
        files = sorted(file for file in path.rglob("*.json") if file.is_file())
        if not files:
            raise UsageError(f"{path}: no *.json file in this folder.", hint="Name a report or a folder of reports.")
        for file in files:
            try:
                yield read_source(file)
            except UsageError as error:
                yield error


def _is_record(raw: bytes) -> bool:
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(table, dict) and "job_key" in table

"""One record for each attempt of one student at one lab, and the results folder that keeps them.

The folder is laid out as follows; what is a derived file can be made again from `records/`::

    batch.json                                            how the batch was run
    records/<student>/<lab>/<attempt>-<job key>.json      a record
    records/<student>/<lab>/<attempt>-<job key>.failed.json   a regrade that failed beside a good record
    gradebook.csv, similarity.json, similarity.html       derived
    log.txt                                               for the instructor alone
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError, field_validator, model_validator

from grader.errors import InfrastructureError, UsageError
from grader.files import TEMPORARY_PREFIX, replace_text
from grader.machine import of_this_machine
from grader.report import json as report_json
from grader.report.model import Frozen, Report, Status
from grader.report.places import first_fault

Outcome = Literal["graded", "refused", "missing", "infrastructure"]

_PLAIN = re.compile(rb"[A-Za-z0-9_\-]")
_LONGEST_NAME = 200
"""Bytes of a folder's name; file systems end at 255."""


def printable_id(name: str) -> str:
    r"""A folder's name as an id that any file takes: bytes that aren't UTF-8 become ``\xNN``, so no two names meet."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def safe_name(text: str) -> str:
    """`text` as the name of one file or folder: letters, digits, ``_`` and ``-`` stay, other bytes become ``%NN``.

    `original_name` turns it back, except where the name is too long for a file system: then its end is a hash.
    """
    raw = text.encode("utf-8", "surrogateescape")
    escaped = "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"%{byte:02X}" for byte in raw) or "%"
    if len(escaped) <= _LONGEST_NAME:
        return escaped
    return f"{escaped[: _LONGEST_NAME // 2]}~{hashlib.sha256(raw).hexdigest()[:32]}"


def original_name(name: str) -> str | None:
    """What `safe_name` was given; None for a name that was shortened."""
    if "~" in name:
        return None
    if name == "%":
        return ""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), name.encode("ascii"))
    return raw.decode("utf-8", "surrogateescape")


class Record(Frozen):
    """One graded (or refused, or missing) attempt of one student, or group, at one lab.

    Attributes:
        student: id after the roster; the folder's name where there is none.
        members: every student that the attempt counts for; just `student` unless a group handed it in.
        lab: the lab's full id.
        attempt: 1 for the first, in the order of receipt.
        received_at: when it was handed in, where the layout tells; kept in UTC.
        source: the place it was found at, relative to the folder of submissions.
        content_sha256: over the files that were taken for this lab; empty when there were none.
        job_key: SHA-256 of all that decides the result: content, lab, grader, seed key, profile, device, isolation,
            public or not. `--resume` compares it.
        notes: what intake put right.
        message: why there is no grade, for a person; empty when there is one.
        graded_at: when the result was there.
    """

    schema_version: Literal[1] = 1
    student: Annotated[str, Field(min_length=1)]
    members: Annotated[tuple[str, ...], Field(min_length=1)]
    lab: Annotated[str, Field(pattern=r"^lab\d\d_[a-z0-9_]+$")]
    attempt: Annotated[int, Field(ge=1)] = 1
    received_at: AwareDatetime | None = None
    source: str = ""
    content_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    job_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    notes: tuple[str, ...] = ()
    outcome: Outcome
    message: str = ""
    report: Report | None = None
    graded_at: AwareDatetime | None = None

    @field_validator("received_at", "graded_at")
    @classmethod
    def _in_utc(cls, value: datetime | None) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    @model_validator(mode="after")
    def _consistent(self) -> Record:
        if self.outcome == "graded" and self.report is None:
            raise ValueError("a graded record needs its report")
        if self.outcome in ("refused", "missing") and self.report is not None:
            raise ValueError(f"a {self.outcome} record cannot have a report")
        if self.outcome != "graded" and not self.message:
            raise ValueError(f"a record with outcome {self.outcome} needs a message")
        if self.report is not None and self.report.lab.id != self.lab:
            raise ValueError(f"the record is of {self.lab}, its report of {self.report.lab.id}")
        if len(set(self.members)) != len(self.members):
            raise ValueError("a member is named twice")
        return self

    @property
    def trust(self) -> int:
        """How much the result says: 0 the machine failed, 1 some check met the grader's own error, 2 all decided.

        A result of less trust never takes the place of one of more.
        """
        if self.outcome == "infrastructure":
            return 0
        return 1 if self.failed_checks else 2

    @property
    def failed_checks(self) -> int:
        """How many checks met a fault of the machine or the grader."""
        return sum(check.status is Status.ERROR for check in self.report.checks) if self.report is not None else 0


def dumps(record: Record) -> str:
    """A record as canonical JSON, its report as `grader.report.json` writes it."""
    table = json.loads(record.model_dump_json(exclude={"report"}))
    table["report"] = json.loads(report_json.dumps(record.report)) if record.report is not None else None
    return json.dumps(table, indent=2, sort_keys=True, allow_nan=False) + "\n"


def loads(text: str | bytes) -> Record:
    """Read a record back.

    Raises:
        UsageError: it is no record of this version, or its report was edited.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"Not a record: not valid JSON ({error}).") from error
    if not isinstance(table, dict):
        raise UsageError("Not a record: the file holds no JSON object.")
    report = table.pop("report", None)
    parsed = report_json.loads(json.dumps(report)) if report is not None else None
    try:
        return Record.model_validate({**table, "report": parsed})
    except ValidationError as error:
        raise UsageError(f"Not a record of this version: {first_fault(error, table, 'the object')}.") from error


class ResultsFolder:
    """The folder RESULTS of a batch. Every file is written whole or not at all, and only below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, record: Record) -> Path:
        """Where the record's result lies when it is a good one."""
        return self._path(record.student, record.lab, record.attempt, record.job_key)

    def _path(self, student: str, lab: str, attempt: int, job_key: str) -> Path:
        return self.root / "records" / safe_name(student) / safe_name(lab) / f"{attempt}-{job_key[:16]}.json"

    def write(self, record: Record) -> Path:
        """Keep the record, beside and not over one that says more; the file that holds it now.

        Raises:
            InfrastructureError: the folder can't be written, or a link leads out of it.
        """
        path = self.path_of(record)
        kept = self._read_good(path)
        if kept is not None and record.trust < kept.trust:
            path = path.with_suffix(".failed.json")
        self._write(path, dumps(record))
        return path

    def write_file(self, name: str, text: str) -> Path:
        """Write a derived file, e.g. ``gradebook.csv``, at the top of the folder.

        Raises:
            InfrastructureError: as `write`.
        """
        path = self.root / name
        self._write(path, text)
        return path

    def find(self, student: str, lab: str, attempt: int, job_key: str) -> Record | None:
        """The good record of exactly this job; None when there is none, it can't be read, or the machine failed."""
        record = self._read_good(self._path(student, lab, attempt, job_key))
        return record if record is not None and record.job_key == job_key and record.trust == 2 else None

    def records(self) -> list[Record]:
        """All records, failed regrades among them, in the order of their paths.

        Raises:
            UsageError: a file is no record; names it and what to do.
        """
        return [_read(path) for path in self._files()]

    def remove_leftovers(self) -> int:
        """Remove what a killed process had half written; how many. Only while no batch writes here."""
        leftovers = [path for path in self.root.rglob(f"{TEMPORARY_PREFIX}*") if path.is_file()]
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def _files(self) -> Iterator[Path]:
        yield from sorted((self.root / "records").glob("*/*/*.json"))

    @staticmethod
    def _read_good(path: Path) -> Record | None:
        try:
            return loads(path.read_bytes())
        except (OSError, UsageError):
            return None

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self.root.resolve()):
                raise InfrastructureError(f"{path.parent} leads out of {self.root}.", hint="Remove the link.")
            # Grades, other students' code and the key of a batch are nobody's but the instructor's; and a worker with a
            # uid of its own must not read them either.
            replace_text(path, text, durable=True, mode=0o600)
        except OSError as error:
            raise of_this_machine(error, path) or InfrastructureError(
                f"{path}: cannot be written ({error.strerror}).", hint="Name another folder."
            ) from error


def _read(path: Path) -> Record:
    try:
        return loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", hint="Remove the file and run the batch with --resume.") from error


def results_folder(root: Path) -> ResultsFolder:
    """The results folder at `root`, which must exist.

    Raises:
        UsageError: no batch has written there.
    """
    if not (root / "records").is_dir():
        raise UsageError(f"{os.fspath(root)} holds no results (no folder `records`).", hint="Name the -o of a batch.")
    return ResultsFolder(root)

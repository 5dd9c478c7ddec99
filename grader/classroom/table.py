"""`gradebook.csv`: the same bytes for the same rows, nothing that a spreadsheet runs, times in the last columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from decimal import Decimal

from grader.classroom.gradebook import Row
from grader.classroom.merging import Origin
from grader.classroom.points import Applied, plain
from grader.report.inert import spreadsheet_cell

TIMES = ("received_at", "graded_at")
"""The last columns. Without them two batches over the same submissions give the same bytes."""


def _optional(value: Decimal | None) -> str:
    return "" if value is None else plain(value)


def _late_hours(row: Row) -> str:
    return plain(Decimal(row.late.late_by // timedelta(seconds=1)) / 3600) if row.late.late_by else ""


def _override(applied: Applied) -> str:
    before = "undecided" if applied.before is None else plain(applied.before)
    return f"{applied.check}: {before} to {plain(applied.after)} on {applied.date} ({applied.reason})"


def _origin(origin: Origin) -> str:
    return f"{origin.check} from {origin.device} ({origin.profile}, {origin.isolation})"


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat()


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "student": lambda row: row.student,
    "group": lambda row: row.group,
    "lab": lambda row: row.lab,
    "status": lambda row: row.status,
    "attempt": lambda row: str(row.attempt or ""),
    "attempts": lambda row: str(row.attempts),
    "raw": lambda row: plain(row.raw),
    "gradable": lambda row: plain(row.gradable),
    "total": lambda row: plain(row.total),
    "pending": lambda row: plain(row.pending),
    "late_hours": _late_hours,
    "late_multiplier": lambda row: _optional(row.late.multiplier),
    "so_far": lambda row: plain(row.so_far),
    "automatic": lambda row: _optional(row.automatic),
    "final": lambda row: _optional(row.final),
    "overrides": lambda row: "; ".join(_override(applied) for applied in row.overrides),
    "merged": lambda row: "; ".join(_origin(origin) for origin in row.merged),
    "isolation": lambda row: row.report.isolation.level if row.report else "",
    "profile": lambda row: row.report.profile.name if row.report else "",
    "device": lambda row: row.report.device if row.report else "",
    "message": lambda row: row.message,
    "notes": lambda row: "; ".join(row.notes),
    "submission": lambda row: row.submission_sha256,
    "received_at": lambda row: _time(row.received_at),
    "graded_at": lambda row: _time(row.record.graded_at if row.record else None),
}


def gradebook_csv(rows: Iterable[Row]) -> str:
    """A header and one line a row, as RFC 4180 has it but with plain newlines."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        writer.writerow([spreadsheet_cell(cell(row)) for cell in _COLUMNS.values()])
    return out.getvalue()


def as_dict(row: Row) -> dict[str, str]:
    """The row's cells by column, as they are: JSON runs nothing."""
    return {name: cell(row) for name, cell in _COLUMNS.items()}

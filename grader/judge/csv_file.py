"""A table that a student hands in as CSV: its columns held to the letter, its rows as text."""

from __future__ import annotations

import csv
import io
import itertools
from typing import Any


class TableError(ValueError):
    """The table can't be read or isn't the one asked for; the message is for the student."""


def read_rows(raw: bytes, columns: tuple[str, ...], *, max_bytes: int, max_rows: int) -> list[dict[str, Any]]:
    """The rows of a CSV file, column → text.

    Raises:
        TableError: the file is too large, has more rows than `max_rows`, isn't CSV in UTF-8, or has other columns.
    """
    if len(raw) > max_bytes:
        raise TableError(f"it is larger than {max_bytes} bytes")
    try:
        reader = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        found, rows = tuple(reader.fieldnames or ()), list(itertools.islice(reader, max_rows + 1))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError("it isn't a CSV file in UTF-8") from error
    if found != columns:
        raise TableError(f"its first line must be {','.join(columns)}")
    if len(rows) > max_rows:
        # Each row becomes a dict: of a file of short lines they'd take a gigabyte.
        raise TableError(f"it has more than {max_rows} rows")
    return rows

"""A table that a student hands in as TOML: read within a size, of the one format version that there is."""

from __future__ import annotations

import tomllib
from typing import Any


def read_table(raw: bytes, *, max_bytes: int, error: type[ValueError]) -> dict[str, Any]:
    """The file's top table.

    Raises:
        error: the file is too large, isn't TOML in UTF-8, or has another `format_version`; the message is for the
            student.
    """
    if len(raw) > max_bytes:
        raise error(f"it is larger than {max_bytes} bytes")
    try:
        table = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as fault:
        raise error("it isn't a TOML file in UTF-8") from fault
    if table.get("format_version") != 1:
        raise error("`format_version` must be 1")
    return table

"""The bytes of a JSON export: sorted keys, ASCII only, the same for the same value."""

from __future__ import annotations

import json


def dumps(value: object) -> str:
    """Indented, ending in a newline."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def dumps_line(value: object) -> str:
    """On one line, without its end."""
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))

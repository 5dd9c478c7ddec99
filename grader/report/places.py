"""Where in a file of tables and lists a validation failed, in words for a person, who counts entries from 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

NAMING = ("student", "id", "name", "lab", "check", "file", "kernel")
"""Keys by which a person finds an entry of a list again, the most telling first."""
MAX_NAME = 40


def place_of(location: Sequence[int | str], table: Any, whole: str) -> str:
    """``\\`points\\` of \\`overrides\\` entry 2 (student 'ada')`` for ``('overrides', 1, 'points')``.

    Args:
        location: as pydantic gives it.
        table: what was validated, so that an entry is called by its name; None where it isn't at hand.
        whole: what to say where the location is empty.
    """
    parts: list[str] = []
    keys: list[str] = []
    found = table
    for step in location:
        found = _inside(found, step)
        if isinstance(step, int):
            parts.append(f"{_keys(keys)} entry {step + 1}{_named(found)}".strip())
            keys = []
        elif step != "[key]":  # pydantic's mark for a fault in the key itself, which the location ends with already
            keys.append(step)
    if keys:
        parts.append(_keys(keys))
    return " of ".join(reversed(parts)) or whole


def first_fault(error: ValidationError, table: Any, whole: str) -> str:
    """The first thing that is wrong with a file that a program wrote: its place and the reason."""
    first = error.errors(include_url=False)[0]
    said, value = first["msg"].removeprefix("Value error, "), first["input"]
    plain = isinstance(value, (int, float, str)) or value is None
    found = f", found {repr(value)[:MAX_NAME]}" if plain and said.startswith("Input should be") else ""
    return f"{place_of(first['loc'], table, whole)}: {said}{found}"


def _keys(keys: Sequence[str]) -> str:
    return f"`{'.'.join(keys)}`" if keys else ""


def _inside(table: Any, step: int | str) -> Any:
    if isinstance(table, dict):
        return table.get(step)
    if isinstance(table, (list, tuple)) and isinstance(step, int) and step < len(table):
        return table[step]
    return None


def _named(entry: Any) -> str:
    for key in NAMING if isinstance(entry, dict) else ():
        value = entry.get(key)
        if isinstance(value, str) and value:
            return f" ({key} {value[:MAX_NAME]!r})"
    return ""

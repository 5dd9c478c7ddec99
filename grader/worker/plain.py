"""Checks of plain data from a process that nobody trusts: exact types, and bounds on how much there is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MAX_DIMS = 16
MAX_NAME = 200
_IDENTIFIER = re.compile(r"[^\W\d]\w{0,199}")


class InvalidTape(Exception):
    """A tape that isn't one; the message names the place and what is allowed there."""


def has_keys(value: Any, place: str, keys: Iterable[str], optional: Iterable[str] = ()) -> None:
    if type(value) is not dict:
        raise InvalidTape(f"{place}: a {type(value).__name__}; expected a table.")
    missing, unknown = set(keys) - set(value) - set(optional), set(value) - set(keys)
    if missing or unknown:
        raise InvalidTape(f"{place}: missing {shown(sorted(missing))}, unknown {shown(sorted(map(str, unknown)))}.")


def a_list(value: Any, place: str, most: int) -> list[Any]:
    if type(value) is not list:
        raise InvalidTape(f"{place}: a {type(value).__name__}; expected a list.")
    if len(value) > most:
        raise InvalidTape(f"{place}: {len(value)} items; at most {most}.")
    return value


def a_table(value: Any, place: str, most: int) -> dict[str, Any]:
    if type(value) is not dict:
        raise InvalidTape(f"{place}: a {type(value).__name__}; expected a table.")
    if len(value) > most:
        raise InvalidTape(f"{place}: {len(value)} entries; at most {most}.")
    for key in value:
        a_text(key, place, MAX_NAME)
    return value


def a_text(value: Any, place: str, most: int) -> str:
    if type(value) is not str or len(value) > most:
        raise InvalidTape(f"{place}: got {shown(value)}; expected text of at most {most} characters.")
    return value


def a_line(value: Any, place: str) -> str:
    if not a_text(value, place, MAX_NAME).isprintable():
        raise InvalidTape(f"{place}: got {shown(value)}; expected printable text.")
    return str(value)


def a_name(value: Any, place: str) -> str:
    if not _IDENTIFIER.fullmatch(a_text(value, place, MAX_NAME)) or value.startswith("__"):
        raise InvalidTape(f"{place}: got {shown(value)}; expected a name.")
    return str(value)


def a_whole(value: Any, place: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidTape(f"{place}: got {shown(value)}; expected an integer from {least} to {most}.")
    return value


def sizes(value: Any, place: str) -> list[int]:
    return [a_whole(size, place, 0, 2**40) for size in a_list(value, place, MAX_DIMS)]


def shown(value: Any) -> str:
    """A short form of any value, whatever it is and however large."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if type(value) is str:
        return repr(value[:60])
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    if type(value) is list and all(type(item) is str for item in value[:5]):
        return ", ".join(item[:40] for item in value[:5]) or "nothing"
    return f"a {type(value).__name__}"

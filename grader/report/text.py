"""Text that came from elsewhere, made fit for a screen: no escape sequences, no control characters, bounded length."""

from __future__ import annotations

import re
import unicodedata

MAX_LINES = 16
MAX_CHARACTERS = 2000

_ESCAPES = re.compile(
    r"""
    \x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)    # OSC: window titles, links, clipboard
    | \x1b[PX^_][^\x1b]*(?:\x1b\\|$)       # DCS, SOS, PM, APC strings
    | (?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?    # CSI: colours, cursor moves, erasing
    | \x1b[ -/]*[0-~]?                     # the two-byte rest
    """,
    re.VERBOSE,
)
_LINE_BREAKS = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_KEPT_MARKS = 4
"""Combining marks kept on one letter; stacks of dozens climb over the lines above."""


def clean(text: str, *, max_lines: int = MAX_LINES, max_characters: int = MAX_CHARACTERS) -> str:
    """Text that prints as itself and nothing else.

    Escape sequences go, tabs become spaces; control, format (zero-width, bidirectional) and unpaired surrogate
    characters become U+FFFD; what is cut is said. The result holds at most `max_lines` lines.
    """
    # A bound on the work first: a message may be a megabyte of combining marks.
    head = text[: 4 * max_characters]
    head = _LINE_BREAKS.sub("\n", _ESCAPES.sub("", head)).expandtabs(4)
    head = _limit_marks("".join(_printable(character) for character in head))
    lines = [line.rstrip() for line in head.strip("\n").split("\n")]
    cut = len(text) > 4 * max_characters
    if len(lines) > max_lines:
        lines, cut = lines[:max_lines], True
    shown = "\n".join(lines)
    if len(shown) > max_characters:
        shown, cut = shown[:max_characters], True
    return f"{shown} … (cut)" if cut else shown


def one_line(text: str, *, max_characters: int = 200) -> str:
    """`clean` on a single line."""
    return " ".join(clean(text, max_characters=max_characters).split())


def points(value: float) -> str:
    """``6``, ``2.5``, ``0.33``: at most two decimals, never rounded up to a whole that wasn't earned."""
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    if float(shown) > value + 1e-9:
        shown = f"{int(value * 100) / 100:.2f}".rstrip("0").rstrip(".")
    return shown


def count(number: int, noun: str) -> str:
    """``1 check``, ``3 checks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def count_points(value: float) -> str:
    """``1 point``, ``2.5 points``."""
    return f"{points(value)} point" if points(value) == "1" else f"{points(value)} points"


def _printable(character: str) -> str:
    if character == "\n" or character == " ":
        return character
    return "\ufffd" if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn") else character


def _limit_marks(text: str) -> str:
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= _KEPT_MARKS:
            kept.append(character)
    return "".join(kept)

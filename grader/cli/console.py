"""Consoles that behave: colour on a terminal only, stable plain lines in a pipe, no surprise from an odd encoding."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 100
"""Columns where there's no terminal to ask, so that the same report gives the same lines everywhere."""

STDOUT = "-"


def forgive_encoding() -> None:
    """A character that the terminal's encoding lacks prints as `?`, never as a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def is_plain(stream: TextIO) -> bool:
    """Whether `stream` gets plain lines: not a terminal, a dumb one, or NO_COLOR is set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return True
    return not stream.isatty() and not os.environ.get("FORCE_COLOR")


def console(stream: TextIO) -> Console:
    """A console on `stream` that parses no markup and highlights nothing."""
    from rich.console import Console

    plain = is_plain(stream)
    return Console(
        file=stream,
        color_system=None if plain else "auto",
        width=None if stream.isatty() else PIPE_WIDTH,
        force_terminal=None if not plain else False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def say(message: str) -> None:
    """One line for the person, on stderr: stdout belongs to the result."""
    print(message, file=sys.stderr, flush=True)

"""Rewrites the command line before it is parsed: `grade lab06` and `grade 6` mean `grade run lab06`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence

from grader.errors import UsageError

TAKE_A_VALUE = frozenset(
    {
        "--submission",
        "--device",
        "--profile",
        "--json",
        "--isolation",
        "-k",
        "--select",
        "--level",
        "--seed",
        "--out",
        "--shapes",
        "--only",
    }
)
"""Options whose next word is a value, so that `grade --device cpu lab06` finds the lab."""

_LAB = re.compile(r"(?i)(lab)?\d{1,3}$|lab[\w\-]*$")


def rewrite(argv: Sequence[str], commands: Collection[str], lab_ids: Callable[[], Collection[str]]) -> list[str]:
    """The same words, led by `run` when the first one that isn't an option names a lab.

    Args:
        lab_ids: names of the labs, asked for only when a suggestion is needed.

    Raises:
        UsageError: the word is neither a command nor like a lab; suggests the nearest of both.
    """
    word = first_word(argv)
    if word is None or word in commands:
        return list(argv)
    if _LAB.match(word):
        return ["run", *argv]
    names = [*commands, *lab_ids()]
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    hint = f"Did you mean `grade {close[0]}`?" if close else "See `grade --help` and `grade list`."
    raise UsageError(f"{word!r} is neither a command nor a lab.", hint=hint)


def first_word(argv: Sequence[str]) -> str | None:
    """The first word that is neither an option nor an option's value."""
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word == "--":
            return None
        elif word.startswith("-") and word != "-":
            skip = word in TAKE_A_VALUE
        else:
            return word
    return None

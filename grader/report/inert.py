"""Makes text from elsewhere inert where it lands: a spreadsheet's cell, markup, a file's name; one function each.

Names of students, pseudonyms, messages and file names are hostile material. `grader.report.text` takes escape
sequences, control and bidirectional characters out; these functions build on it and add what the target can run.
"""

from __future__ import annotations

import re
from html import escape

from grader.report.text import clean, one_line

CELL_CHARACTERS = 1000
FILE_NAME_BYTES = 120

# What spreadsheets take for the start of a formula: OWASP's list of CSV injection, with the full-width forms that
# some of them fold. A reader with another separator (`;`, `|`, a tab) would start a cell in the middle of ours.
_FORMULA = re.compile(r"(^|[,;|\"'\u201c\u201d])(\s*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_FILE_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def spreadsheet_cell(value: str | float | int | bool | None) -> str:
    """Text for one cell of a CSV file that no spreadsheet takes for a formula.

    Numbers pass as they are, a lone negative number in a text too; None is an empty cell. Everything else is one clean
    line, with an apostrophe before what would start a formula, here or behind another program's separator.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:.10g}" if isinstance(value, float) else str(value)
    text = one_line(value, max_characters=CELL_CHARACTERS)
    if _NUMBER.fullmatch(text):
        return text
    return _FORMULA.sub(r"\1'\2", text)


def markup(value: str, *, max_characters: int = 2000, max_lines: int = 16) -> str:
    """Text for an element or a quoted attribute of HTML, SVG or XML: clean, the five special characters escaped."""
    return escape(clean(value, max_lines=max_lines, max_characters=max_characters), quote=True)


def file_name(value: str) -> str:
    """One part of a path in plain ASCII: no separator, no leading dot or hyphen, never empty.

    Different names may fall together: who writes one file a name adds what tells them apart.
    """
    safe = _FILE_UNSAFE.sub("_", one_line(value))[:FILE_NAME_BYTES].lstrip(".-")
    return safe or "_"

"""Writes results where a machine reads them."""

from __future__ import annotations

import sys
from pathlib import Path

from grader.cli.console import STDOUT
from grader.errors import UsageError
from grader.files import replace_text
from grader.machine import unwritable


def write_json(text: str, target: str) -> None:
    """Write `text` to the file `target`, whole or not at all, or to stdout for ``-``.

    Raises:
        UsageError: the place can't be written; names it and the reason.
    """
    write_text(text, target, option="--json")


def write_text(text: str, target: str, *, option: str) -> None:
    """As `write_json`, for the file that `option` names."""
    if target == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    try:
        if path.is_dir():
            raise UsageError(f"{option} {target}: that is a folder.", hint=f"Name a file, e.g. {path / 'report.json'}.")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe or a device: nothing to replace
        else:
            replace_text(path, text)
    except OSError as error:
        raise unwritable(f"{option} {target}", error, hint="Name a file in a folder you may write to.") from error


def write_below(folder: Path, name: str, text: str, *, option: str) -> Path:
    """Write `text` to ``folder/name``, making folders as needed; the path of the file.

    Args:
        name: relative, its parts made safe by the caller.

    Raises:
        UsageError: the place can't be written; names it and the reason.
    """
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(f"{option} {folder}", error, hint="Name a folder that can be made.") from error
    write_text(text, str(path), option=option)
    return path

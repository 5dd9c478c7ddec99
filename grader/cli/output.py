"""Writes results where a machine reads them."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from grader.cli.console import STDOUT
from grader.errors import UsageError


def write_json(text: str, target: str) -> None:
    """Write `text` to the file `target`, whole or not at all, or to stdout for ``-``.

    Raises:
        UsageError: the place can't be written; names it and the reason.
    """
    if target == STDOUT:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    path = Path(target)
    try:
        if path.is_dir():
            raise UsageError(f"--json {target}: that is a folder.", hint=f"Name a file, e.g. {path / 'report.json'}.")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a pipe or a device: nothing to replace
        else:
            _replace(path, text)
    except OSError as error:
        raise UsageError(
            f"--json {target}: cannot be written ({error.strerror}).", hint="Name a file in a folder you may write to."
        ) from error


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".grade-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes it 0600; a report is as readable as any file that the person makes.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Writes a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

TEMPORARY_PREFIX = ".grade-"
"""Begins the name of a file that isn't whole yet; one that lies there after a crash may be removed."""


def replace_text(path: Path, text: str, *, durable: bool = False, mode: int = 0o666) -> None:
    """As `replace_bytes`, of text in UTF-8."""
    replace_bytes(path, text.encode(), durable=durable, mode=mode)


def replace_bytes(path: Path, content: bytes, *, durable: bool = False, mode: int = 0o666) -> None:
    """Put `content` at `path` in one step: a reader, or a crash, sees the old file or the new one.

    Args:
        durable: also wait until the disk has it, so that a crash of the machine loses nothing.
        mode: permissions, less the umask; as readable as any file that the person makes unless it says otherwise.

    Raises:
        OSError: the place can't be written; nothing is left there.
    """
    temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        _sync_folder(path.parent)


@contextlib.contextmanager
def removed_unless_whole(path: Path) -> Iterator[None]:
    """Around the writing of a new file: where it fails, nothing is left at `path` that looks like one."""
    try:
        yield
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

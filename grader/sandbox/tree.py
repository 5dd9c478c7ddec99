"""Walks and copies a folder that a stranger filled.

Links aren't followed, FIFOs and devices aren't opened, sizes and numbers are bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from grader.machine import blame_the_machine

MAX_DEPTH = 8
MAX_NOTES = 20
MAX_NAME_BYTES = 200
CHUNK_BYTES = 1 << 20

SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})


class Notes:
    """Collects notes; a hostile folder can't make the report endless."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._more = 0

    def add(self, name: str, why: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(f"{shown(name)} was left out: {why}")
        else:
            self._more += 1

    def all(self) -> tuple[str, ...]:
        more = (f"{self._more} more files were left out",) if self._more else ()
        return (*self._notes, *more)


def shown(name: str) -> str:
    """A file's name, harmless to print: as it is when plain, else its `repr`, shortened."""
    short = name if len(name) <= MAX_NAME_BYTES else f"{name[:MAX_NAME_BYTES]}…"
    return short if is_plain(name) else ascii(short)


def is_plain(name: str) -> bool:
    return name.isprintable() and not any(0xD800 <= ord(char) < 0xE000 for char in name)


def entries(
    folder_fd: int, prefix: str, depth: int, notes: Notes, budget: Iterator[int]
) -> Iterator[tuple[int, str, str]]:
    """(descriptor of the folder, base name, relative name) of everything that isn't a folder, sorted.

    Args:
        budget: one item is taken for each entry, folders included; the walk ends with it.
    """
    with os.scandir(folder_fd) as scan:
        names = sorted(entry.name for entry, _ in zip(scan, budget, strict=False))
    for base in names:
        name = f"{prefix}{base}"
        try:
            mode = os.stat(base, dir_fd=folder_fd, follow_symlinks=False).st_mode
        except OSError as error:
            blame_the_machine(error)
            notes.add(name, f"it can't be looked at ({error.strerror})")
            continue
        if not stat.S_ISDIR(mode):
            yield folder_fd, base, name
            continue
        if base.startswith(".") or base in SKIPPED_FOLDERS:
            continue
        if depth >= MAX_DEPTH:
            notes.add(f"{name}/", f"it lies more than {MAX_DEPTH} folders deep")
            continue
        try:
            inner = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder_fd)
        except OSError as error:
            blame_the_machine(error)
            notes.add(f"{name}/", f"it can't be opened ({error.strerror})")
            continue
        try:
            yield from entries(inner, f"{name}/", depth + 1, notes, budget)
        finally:
            os.close(inner)


def open_regular(folder_fd: int, base: str) -> tuple[int, int]:
    """(descriptor, size) of a regular file.

    Raises:
        ValueError: it's something else (told by the message). OSError: it can't be opened.
    """
    mode = os.stat(base, dir_fd=folder_fd, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise ValueError("it's a symbolic link; put the file itself there")
    if not stat.S_ISREG(mode):
        raise ValueError("it's no regular file")
    # The entry may have been exchanged since: O_NONBLOCK so that a FIFO doesn't stop us, then a look at what we hold.
    fd = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ValueError("it's no regular file")
    return fd, status.st_size


def copy_bounded(fd: int, target: Path, limit: int) -> int:
    """Copy at most `limit` bytes; the number copied.

    Raises:
        ValueError: there is more; nothing is left at `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    copied = 0
    with open(target, "wb") as file:
        while chunk := os.read(fd, CHUNK_BYTES):
            copied += len(chunk)
            if copied > limit:
                break
            file.write(chunk)
    if copied > limit:
        target.unlink()
        raise ValueError(f"it's larger than {limit >> 20} MiB")
    return copied

"""One submission as it is compared: its files' texts and tokens. Reads them from a folder, bounded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from grader.classroom.similarity.fingerprints import grams, winnow
from grader.classroom.similarity.tokens import SUFFIXES, Token, readable, tokens_of

MAX_FILE_BYTES = 512 << 10
"""Of one file. A lab's own files have some tens of KiB; what is longer is left out, and named."""
MAX_FILES = 60
MAX_TOKENS = 60_000
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "__MACOSX"})


@dataclass(frozen=True, eq=False)
class Work:
    """One submission of one lab, or one folder that submissions are compared with.

    Attributes:
        label: how the report names it.
        owners: ids of those who handed it in; two works of one owner aren't compared. Empty for a folder of the
            instructor's.
        files: name → text as `tokens.readable` gives it, in the order of the names.
        notes: files that were left out, and why.
    """

    label: str
    owners: tuple[str, ...]
    files: dict[str, str]
    notes: tuple[str, ...] = ()

    @cached_property
    def tokens(self) -> list[tuple[str, Token]]:
        """(file, token) of all files, one after the other."""
        found = [(name, token) for name, text in self.files.items() for token in tokens_of(name, text)]
        return found[:MAX_TOKENS]

    @cached_property
    def grams(self) -> list[int]:
        return grams([token.symbol for _, token in self.tokens])

    @cached_property
    def fingerprints(self) -> frozenset[int]:
        return winnow(self.grams)


def read_work(folder: Path, label: str, owners: tuple[str, ...] = (), *, without: frozenset[str] = frozenset()) -> Work:
    """The texts below `folder` that can be compared. Links aren't followed; nothing is run.

    Args:
        without: names (relative, with ``/``) that the course gave.
    """
    files: dict[str, str] = {}
    notes: list[str] = []
    for name, path in _files(folder):
        if name in without:
            continue
        if len(files) >= MAX_FILES:
            notes.append(f"only the first {MAX_FILES} files were compared")
            break
        raw = _content(path)
        if raw is None:
            notes.append(f"{name} isn't a regular file of at most {MAX_FILE_BYTES >> 10} KiB")
        else:
            files[name] = readable(name, raw)
    return Work(label, owners, files, tuple(notes))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                path = Path(place, name)
                yield path.relative_to(folder).as_posix(), path


def _content(path: Path) -> bytes | None:
    """The bytes of a regular file that isn't too long; None for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        raw = file.read(MAX_FILE_BYTES + 1)
    return raw if len(raw) <= MAX_FILE_BYTES else None

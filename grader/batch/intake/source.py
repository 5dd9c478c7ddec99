"""A student's files wherever they lie: in the folder as it was handed in, or in what was unpacked from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from grader.batch.intake.model import RefusedError
from grader.batch.intake.names import is_junk
from grader.machine import blame_the_machine
from grader.sandbox.stage import MAX_ENTRIES
from grader.sandbox.tree import Notes, entries, is_plain, open_regular


@dataclass(frozen=True)
class Place:
    """A regular file: `name` below the folder `root`."""

    root: Path
    name: str


@dataclass
class Tree:
    """A student's files by the name that the student knows (`/` between parts).

    Attributes:
        files: name → where it lies; an unpacked archive's files stand under the archive's folder.
        notes: what was left out or put right so far.
        junk: how many files of operating systems, editors and version control were passed over.
    """

    files: dict[str, Place] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    junk: int = 0


def walk(root: Path) -> Tree:
    """The regular files below a folder that a stranger filled.

    Raises:
        RefusedError: the folder can't be read, or holds more entries than any submission has reason to.
    """
    tree, notes = Tree(), Notes()
    budget = iter(range(MAX_ENTRIES))
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        blame_the_machine(error, root)
        raise RefusedError(f"the folder can't be opened ({error.strerror})") from error
    try:
        for folder_fd, base, name in entries(root_fd, "", 1, notes, budget):
            if is_junk(name):
                tree.junk += 1
                continue
            if not is_plain(name):
                notes.add(name, "its name has control characters or invalid UTF-8")
                continue
            try:
                fd, _ = open_regular(folder_fd, base)
            except ValueError as error:
                notes.add(name, str(error))
                continue
            except OSError as error:
                blame_the_machine(error, root / name)
                notes.add(name, f"it can't be read ({error.strerror})")
                continue
            os.close(fd)
            tree.files[name] = Place(root, name)
    finally:
        os.close(root_fd)
    if next(budget, None) is None:
        raise RefusedError(f"the folder holds more than {MAX_ENTRIES} entries: leave environments and data out")
    tree.notes.extend(notes.all())
    return tree


@contextmanager
def opened(place: Place) -> Iterator[tuple[int, int]]:
    """(descriptor, size) of a file, reached without following a link anywhere on the way.

    Raises:
        OSError: it's gone or can't be read. ValueError: it's no regular file any more.
    """
    *folders, base = place.name.split("/")
    held = [os.open(place.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)]
    try:
        for folder in folders:
            held.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held[-1]))
        fd, size = open_regular(held[-1], base)
        held.append(fd)
        yield fd, size
    finally:
        for fd in reversed(held):
            with suppress(OSError):
                os.close(fd)

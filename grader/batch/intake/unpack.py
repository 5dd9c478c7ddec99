"""Unpacks a student's archives, and the archives inside, into the work folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from grader.batch.intake.archives import CHUNK_BYTES, archive_suffix, misnamed, opened_archive, sniff
from grader.batch.intake.entries import MAX_UNPACKED_BYTES, Entry
from grader.batch.intake.model import RefusedError, UnreadableError, UnsafeError
from grader.batch.intake.names import is_junk
from grader.batch.intake.source import Place, Tree, opened
from grader.machine import blame_the_machine
from grader.sandbox.stage import MAX_ENTRIES
from grader.sandbox.tree import Notes, is_plain, shown

MAX_NESTING = 3
MAX_ARCHIVES = 50


@dataclass
class Unpacker:
    """Unpacks the archives of one submission.

    Attributes:
        scratch: a folder of its own, made when it's needed.
        unread: what couldn't be unpacked, and why.
    """

    scratch: Path
    unread: list[str] = field(default_factory=list)
    _bytes: int = 0
    _files: int = 0
    _archives: int = 0

    def expand(self, tree: Tree) -> None:
        """Put the contents of every archive in `tree` in its place.

        Raises:
            UnsafeError: one of them is unsafe, or they are nested too deep.
        """
        level = [name for name in sorted(tree.files) if archive_suffix(name)]
        for depth in range(MAX_NESTING + 1):
            if not level:
                return
            if depth == MAX_NESTING:
                raise UnsafeError(f"archives lie in archives more than {MAX_NESTING} deep: {shown(level[0])}")
            level = [inner for name in level for inner in self._expand_one(tree, name) if archive_suffix(inner)]

    def _expand_one(self, tree: Tree, name: str) -> list[str]:
        """The names that stand in place of the archive `name`."""
        place = tree.files.pop(name)
        prefix = name[: -len(archive_suffix(name))]
        if any(other.startswith(f"{prefix}/") for other in tree.files) or prefix.endswith("/") or not prefix:
            prefix = name
        try:
            inner = self.unpack(place, shown(name))
        except UnsafeError as refusal:
            raise UnsafeError(f"{shown(name)}: {refusal}") from refusal
        except RefusedError as refusal:
            self.unread.append(f"{shown(name)}: {refusal}")
            return []
        tree.notes.extend(inner.notes)
        tree.junk += inner.junk
        above = name[: name.rfind("/") + 1]
        beside = len(inner.files) == 1 and not any(above + found in tree.files for found in inner.files)
        put = {(above if beside else f"{prefix}/") + found: at for found, at in inner.files.items()}
        tree.files.update(put)
        return sorted(put)

    def unpack(self, place: Place, name: str) -> Tree:
        """The contents of one archive.

        Raises:
            UnsafeError, UnreadableError: as `opened_archive` has it.
        """
        self._archives += 1
        if self._archives > MAX_ARCHIVES:
            raise UnsafeError(f"there are more than {MAX_ARCHIVES} archives")
        target = self.scratch / f"{self._archives:04d}"
        target.mkdir(parents=True)
        tree, notes = Tree(), Notes()
        try:
            with opened(place) as (fd, _), os.fdopen(os.dup(fd), "rb") as file:
                kind = sniff(file)
                note = misnamed(name, kind)
                with opened_archive(file, kind, place.name, self.scratch) as entries:
                    self._files += len(entries)
                    if self._files > MAX_ENTRIES:
                        raise UnsafeError(f"the archives hold more than {MAX_ENTRIES} entries together")
                    if any("\\" in entry.told for entry in entries):
                        tree.notes.append(f"{name}: backslashes in names were read as folders")
                    for entry in entries:
                        self._take(entry, target, tree, notes)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError):
                blame_the_machine(error, self.scratch)
            raise UnreadableError(f"the archive can't be read ({error})") from error
        tree.notes.extend([note] if note else [])
        tree.notes.extend(notes.all())
        return tree

    def _take(self, entry: Entry, target: Path, tree: Tree, notes: Notes) -> None:
        if entry.kind == "folder":
            return
        if is_junk(entry.name):
            tree.junk += 1
        elif entry.kind == "link":
            notes.add(entry.name, "it's a symbolic link; put the file itself there")
        elif not is_plain(entry.name):
            notes.add(entry.name, "its name has control characters")
        else:
            self._write(entry, target / entry.name)
            tree.files[entry.name] = Place(target, entry.name)

    def _write(self, entry: Entry, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file, entry.open() as content:
            while chunk := content.read(CHUNK_BYTES):
                self._bytes += len(chunk)
                if self._bytes > MAX_UNPACKED_BYTES:
                    raise UnsafeError(f"the archives unpack to more than {MAX_UNPACKED_BYTES >> 20} MiB together")
                file.write(chunk)

"""What an archive says of its entries, and which of it no grader should believe."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Literal

from grader.batch.intake.model import UnsafeError
from grader.sandbox.stage import MAX_ENTRIES
from grader.sandbox.tree import MAX_NAME_BYTES, shown

MAX_PATH_BYTES = 1000
MAX_FOLDERS = 32
MAX_UNPACKED_BYTES = 128 << 20
"""Of one archive, and of all archives of one submission together."""
MAX_RATIO, RATIO_FROM_BYTES = 200, 16 << 20
"""Text shrinks some tenfold, a plot hardly: what unpacks to so many times its size and so much is a bomb."""

Kind = Literal["file", "folder", "link", "hard link", "device node", "FIFO", "socket", "unknown"]
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True)
class Entry:
    """One entry.

    Attributes:
        told: the name as the archive has it; name: with `/` between parts, nothing else changed.
        size: unpacked bytes, as the archive claims.
        target: where a link leads.
        open: opens the content; the archive must be open still.
    """

    told: str
    name: str
    kind: Kind
    size: int
    open: Callable[[], IO[bytes]]
    target: str = ""


def slashed(told: str) -> str:
    """The name with `/` for the `\\` that some Windows tools write, without parts that say nothing: `.` and empty."""
    name = told.replace("\\", "/")
    parts = "/".join(part for part in name.split("/") if part not in ("", "."))
    return f"/{parts}" if name.startswith("/") else parts


def check(entries: Sequence[Entry], packed_bytes: int) -> None:
    """Refuse an archive that no honest tool makes of a student's folder; nothing was unpacked yet.

    Raises:
        UnsafeError: names the entry and what is wrong with it.
    """
    if len(entries) > MAX_ENTRIES:
        raise UnsafeError(f"the archive holds more than {MAX_ENTRIES} entries: leave environments and data out")
    for entry in entries:
        _check_name(entry)
        _check_kind(entry)
    _check_together(entries)
    check_size(sum(entry.size for entry in entries), packed_bytes)


def check_size(unpacked: int, packed: int) -> None:
    """Refuse what unpacks to too much.

    Raises:
        UnsafeError: too large, or too large for what it was packed into.
    """
    if unpacked > MAX_UNPACKED_BYTES:
        raise UnsafeError(f"the archive unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB (an archive bomb)")
    if unpacked > RATIO_FROM_BYTES and unpacked > MAX_RATIO * packed:
        raise UnsafeError(f"the archive unpacks to {unpacked // max(packed, 1)} times its size (an archive bomb)")


def _check_name(entry: Entry) -> None:
    told, name = entry.told, entry.name
    if "\0" in told:
        raise UnsafeError(f"an entry's name holds a NUL: {shown(told)}")
    if not name and entry.kind != "folder":
        raise UnsafeError(f"an entry has no name: {shown(told) or 'it is empty'}")
    if any(0xD800 <= ord(char) < 0xE000 for char in told):
        raise UnsafeError(f"an entry's name isn't valid text: {shown(told)}")
    if name.startswith("/") or _DRIVE.match(name):
        raise UnsafeError(f"an entry has an absolute name: {shown(told)}")
    parts = name.split("/")
    if ".." in parts:
        raise UnsafeError(f"an entry's name leads out of the archive (zip-slip): {shown(told)}")
    longest = max(len(os.fsencode(part)) for part in parts)
    if longest > MAX_NAME_BYTES or len(os.fsencode(name)) > MAX_PATH_BYTES or len(parts) > MAX_FOLDERS:
        raise UnsafeError(f"an entry's name is too long or too deep: {shown(told)}")


def _check_kind(entry: Entry) -> None:
    if entry.size < 0:
        raise UnsafeError(f"an entry has a negative size: {shown(entry.told)}")
    if entry.kind in ("file", "folder"):
        return
    if entry.kind != "link":
        raise UnsafeError(f"an entry is no file but a {entry.kind}: {shown(entry.told)}")
    goal = posixpath.normpath(posixpath.join(posixpath.dirname(entry.name), slashed(entry.target) or "/"))
    if goal.startswith(("/", "..")) or _DRIVE.match(goal) or "\0" in entry.target:
        raise UnsafeError(f"a link leads out of the archive: {shown(entry.told)} -> {shown(entry.target)}")


def _check_together(entries: Sequence[Entry]) -> None:
    seen: dict[str, Kind] = {}
    for entry in entries:
        if entry.name in seen and (entry.kind, seen[entry.name]) != ("folder", "folder"):
            raise UnsafeError(f"two entries have the same name: {shown(entry.told)}")
        seen[entry.name] = entry.kind
    for entry in entries:
        above = posixpath.dirname(entry.name)
        while above:
            if seen.get(above, "folder") != "folder":
                raise UnsafeError(f"an entry lies below one that is no folder: {shown(entry.told)}")
            above = posixpath.dirname(above)

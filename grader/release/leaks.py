"""Looks for hidden tests and solutions in what is to be handed out: their marks, and lines that only they hold."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from grader.canary import MARK, kept_files, mark_of, takes_mark
from grader.course import Course

SHORTEST_LINE = 40
SHORTEST_ROW = 20
"""Characters from which a line of code, or a row of a table, says where it comes from."""
MAX_BYTES_BEFORE, MAX_BYTES_BEHIND = 5, 3
MAX_NESTING = 4
MAX_UNPACKED_BYTES = 256 << 20

_CONTROL = re.compile(rb"[\x00-\x1f]+")
_PACKED = ((b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7zXZ", lzma.decompress))


@dataclass(frozen=True)
class Leak:
    """Something that must not be handed out.

    Attributes:
        place: the file that it was found in; `archive!member` for one inside an archive.
        source: the file of the course that it comes from.
        what: the mark or the line.
        marked: it's the mark, which stands nowhere by chance.
    """

    place: str
    source: str
    what: str
    marked: bool = False


class LeakFinder:
    """Knows the marks and the telling lines of one course."""

    def __init__(self, course: Course) -> None:
        self._marks = {mark_of(name).encode(): name for name in kept_files(course)}
        public = set(_starter_lines(course))
        self._lines = {line: name for name, line in _telling_lines(course) if line not in public}

    def scan(self, place: str, raw: bytes, depth: int = 0) -> Iterator[Leak]:
        """What leaks through one file, archives and compressed files in it opened."""
        for mark in dict.fromkeys(MARK.findall(raw)):
            source = self._marks.get(mark, "a file that is no longer there")
            yield Leak(place, source, mark.decode(), marked=True)
        found = (line for line in dict.fromkeys(_possible_lines(raw)) if line in self._lines)
        yield from (Leak(place, self._lines[line], line.decode("utf-8", "replace")) for line in found)
        if depth < MAX_NESTING:
            for inner, content in _inside(place, raw):
                yield from self.scan(f"{place}!{inner}", content, depth + 1)


def _lines(raw: bytes) -> Iterator[bytes]:
    """Lines of a text, without the blanks around them."""
    return (line.strip() for line in _CONTROL.split(raw))


def _possible_lines(raw: bytes) -> Iterator[bytes]:
    """As `_lines`; in compiled code a text has some bytes of its length before it, and others behind."""
    if b"\0" not in raw:
        yield from _lines(raw)
        return
    for line in _lines(raw):
        if len(line) >= SHORTEST_ROW:
            for start in range(MAX_BYTES_BEFORE + 1):
                yield from (line[start : len(line) - behind].strip() for behind in range(MAX_BYTES_BEHIND + 1))


def _telling_lines(course: Course) -> Iterator[tuple[str, bytes]]:
    """(file, line) of what hidden tests, the reference's solutions and tables of numbers hold."""
    for name in kept_files(course):
        path = PurePosixPath(name)
        raw = (course.root / name).read_bytes()
        if not takes_mark(name):
            # The first row names the columns, which the handout does too.
            yield from ((name, line) for line in list(_lines(raw))[1:] if len(line) >= SHORTEST_ROW)
        elif path.parts[0] == "assignments":
            yield from ((name, line) for line in _lines(raw) if len(line) >= SHORTEST_LINE)
            # Compiled, a docstring has lost its quotes.
            yield from ((name, text) for line in _lines(raw) if len(text := line.strip(b'"')) >= SHORTEST_LINE)
        elif path.parts[2] == "reference" and path.suffix != ".png":
            yield from ((name, line) for line in _solution_lines(raw) if len(line) >= SHORTEST_LINE)


def _starter_lines(course: Course) -> Iterator[bytes]:
    """Lines of the references outside of every solution: they become the starters'."""
    for name in kept_files(course):
        if PurePosixPath(name).parts[2] == "reference" and takes_mark(name):
            yield from (line for line, inside in _told_apart((course.root / name).read_bytes()) if not inside)


def _solution_lines(raw: bytes) -> Iterator[bytes]:
    return (line for line, inside in _told_apart(raw) if inside)


def _told_apart(raw: bytes) -> Iterator[tuple[bytes, bool]]:
    """(line, whether it stands between the markers and doesn't become the starter's)."""
    inside = False
    for line in _lines(raw):
        if b"BEGIN SOLUTION" in line or b"END SOLUTION" in line:
            inside = b"BEGIN SOLUTION" in line
        else:
            yield line, inside and b"STARTER:" not in line


def _inside(place: str, raw: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of what is packed in a file; nothing for one that isn't packed."""
    try:
        if raw.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                if sum(info.file_size for info in archive.infolist()) <= MAX_UNPACKED_BYTES:
                    for info in archive.infolist():
                        yield info.filename, archive.read(info)
        for magic, unpack in _PACKED:
            if raw.startswith(magic):
                yield PurePosixPath(place).stem, unpack(raw)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError):
        # Not what its first bytes say: its bytes as they are were looked at already.
        return

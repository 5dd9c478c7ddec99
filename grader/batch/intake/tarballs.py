"""A `tarfile.TarFile` that looks at what describes an entry before the standard library parses it.

tarfile parses the headers of pax and of sparse files in time and memory that grow with the square of their size where
someone has made them for it, some of it in every version (CVE-2024-6232 is one case). A few hundred KiB are enough to
hold up a whole class.
"""

from __future__ import annotations

import re
import tarfile

from grader.batch.intake.model import UnsafeError
from grader.sandbox.tree import shown

MAX_HEADER_BYTES = 64 << 10
"""Of one entry's name, or of its extended attributes; an honest one takes some hundred."""
MAX_HEADERS_BYTES = 16 << 20
"""Of all such headers of an archive."""
MAX_COMMON = 1000
"""Attributes that hold for the whole archive: tarfile copies them for every entry. Git writes one."""

_PAX = frozenset({tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE})
_LONG = frozenset({tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK})
_LENGTH = re.compile(rb"[1-9][0-9]{0,5} ")
_DIGITS = re.compile(rb"[0-9]{65}")


class CarefulTarInfo(tarfile.TarInfo):
    """See the module."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> CarefulTarInfo:
        """The next entry; tarfile calls this for every header, also for those that come before an entry's own.

        Raises:
            UnsafeError: no honest tool writes such a header. tarfile.HeaderError: there's none, or it's damaged.
        """
        assert isinstance(archive, CarefulTarFile)
        archive.look_ahead()
        return super().fromtarfile(archive)


class CarefulTarFile(tarfile.TarFile):
    """See the module."""

    tarinfo = CarefulTarInfo
    _headers_bytes = 0

    def look_ahead(self) -> None:
        """Raise UnsafeError where the header that comes next is made to hold up whoever parses it."""
        assert self.fileobj is not None
        start = self.fileobj.tell()
        try:
            head = tarfile.TarInfo.frombuf(self.fileobj.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return  # tarfile finds the same, and tells the archive's end from damage.
        else:
            if head.type == tarfile.GNUTYPE_SPARSE:
                raise UnsafeError(f"an entry is a sparse file: {shown(head.name)}")
            if head.type in _PAX | _LONG:
                self._check_header(head, head.type in _PAX)
        finally:
            self.fileobj.seek(start)

    def _check_header(self, head: tarfile.TarInfo, is_pax: bool) -> None:
        assert self.fileobj is not None
        self._headers_bytes += head.size
        if not 0 <= head.size <= MAX_HEADER_BYTES or self._headers_bytes > MAX_HEADERS_BYTES:
            raise UnsafeError(f"what describes an entry is too long: {shown(head.name)}")
        if not is_pax:
            return
        if len(self.pax_headers) > MAX_COMMON:
            raise UnsafeError(f"more than {MAX_COMMON} attributes are given for all entries")
        _check_attributes(self.fileobj.read(head.size), shown(head.name))


def _check_attributes(raw: bytes, name: str) -> None:
    """Raise UnsafeError unless `raw` is a row of ``<length> <key>=<value>\\n``, lengths true, as POSIX has it."""
    place = 0
    while place < len(raw) and raw[place] != 0:
        length = _LENGTH.match(raw, place)
        end = place + int(length[0]) if length is not None else 0
        key, equals, _ = raw[length.end() if length is not None else 0 : end].partition(b"=")
        if not equals or end > len(raw) or raw[end - 1 : end] != b"\n":
            raise UnsafeError(f"an entry's attributes are forged: {name}")
        if key.startswith(b"GNU.sparse"):
            raise UnsafeError(f"an entry is a sparse file: {name}")
        place = end
    if _DIGITS.search(raw):
        raise UnsafeError(f"an entry's attributes are forged: {name}")

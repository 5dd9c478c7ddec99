"""Reads zips and tarballs: told by their first bytes, checked whole before a byte of them is written."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Literal

from grader.batch.intake.entries import MAX_UNPACKED_BYTES, Entry, Kind, check, check_size, slashed
from grader.batch.intake.model import UnreadableError, UnsafeError
from grader.batch.intake.source import Place, opened
from grader.batch.intake.tarballs import CarefulTarFile
from grader.machine import blame_the_machine
from grader.sandbox.stage import MAX_ENTRIES

Format = Literal["zip", "tar", "gzip", "bzip2", "xz", "7z", "rar", "zstd", "none"]

MAX_PACKED_BYTES = 64 << 20
CHUNK_BYTES = 1 << 16
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".gz", ".bz2", ".xz")
UNREAD_SUFFIXES = (".7z", ".rar", ".tar.zst", ".zst")

_MAGIC: tuple[tuple[bytes, Format], ...] = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"PK\x07\x08", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)
_TOLD = {
    "zip": (".zip",),
    "tar": (".tar",),
    "gzip": (".gz", ".tgz"),
    "bzip2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
}
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    struct.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    RuntimeError,  # zipfile's way to say that a password is needed; NotImplementedError and RecursionError are of it
    OverflowError,
    MemoryError,
)
"""What damaged or forged archives make the standard library raise. OSError: gzip and bz2 use it for bad data."""


def archive_suffix(name: str) -> str:
    """The ending by which a name calls itself an archive, the longest; "" when it doesn't."""
    lower = name.lower()
    return max((suffix for suffix in (*SUFFIXES, *UNREAD_SUFFIXES) if lower.endswith(suffix)), key=len, default="")


def sniff(file: IO[bytes]) -> Format:
    """The format that the first bytes tell."""
    file.seek(0)
    head = file.read(512)
    file.seek(0)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return "tar" if head[257:262] == b"ustar" else "none"


def starts_like_an_archive(path: Path) -> bool:
    """Whether a file's first bytes are those of an archive, also of one that isn't read; no when it can't be opened."""
    try:
        with opened(Place(path.parent, path.name)) as (fd, _), os.fdopen(os.dup(fd), "rb") as file:
            return sniff(file) != "none"
    except (OSError, ValueError):
        return False


def misnamed(name: str, kind: Format) -> str:
    """A note where the name tells another format than the bytes; "" otherwise."""
    fits = name.lower().endswith(_TOLD.get(kind, ()))
    return "" if fits else f"{name} is a {kind} archive in spite of its name"


@contextmanager
def opened_archive(file: IO[bytes], kind: Format, name: str, scratch: Path) -> Iterator[list[Entry]]:
    """The entries of an archive, checked; their contents can be read inside the block.

    Args:
        name: of the archive, for what holds a single packed file.
        scratch: where a tarball is unpacked to, in a file without a name.

    Raises:
        UnsafeError: what it says of itself no honest archive would. UnreadableError: damaged, encrypted, a format that
            isn't read, or no archive.
    """
    packed = file.seek(0, 2)
    file.seek(0)
    if packed == 0:
        raise UnreadableError("the archive is empty (0 bytes)")
    if packed > MAX_PACKED_BYTES:
        raise UnsafeError(f"the archive is larger than {MAX_PACKED_BYTES >> 20} MiB")
    if kind in ("7z", "rar", "zstd"):
        raise UnreadableError(f"it's a {kind} archive, which isn't read here: hand in a zip")
    if kind == "none":
        raise UnreadableError("it isn't an archive, though its name says so")
    try:
        with tempfile.TemporaryFile(dir=scratch) as plain:
            entries = _zip_entries(file) if kind == "zip" else _tar_entries(file, kind, name, packed, plain)
            check(entries, packed)
            if not any(entry.kind == "file" for entry in entries):
                raise UnreadableError("the archive holds no file")
            yield entries
    except NotImplementedError as error:
        raise UnreadableError(
            f"it's packed in a way that isn't read here ({_reason(error)}): hand in a plain zip"
        ) from error
    except _BROKEN as error:
        if isinstance(error, OSError):
            blame_the_machine(error, scratch)
        raise UnreadableError(f"the archive is damaged or cut off ({_reason(error)})") from error


def _reason(error: BaseException) -> str:
    # The text of an error of the system names a file of ours.
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = " ".join(told.split())[:100]
    return text if text.isprintable() and text else type(error).__name__


def _zip_entries(file: IO[bytes]) -> list[Entry]:
    # Counted before zipfile makes an object of each; an archive inside, stored, counts too, which is well within.
    records, seam = 0, b""
    while block := file.read(1 << 20):
        records += (seam + block).count(b"PK\x01\x02")
        seam = block[-3:]
    if records > 2 * MAX_ENTRIES:
        raise UnsafeError(f"the archive holds more than {MAX_ENTRIES} entries")
    archive = zipfile.ZipFile(file)
    entries = []
    packed_sum = 0
    for info in archive.infolist():
        if info.flag_bits & 0x1:
            raise UnreadableError("the archive is encrypted: hand it in without a password")
        packed_sum += info.compress_size
        kind = _zip_kind(info)
        target = ""
        if kind == "link":
            if info.file_size > 4096:
                raise UnsafeError(f"a link's target is longer than a path can be: {info.filename!a}")
            target = archive.read(info).decode("utf-8", "surrogateescape")
        told = info.orig_filename
        size = info.file_size
        entries.append(Entry(told, slashed(told), kind, size, partial(archive.open, info), target))
    if packed_sum > file.seek(0, 2):
        raise UnsafeError("the archive's entries overlap (an archive bomb)")
    return entries


def _zip_kind(info: zipfile.ZipInfo) -> Kind:
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if info.orig_filename.endswith(("/", "\\")) or kind == stat.S_IFDIR:
        return "folder"
    if kind in (0, stat.S_IFREG):
        return "file"
    known: dict[int, Kind] = {
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
        stat.S_IFBLK: "device node",
        stat.S_IFCHR: "device node",
    }
    return known.get(kind, "unknown")


def _tar_entries(file: IO[bytes], kind: Format, name: str, packed: int, plain: IO[bytes]) -> list[Entry]:
    """The entries of a tarball, unpacked to `plain` first: tarfile believes sizes that a header forges."""
    size = 0
    stream = _unpacked(file, kind)
    while chunk := stream.read(CHUNK_BYTES):
        size += len(chunk)
        if kind != "tar":
            check_size(size, packed)
        plain.write(chunk)
    if sniff(plain) != "tar" and kind != "tar" and not _old_tar(plain):
        single = name.rpartition(".")[0].rpartition("/")[2] or name
        return [Entry(single, slashed(single), "file", size, partial(_rewound, plain))]
    plain.seek(0)
    archive = CarefulTarFile(fileobj=plain, mode="r", errors="surrogateescape")
    entries = _members(archive)
    # tarfile takes garbage between entries, and the end of the file within one, for the archive's end.
    plain.seek(archive.offset)
    if size % tarfile.BLOCKSIZE or plain.read(2 * tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError("it ends in the middle of an entry")
    return entries


def _unpacked(file: IO[bytes], kind: Format) -> IO[bytes]:
    """What a packed stream unpacks to; `file` itself when it isn't packed."""
    if kind == "gzip":
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]
    if kind == "bzip2":
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if kind == "xz" else file


def _old_tar(plain: IO[bytes]) -> bool:
    """Whether it's a tarball without the magic that newer ones have."""
    try:
        plain.seek(0)
        return CarefulTarFile(fileobj=plain, mode="r").next() is not None
    except tarfile.TarError:
        return False


def _rewound(plain: IO[bytes]) -> IO[bytes]:
    plain.seek(0)
    return plain


def _members(archive: tarfile.TarFile) -> list[Entry]:
    entries: list[Entry] = []
    last = -1
    while (member := archive.next()) is not None:
        # A forged size could lead tarfile back to where it was, for ever.
        if member.offset <= last or member.size < 0 or member.size > MAX_UNPACKED_BYTES:
            raise UnsafeError(f"an entry lies about its size: {member.name!a}")
        last = member.offset
        if len(entries) > MAX_ENTRIES:
            break
        member.pax_headers = {}  # Each entry has a copy of what holds for all.
        entries.append(
            Entry(
                member.name,
                slashed(member.name),
                _tar_kind(member),
                member.size if member.isreg() else 0,
                partial(_content, archive, member),
                member.linkname,
            )
        )
    return [entry for entry in entries if entry.name not in ("", ".")]


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    if content is None:
        raise tarfile.ReadError(f"{member.name!a} has no content")
    return content


def _tar_kind(member: tarfile.TarInfo) -> Kind:
    kinds: dict[bytes, Kind] = {
        tarfile.REGTYPE: "file",
        tarfile.AREGTYPE: "file",
        tarfile.CONTTYPE: "file",
        tarfile.DIRTYPE: "folder",
        tarfile.SYMTYPE: "link",
        tarfile.LNKTYPE: "hard link",
        tarfile.FIFOTYPE: "FIFO",
        tarfile.CHRTYPE: "device node",
        tarfile.BLKTYPE: "device node",
    }
    return kinds.get(member.type, "unknown")

"""Archives and folders of the made-up class that no grader can take: unsafe ones, and ones that can't be read."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Files = Mapping[str, bytes]
"""Name (`/` between parts) → content."""

MTIME = 1_767_225_600
"""2026-01-01 00:00 UTC: every file of the class has this time."""
ZIP_TIME = (2026, 1, 1, 0, 0, 0)


def files_below(folder: Path) -> Files:
    """What lies below a folder, without compiled Python."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def zipped(files: Files, *, mode: int = stat.S_IFREG | 0o644) -> bytes:
    """A zip with fixed times; `mode` is that of every entry."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            info = zipfile.ZipInfo(name, ZIP_TIME)
            info.create_system, info.external_attr, info.compress_type = 3, mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, raw)
    return buffer.getvalue()


def tarred(files: Files, extra: Sequence[tarfile.TarInfo] = ()) -> bytes:
    """A tarball with fixed times, the files before the entries in `extra`, which have no content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(raw), MTIME
            archive.addfile(info, io.BytesIO(raw))
        for info in extra:
            info.mtime = MTIME
            archive.addfile(info)
    return buffer.getvalue()


def _entry(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


Spoiler = Callable[[Path, str, Files], None]


def _zip_with(name: str, raw: bytes) -> Spoiler:
    def write(root: Path, student: str, files: Files) -> None:
        (root / f"{student}.zip").write_bytes(zipped({**files, name: raw}))

    return write


def _tar_with(*extra: tuple[str, bytes, str]) -> Spoiler:
    def write(root: Path, student: str, files: Files) -> None:
        (root / f"{student}.tar").write_bytes(tarred(files, [_entry(*item) for item in extra]))

    return write


def _nested(root: Path, student: str, files: Files) -> None:
    raw = zipped(files)
    for depth in range(6):
        raw = zipped({f"{depth}.zip": raw})
    (root / f"{student}.zip").write_bytes(raw)


def _nul_in_a_name(root: Path, student: str, files: Files) -> None:
    (root / f"{student}.zip").write_bytes(zipped({**files, "evilX.py": b""}).replace(b"evilX", b"evil\0"))


UNSAFE: dict[str, Spoiler] = {
    "zip-slip": _zip_with("../../outside.py", b"x = 1\n"),
    "absolute name": _zip_with("/tmp/outside.py", b"x = 1\n"),
    "bomb": _zip_with("zeros.bin", bytes(48 << 20)),
    "nested": _nested,
    "NUL in a name": _nul_in_a_name,
    "link out": _tar_with(("passwd.py", tarfile.SYMTYPE, "/etc/passwd")),
    "hard link": _tar_with(("shadow.py", tarfile.LNKTYPE, "/etc/shadow")),
    "device node": _tar_with(("null.py", tarfile.CHRTYPE, "")),
    "FIFO": _tar_with(("pipe.py", tarfile.FIFOTYPE, "")),
}
"""What intake must refuse whole."""


def _truncated(root: Path, student: str, files: Files) -> None:
    raw = zipped(files)
    (root / f"{student}.zip").write_bytes(raw[: len(raw) // 2])


def _encrypted(root: Path, student: str, files: Files) -> None:
    raw = bytearray(zipped(files))
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    (root / f"{student}.zip").write_bytes(bytes(raw))


def _file(suffix: str, raw: bytes) -> Spoiler:
    def write(root: Path, student: str, files: Files) -> None:
        (root / f"{student}{suffix}").write_bytes(raw)

    return write


def _empty_folder(root: Path, student: str, files: Files) -> None:
    (root / student).mkdir()


def _bare_repository(root: Path, student: str, files: Files) -> None:
    for name in ("HEAD", "config", "objects/ab/cd", "refs/heads/main"):
        path = root / student / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"ref: refs/heads/main\n")


def _other_files(root: Path, student: str, files: Files) -> None:
    folder = root / student / "essay"
    folder.mkdir(parents=True)
    (folder / "essay.txt").write_bytes(b"My dog ate it.\n")


def _link(root: Path, student: str, files: Files) -> None:
    (root / student).symlink_to("/etc")


def _fifo(root: Path, student: str, files: Files) -> None:
    folder = root / student / "lab02_online_softmax"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "online_softmax.py")


UNREADABLE: dict[str, Spoiler] = {
    "truncated zip": _truncated,
    "encrypted zip": _encrypted,
    "empty file": _file(".zip", b""),
    "web page": _file(".zip", b"<!DOCTYPE html><title>Sign in</title>"),
    "7z": _file(".7z", b"7z\xbc\xaf\x27\x1c" + bytes(26)),
    "empty folder": _empty_folder,
    "bare repository": _bare_repository,
    "other files": _other_files,
    "link": _link,
    "FIFO alone": _fifo,
}
"""What intake must name precisely: there's nothing in it to grade."""

"""Puts right what Windows and its editors do to text: UTF-16, byte order marks, CRLF."""

from __future__ import annotations

import codecs
from pathlib import PurePosixPath

TEXT_SUFFIXES = frozenset(
    {".py", ".csv", ".toml", ".cu", ".c", ".h", ".md", ".txt", ".ipynb", ".json", ".diff", ".patch"}
)

_UTF16 = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def mend_text(name: str, raw: bytes) -> tuple[bytes, str]:
    """(the file as UTF-8 with plain line ends, what was done to it or ""); a file that isn't text stays as it is."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in TEXT_SUFFIXES:
        return raw, ""
    done = []
    for mark, encoding in _UTF16:
        if raw.startswith(mark):
            try:
                raw = raw[len(mark) :].decode(encoding).encode()
            except UnicodeDecodeError:
                return raw, f"{name} begins like UTF-16 but isn't; it was left as it is"
            done.append("turned from UTF-16 into UTF-8")
    if raw.startswith(codecs.BOM_UTF8):
        raw = raw[len(codecs.BOM_UTF8) :]
        done.append("freed of its byte order mark")
    if b"\r" in raw:
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if suffix != ".csv":  # whose lines end so by RFC 4180, and where Python's csv wrote them
            done.append("given plain line ends (they were CRLF)")
    return raw, f"{name} was {' and '.join(done)}" if done else ""

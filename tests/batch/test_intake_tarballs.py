"""Tarballs whose headers are made to hold up whoever parses them; honest long names and attributes go through."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from intake_tools import MAIN, files_of, only, put

NAME = "lab02_online_softmax/online_softmax.py"


def block(kind: bytes, raw: bytes, name: str = "x") -> bytes:
    """One header and its content, as they lie in a tarball."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(raw), kind
    return info.tobuf(tarfile.USTAR_FORMAT) + raw + bytes(-len(raw) % tarfile.BLOCKSIZE)


GOOD = block(tarfile.REGTYPE, MAIN, NAME) + bytes(2 * tarfile.BLOCKSIZE)


def record(text: bytes) -> bytes:
    """`text` (key=value) with the length of the whole in front."""
    length = next(length for length in range(10**6) if length == len(text) + len(str(length)) + 2)
    return b"%d %s\n" % (length, text)


MANY = b"".join(record(b"%06x=1" % number) for number in range(1200))

FORGED = {
    "digits": (block(tarfile.XHDTYPE, b"1" * 60_000), "attributes are forged"),
    "digits-in-a-value": (block(tarfile.XHDTYPE, b"60008 c=" + b"1" * 59_999 + b"\n"), "attributes are forged"),
    "records-in-records": (block(tarfile.XHDTYPE, b"2 " * 30_000 + b"="), "attributes are forged"),
    "length-of-0": (block(tarfile.XHDTYPE, b"0 a=b\n"), "attributes are forged"),
    "length-past-the-end": (block(tarfile.XHDTYPE, b"99 a=b\n"), "attributes are forged"),
    "no-value": (block(tarfile.XHDTYPE, b"7 abcd\n"), "attributes are forged"),
    "long-attributes": (block(tarfile.XHDTYPE, bytes(100_000)), "what describes an entry is too long"),
    "long-name": (block(tarfile.GNUTYPE_LONGNAME, b"a" * 100_000), "what describes an entry is too long"),
    "attributes-for-all": (block(tarfile.XGLTYPE, MANY) * 2, "attributes are given for all entries"),
    "sparse-1.0": (block(tarfile.XHDTYPE, record(b"GNU.sparse.major=1")), "an entry is a sparse file"),
    "sparse-old": (block(tarfile.GNUTYPE_SPARSE, b"", "hole.bin"), "an entry is a sparse file: hole.bin"),
}


@pytest.mark.parametrize("case", FORGED)
def test_find_submissions_of_a_forged_header_refuses_it_at_once(root: Path, case: str) -> None:
    head, message = FORGED[case]
    put(root, "ada.tar", head + GOOD)
    item = only(root)
    assert item.folder is None
    assert message in item.refused.lower()


def test_find_submissions_of_many_long_headers_refuses_them(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grader.batch.intake.tarballs.MAX_HEADERS_BYTES", 1000)
    put(root, "ada.tar", block(tarfile.XHDTYPE, record(b"comment=hello")) * 80 + GOOD)
    assert "what describes an entry is too long" in only(root).refused.lower()


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_find_submissions_of_long_names_and_attributes_takes_them(root: Path, format: int) -> None:
    long = f"{'d' * 90}/{'é' * 60}/{NAME}"
    buffer = io.BytesIO()
    common = {"comment": "e83c5163316f89bfbde7d9ab23ca2e25604af290"}
    with tarfile.open(fileobj=buffer, mode="w", format=format, pax_headers=common) as archive:
        info = tarfile.TarInfo(long)
        info.size, info.mtime = len(MAIN), 1_700_000_000.123456789  # type: ignore[assignment]
        info.pax_headers = {"SCHILY.xattr.user.origin": "https://example.org/\n=7"}
        archive.addfile(info, io.BytesIO(MAIN))
    put(root, "ada.tar", buffer.getvalue())
    item = only(root)
    assert (item.refused, files_of(item)) == ("", {"online_softmax.py": MAIN})

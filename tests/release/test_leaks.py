"""The search for hidden tests and solutions finds them wherever they hide."""

from __future__ import annotations

import gzip
import io
import lzma
import marshal
import zipfile
from pathlib import Path

import pytest

from grader.canary import mark_of
from grader.course import Course
from grader.release.leaks import LeakFinder

COURSE = Course.find(Path(__file__))
HIDDEN = "assignments/lab02_online_softmax/test_hidden.py"
SOLUTION = "solutions/lab02_online_softmax/reference/online_softmax.py"


@pytest.fixture(scope="module")
def finder() -> LeakFinder:
    return LeakFinder(COURSE)


def sources(finder: LeakFinder, raw: bytes) -> set[str]:
    return {leak.source for leak in finder.scan("file", raw)}


def read(name: str) -> bytes:
    return (COURSE.root / name).read_bytes()


def zipped(raw: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside.bin", raw)
    return buffer.getvalue()


@pytest.mark.parametrize("name", [HIDDEN, SOLUTION, "solutions/lab02_online_softmax/reference/tolerance.png"])
@pytest.mark.parametrize(
    "pack", [bytes, zipped, gzip.compress, lzma.compress, lambda raw: zipped(gzip.compress(zipped(raw)))]
)
def test_scan_of_a_copy_finds_it_however_it_is_packed(finder: LeakFinder, name: str, pack: object) -> None:
    assert callable(pack)
    assert name in sources(finder, pack(read(name)))


def test_scan_of_one_line_in_other_text_finds_it(finder: LeakFinder) -> None:
    line = b"    row_sum = weights.sum(axis=axis, keepdims=True)"
    assert line in read(SOLUTION)
    assert sources(finder, b"# notes\n" + line + b"\r\nmore\n") == {SOLUTION}


def test_scan_of_compiled_code_finds_its_texts(finder: LeakFinder) -> None:
    code = compile(read(HIDDEN), "elsewhere.py", "exec")
    assert HIDDEN in sources(finder, b"\xa7\r\r\n" + bytes(12) + marshal.dumps(code))


def test_scan_of_a_table_finds_its_rows(finder: LeakFinder) -> None:
    name = "solutions/lab02_online_softmax/reference/tolerance.csv"
    row = read(name).splitlines()[3]
    assert name in sources(finder, b"x\n" + row + b"\n")


def test_scan_of_a_mark_alone_names_its_file(finder: LeakFinder) -> None:
    assert sources(finder, b"\0\0" + mark_of(HIDDEN).encode() + b"\0") == {HIDDEN}


def test_scan_of_what_students_get_finds_nothing(finder: LeakFinder) -> None:
    for lab_id in COURSE.lab_ids():
        for path in COURSE.starter_dir(lab_id).rglob("*.py"):
            if path.name in COURSE.lab(lab_id).files.edit:
                assert not list(finder.scan(path.name, path.read_bytes()))


def test_scan_of_what_only_begins_like_an_archive_goes_on(finder: LeakFinder) -> None:
    assert sources(finder, b"PK\x03\x04 no archive\n" + mark_of(SOLUTION).encode()) == {SOLUTION}
    assert sources(finder, b"\x1f\x8b no gzip\n") == set()

"""Submissions written where a test wants them, and what intake makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from grader.batch.intake import Found, find_submissions
from grader.course import Course

COURSE = Course.find(Path(__file__))
LAB02 = COURSE.lab("lab02")
LAB06 = COURSE.lab("lab06")
MAIN = b"def softmax(x, axis=-1):\n    return x\n"


def put(root: Path, name: str, raw: bytes = MAIN) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def found(root: Path, *labs: str) -> list[Found]:
    work = root.parent / "work"
    shutil.rmtree(work, ignore_errors=True)
    return list(find_submissions(root, COURSE, [COURSE.lab(name) for name in labs or ("lab02",)], work))


def only(root: Path, *labs: str) -> Found:
    items = found(root, *labs)
    assert len(items) == 1, items
    return items[0]


def files_of(item: Found) -> dict[str, bytes]:
    assert item.folder is not None, item.refused
    return {path.relative_to(item.folder).as_posix(): path.read_bytes() for path in item.folder.rglob("*.*")}

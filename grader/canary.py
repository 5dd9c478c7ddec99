"""Marks in the files that students must not get, so that a copy of one is recognised wherever it turns up.

A mark is a word that stands nowhere else, made from the file's path: a comment in source code, a metadata key in a
notebook, a text chunk in a picture, the remark in a gzip file's head. CSV and JSON have no place for a remark: there a
file's own lines serve. Run ``python -m grader.canary`` (or ``make starters``) to mark files that are new.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from grader.course import Course
from grader.errors import CourseError, GraderError

PREFIX = "kept-from-students-"
MARK = re.compile(rb"kept-from-students-[0-9a-f]{16}")
MARKED_LINE = re.compile(r"^[ \t]*(?:#|//|<!--)\s*kept-from-students-[0-9a-f]{16}(?:\s*-->)?\s*$")
NOTEBOOK_KEY = "canary"
PUBLIC_NAMES = frozenset({"README.md", "lab.toml", "hints.toml", "test_public.py"})
"""What a lab's folder under `assignments/` may hand out; everything else there stays."""

_COMMENTS = {
    ".py": "# {}",
    ".toml": "# {}",
    ".c": "// {}",
    ".h": "// {}",
    ".cu": "// {}",
    ".cuh": "// {}",
    ".cpp": "// {}",
    ".md": "<!-- {} -->",
    ".diff": "# {}",
    ".sh": "# {}",
}
_GZIP_START = b"\x1f\x8b\x08"
_GZIP_REMARK = 0x10
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"


def mark_of(name: str) -> str:
    """The mark of the file called `name`, relative to the course."""
    return PREFIX + hashlib.sha256(name.encode()).hexdigest()[:16]


def kept_files(course: Course) -> Iterator[str]:
    """Names, relative to the course, of every file that students must not get: hidden tests and solutions.

    Files that a lab provides lie in its reference too; they are handed out, so they aren't among them.
    """
    for lab_id in course.lab_ids():
        folder = course.assignment_dir(lab_id)
        yield from _names(course, folder, frozenset(folder / name for name in PUBLIC_NAMES))
        reference = course.solution_dir(lab_id) / "reference"
        provided = frozenset(reference / name for name in course.lab(lab_id).files.provided)
        yield from _names(course, course.solution_dir(lab_id), provided)


def _names(course: Course, folder: Path, but: frozenset[Path]) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in but and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path.relative_to(course.root).as_posix()


def takes_mark(name: str) -> bool:
    """Whether a file of this name has a place for a mark; a table of numbers, or a report, hasn't."""
    return PurePosixPath(name).suffix not in (".csv", ".json")


def planted(name: str, raw: bytes) -> bytes:
    """The file's content with its mark, once; a stale mark (of the file that it was copied from) gives way.

    Raises:
        CourseError: no way is known to mark a file of this kind.
    """
    suffix, mark = PurePosixPath(name).suffix, mark_of(name)
    if suffix in _COMMENTS:
        text = unmarked(raw.decode())
        # Behind an indented block the formatter wants two blank lines.
        gap = "\n\n" if suffix == ".py" and text.rstrip("\n").rpartition("\n")[2][:1].isspace() else ""
        ending = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{ending}{gap}{_COMMENTS[suffix].format(mark)}\n".encode()
    if suffix == ".ipynb":
        notebook = json.loads(raw)
        notebook["metadata"][NOTEBOOK_KEY] = mark
        return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()
    if suffix == ".gz" and raw[:3] == _GZIP_START:
        # RFC 1952: after ten bytes, what the flags announce; here a remark alone, which ends with a zero.
        rest = raw[10:] if not raw[3] else raw[10:].partition(b"\0")[2] if raw[3] == _GZIP_REMARK else None
        if rest is not None:
            return raw[:3] + bytes([_GZIP_REMARK]) + raw[4:10] + mark.encode() + b"\0" + rest
    if suffix == ".png" and raw.endswith(_PNG_END):
        body = b"tEXtComment\0" + mark.encode()
        old = re.compile(rb"\0\0\0.tEXtComment\0" + MARK.pattern + rb".{4}", re.DOTALL)
        chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
        return old.sub(b"", raw)[: -len(_PNG_END)] + chunk + _PNG_END
    raise CourseError(
        f"{name}: no way is known to mark a {suffix or 'nameless'} file.", hint="Teach it to grader/canary.py."
    )


def unmarked(text: str) -> str:
    """Source code without the lines that hold nothing but a mark, and the blank ones before a mark at the end."""
    lines = text.splitlines(keepends=True)
    at_the_end = bool(lines) and MARKED_LINE.match(lines[-1]) is not None
    kept = "".join(line for line in lines if not MARKED_LINE.match(line))
    return f"{kept.rstrip(chr(10))}\n" if at_the_end and kept.strip("\n") else kept


def unplanted(course: Course) -> list[str]:
    """Names of the files whose own mark isn't in them."""
    return [
        name
        for name in kept_files(course)
        if takes_mark(name) and MARK.findall((course.root / name).read_bytes()) != [mark_of(name).encode()]
    ]


def plant(course: Course) -> list[str]:
    """Mark every file that must be and isn't; their names.

    Raises:
        CourseError: a file is of a kind that no way is known to mark.
    """
    names = unplanted(course)
    for name in names:
        path = course.root / name
        path.write_bytes(planted(name, path.read_bytes()))
    return names


def main() -> int:
    names = plant(Course.find())
    print("\n".join(names) or "every file that students must not get is marked")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GraderError as failure:
        print(failure, file=sys.stderr)
        sys.exit(failure.exit_code)

"""What students get: the grader, and of every lab the handout, the hints, the public tests and the starter."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from grader import __version__
from grader.canary import PUBLIC_NAMES
from grader.course import Course
from grader.errors import CourseError, UsageError
from grader.files import TEMPORARY_PREFIX, replace_bytes
from grader.machine import unwritable
from grader.provenance import PACKAGE_DIR
from grader.release.leaks import Leak, LeakFinder
from grader.release.redact import course_keys, lab_keys, profile_keys, redact
from grader.starter import build_starter

BUNDLE_NAME = "flash-attention-course"
MANIFEST = "RELEASE.json"
STUDENT_README = PACKAGE_DIR / "release" / "student_readme.md"
FILE_MODE = 0o644
SHARED_LINES = 20
"""Telling lines that a file may have in common with one hidden test or solution."""
ZIP_TIME = (2026, 1, 1, 0, 0, 0)
MTIME = 1_767_225_600
"""2026-01-01 00:00 UTC, of every file: the same course gives the same bytes on any day."""

_ROOT_FILES = ("LICENSE", "constraints.txt", "pyproject.toml")
_JUNK_SUFFIXES = (".pyc", ".pyo", ".orig", ".rej", ".swp", "~")


def bundle_files(course: Course, lab_ids: Sequence[str]) -> dict[str, bytes]:
    """Name → content of every file of the bundle, sorted by name.

    Raises:
        UsageError: this copy of the course has no solutions, so it's no instructor's.
        CourseError: a file is missing or wrong, or lies where it isn't known whether students may have it.
    """
    for lab_id in lab_ids:
        if not (course.solution_dir(lab_id) / "reference").is_dir():
            raise UsageError(
                f"{course.root}: {lab_id} has no reference solution here.", hint="Release from the instructor's copy."
            )
    files = {name: _read(course.root / name) for name in _ROOT_FILES}
    files.update(_grader(files["pyproject.toml"]))
    files["README.md"] = _readme(course, lab_ids)
    files["assignments/course.toml"] = _course_toml(course)
    for lab_id in lab_ids:
        files.update(_assignment(course, lab_id))
        files.update({f"starter/{lab_id}/{name}": raw for name, raw in build_starter(course, lab_id).items()})
    keep = profile_keys([course.lab(lab_id) for lab_id in lab_ids])
    for path in sorted((course.root / "hardware_profiles").glob("*.toml")):
        name = path.relative_to(course.root).as_posix()
        files[name] = redact(_read(path).decode(), keep, name).encode() if _has_thresholds(path) else _read(path)
    files = dict(sorted(files.items()))
    files[MANIFEST] = _manifest(course, lab_ids, files)
    return files


def find_leaks(course: Course, files: Mapping[str, bytes]) -> list[Leak]:
    """Everything in the bundle that students must not get."""
    finder = LeakFinder(course)
    to_edit = {f"starter/{lab_id}/{name}" for lab_id in course.lab_ids() for name in course.lab(lab_id).files.edit}
    leaks = []
    for name, raw in files.items():
        found = list(finder.scan(name, raw))
        lines = Counter(leak.source for leak in found if not leak.marked)
        # Public tests and the judge share a helper's lines with hidden tests; a starter shares nothing.
        allowed = 0 if name in to_edit else SHARED_LINES
        leaks += [leak for leak in found if leak.marked or lines[leak.source] > allowed]
        if name.endswith(_JUNK_SUFFIXES) or "__pycache__" in name:
            leaks.append(Leak(name, name, "compiled code or an editor's copy"))
    return leaks


def write_bundle(files: Mapping[str, bytes], dist: Path) -> tuple[Path, Path]:
    """Write the folder and the zip of the bundle below `dist`, in place of an earlier release.

    Returns:
        Their paths.

    Raises:
        UsageError: something else lies there, or it can't be written.
    """
    folder, packed = dist / BUNDLE_NAME, dist / f"{BUNDLE_NAME}.zip"
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is there and is no earlier release.", hint="Name another folder, or move it away.")
    try:
        dist.mkdir(parents=True, exist_ok=True)
        # An earlier release stays until the new one is whole.
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=dist) as fresh:
            _write_folder(files, Path(fresh) / BUNDLE_NAME)
            replace_bytes(packed, zip_bytes(files))
            if folder.exists():
                shutil.rmtree(folder)
            os.rename(Path(fresh) / BUNDLE_NAME, folder)
    except OSError as error:
        raise unwritable(str(dist), error, hint="Name another folder.") from error
    return folder, packed


def _write_folder(files: Mapping[str, bytes], folder: Path) -> None:
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        path.chmod(FILE_MODE)
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            path.chmod(0o755)
        os.utime(path, (MTIME, MTIME))


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """The bundle as a zip: fixed order, times and modes; stored, since what deflate makes depends on its version."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, raw in files.items():
            info = zipfile.ZipInfo(f"{BUNDLE_NAME}/{name}", ZIP_TIME)
            info.create_system, info.external_attr = 3, (0o100000 | FILE_MODE) << 16
            archive.writestr(info, raw)
    return buffer.getvalue()


def _grader(pyproject: bytes) -> Iterator[tuple[str, bytes]]:
    """The package: its modules, and the data files that `pip install` would take.

    Raises:
        CourseError: another file lies in it, of which nobody said that it's handed out.
    """
    patterns = tomllib.loads(pyproject.decode())["tool"]["setuptools"]["package-data"]["grader"]
    for path in sorted(PACKAGE_DIR.rglob("*")):
        inside = path.relative_to(PACKAGE_DIR)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inside.parts)
        if path.is_dir() or hidden or path.name.endswith(_JUNK_SUFFIXES):
            continue
        if path.suffix != ".py" and not any(fnmatch(inside.as_posix(), pattern) for pattern in patterns):
            raise CourseError(
                f"{path}: not known whether students may have it.",
                hint="Name it under package-data in pyproject.toml, or keep it elsewhere.",
            )
        yield f"grader/{inside.as_posix()}", _read(path)


def _course_toml(course: Course) -> bytes:
    """The course's settings; who has an extension, and why, stays with the instructor."""
    raw = _read(course.root / "assignments" / "course.toml")
    if not course.settings.grading.extensions:
        return raw
    return redact(raw.decode(), course_keys, "assignments/course.toml").encode()


def _assignment(course: Course, lab_id: str) -> Iterator[tuple[str, bytes]]:
    folder = course.assignment_dir(lab_id)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(course.root).as_posix()
        if path.is_dir() or "__pycache__" in path.parts or path.name.startswith("test_hidden"):
            continue
        if path.relative_to(folder).as_posix() not in PUBLIC_NAMES:
            raise CourseError(
                f"{name}: not known whether students may have it.",
                hint=f"A lab's folder hands out {', '.join(sorted(PUBLIC_NAMES))}; call what stays `test_hidden*`.",
            )
        raw = _read(path)
        yield (
            name,
            redact(raw.decode(), lab_keys(course.lab(lab_id)), name).encode() if path.name == "lab.toml" else raw,
        )


def _readme(course: Course, lab_ids: Sequence[str]) -> bytes:
    labs = [course.lab(lab_id) for lab_id in lab_ids]
    rows = "\n".join(f"| `{lab.short_id}` | {lab.title} |" for lab in labs)
    text = _read(STUDENT_README).decode()
    return (
        text.replace("{title}", course.settings.title)
        .replace("{labs}", rows)
        .replace("{first}", labs[0].short_id)
        .encode()
    )


def _manifest(course: Course, lab_ids: Sequence[str], files: Mapping[str, bytes]) -> bytes:
    told = {
        "format_version": 1,
        "course": course.settings.title,
        "labs": list(lab_ids),
        "grader": __version__,
        "files": {name: hashlib.sha256(raw).hexdigest() for name, raw in files.items()},
    }
    return (json.dumps(told, indent=2, sort_keys=True) + "\n").encode()


def _has_thresholds(path: Path) -> bool:
    return b"[thresholds" in _read(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CourseError(f"{path}: cannot be read ({error.strerror}).", hint="Restore the file.") from error

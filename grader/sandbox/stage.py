"""Copies a submission to a place of the grader's own: regular files only, bounded, with the course's files laid over.

A submission is hostile material. Links aren't followed, FIFOs and devices aren't opened, and what is left out is said
in a note.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from grader.course import Lab
from grader.errors import CourseError, UsageError
from grader.sandbox import rundir

MAX_FILE_BYTES = 16 << 20
MAX_TOTAL_BYTES = 64 << 20
MAX_FILES = 500
MAX_ENTRIES = 20_000
MAX_DEPTH = 8
MAX_NOTES = 20
MAX_NAME_BYTES = 200
CHUNK_BYTES = 1 << 20

HIJACKING_FILES = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py", "pytest.ini"})
COMPILED_SUFFIXES = (".pth", ".pyc", ".pyo")
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})
LIBRARIES = frozenset({"numpy", "torch", "triton", "ml_dtypes", "pytest", "_pytest", "grader", "grader_worker"})


@dataclass
class Staged:
    """A copied submission; a context manager that removes the copy.

    Attributes:
        path: the copy, a folder of mode 0755 with files of mode 0644.
        source: the folder that the person named.
        files: relative path (``/`` between parts) → SHA-256, of every file in the copy, sorted.
        sha256: of all names and contents; equal copies have equal hashes.
        notes: what was left out and why, for the scorecard.
    """

    path: Path
    source: Path
    files: dict[str, str] = field(default_factory=dict)
    sha256: str = ""
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Remove the copy; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Staged:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Notes:
    """Collects notes; a hostile folder can't make the report endless."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._more = 0

    def add(self, name: str, why: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(f"{shown(name)} was left out: {why}")
        else:
            self._more += 1

    def all(self) -> tuple[str, ...]:
        more = (f"{self._more} more files were left out",) if self._more else ()
        return (*self._notes, *more)


def shown(name: str) -> str:
    """A file's name, harmless to print: as it is when plain, else its `repr`, shortened."""
    short = name if len(name) <= MAX_NAME_BYTES else f"{name[:MAX_NAME_BYTES]}…"
    return short if _is_plain(name) else ascii(short)


def _is_plain(name: str) -> bool:
    return name.isprintable() and not any(0xD800 <= ord(char) < 0xE000 for char in name)


def _refusal(name: str, kept: frozenset[str]) -> str:
    """Why a file of this relative name isn't taken, empty when it is."""
    base = name.rpartition("/")[2]
    if not _is_plain(name) or "\\" in name or len(os.fsencode(base)) > MAX_NAME_BYTES:
        return "its name has control characters, backslashes or invalid UTF-8, or is too long"
    if name in kept:
        return ""
    if base in HIJACKING_FILES or base.endswith(COMPILED_SUFFIXES):
        return "a file of this name could change how Python or pytest starts"
    # Only what an import from the submission's folder would find first can shadow something.
    module = name.partition("/")[0].partition(".")[0]
    is_module = "/" in name or base.endswith((".py", ".so"))
    if is_module and (module in LIBRARIES or module in sys.stdlib_module_names):
        return f"it would shadow the module `{module}`; rename it"
    return ""


def _entries(
    folder_fd: int, prefix: str, depth: int, notes: _Notes, budget: Iterator[int]
) -> Iterator[tuple[int, str, str]]:
    """(descriptor of the folder, base name, relative name) of everything that isn't a folder, sorted.

    Args:
        budget: one item is taken for each entry, folders included; the walk ends with it.
    """
    with os.scandir(folder_fd) as scan:
        names = sorted(entry.name for entry, _ in zip(scan, budget, strict=False))
    for base in names:
        name = f"{prefix}{base}"
        try:
            mode = os.stat(base, dir_fd=folder_fd, follow_symlinks=False).st_mode
        except OSError as error:
            notes.add(name, f"it can't be looked at ({error.strerror})")
            continue
        if not stat.S_ISDIR(mode):
            yield folder_fd, base, name
            continue
        if base.startswith(".") or base in SKIPPED_FOLDERS:
            continue
        if depth >= MAX_DEPTH:
            notes.add(f"{name}/", f"it lies more than {MAX_DEPTH} folders deep")
            continue
        try:
            inner = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder_fd)
        except OSError as error:
            notes.add(f"{name}/", f"it can't be opened ({error.strerror})")
            continue
        try:
            yield from _entries(inner, f"{name}/", depth + 1, notes, budget)
        finally:
            os.close(inner)


def _open_regular(folder_fd: int, base: str) -> tuple[int, int]:
    """(descriptor, size) of a regular file.

    Raises:
        ValueError: it's something else (told by the message). OSError: it can't be opened.
    """
    mode = os.stat(base, dir_fd=folder_fd, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise ValueError("it's a symbolic link; put the file itself there")
    if not stat.S_ISREG(mode):
        raise ValueError("it's no regular file")
    # The entry may have been exchanged since: O_NONBLOCK so that a FIFO doesn't stop us, then a look at what we hold.
    fd = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ValueError("it's no regular file")
    return fd, status.st_size


def _copy(fd: int, target: Path, limit: int) -> int:
    """Copy at most `limit` bytes; the number copied.

    Raises:
        ValueError: there is more; nothing is left at `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    copied = 0
    with open(target, "wb") as file:
        while chunk := os.read(fd, CHUNK_BYTES):
            copied += len(chunk)
            if copied > limit:
                break
            file.write(chunk)
    if copied > limit:
        target.unlink()
        raise ValueError(f"it's larger than {limit >> 20} MiB")
    return copied


def _copy_tree(source_fd: int, target: Path, kept: frozenset[str], notes: _Notes) -> None:
    """Copy what is taken. Files that the lab asks for come first, so that no heap of others uses up the limits."""
    total = count = 0

    def take(folder_fd: int, base: str, name: str) -> None:
        nonlocal total, count
        refusal = _refusal(name, kept)
        if not refusal and count >= MAX_FILES:
            refusal = f"there are more than {MAX_FILES} files"
        if refusal:
            notes.add(name, refusal)
            return
        try:
            fd, size = _open_regular(folder_fd, base)
        except OSError as error:
            notes.add(name, f"it can't be read ({error.strerror})")
            return
        except ValueError as error:
            notes.add(name, str(error))
            return
        try:
            if size > MAX_FILE_BYTES:
                raise ValueError(f"it's larger than {MAX_FILE_BYTES >> 20} MiB")
            if total + size > MAX_TOTAL_BYTES:
                raise ValueError(f"all files together are larger than {MAX_TOTAL_BYTES >> 20} MiB")
            total += _copy(fd, target / name, min(MAX_FILE_BYTES, MAX_TOTAL_BYTES - total))
            count += 1
        except ValueError as error:
            notes.add(name, str(error))
        except OSError as error:
            notes.add(name, f"it can't be copied ({error.strerror})")
        finally:
            os.close(fd)

    for wanted_first in (True, False):
        budget = iter(range(MAX_ENTRIES))
        for folder_fd, base, name in _entries(source_fd, "", 1, notes if wanted_first else _Notes(), budget):
            hidden = any(part.startswith(".") for part in name.split("/"))
            if (name in kept) == wanted_first and (name in kept or not hidden):
                take(folder_fd, base, name)
    if next(budget, None) is None:
        notes.add("the rest", f"the folder holds more than {MAX_ENTRIES} entries")


def _overlay(target: Path, lab: Lab, provided_from: Path) -> None:
    """Lay pristine copies of the course's files over the student's.

    Raises:
        CourseError: one is missing from the course.
    """
    for name in lab.files.provided:
        source = provided_from / name
        place = target / name
        if not source.is_file():
            raise CourseError(f"{lab.id}: the provided file {source} is missing.", hint="Restore the course's folder.")
        for above in reversed(place.relative_to(target).parents):
            # A student's file where the course has a folder gives way.
            if (target / above).is_file():
                (target / above).unlink()
        if place.is_dir():
            shutil.rmtree(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)


def _hash(target: Path) -> tuple[dict[str, str], str]:
    files: dict[str, str] = {}
    paths = (path for path in target.rglob("*") if path.is_file())
    for path in sorted(paths, key=lambda item: item.relative_to(target).as_posix()):
        files[path.relative_to(target).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for name, digest in files.items():
        whole.update(f"{name}\0{digest}\n".encode())
    return files, whole.hexdigest()


def _open_folder(submission: Path) -> int:
    """Descriptor of the submission's folder.

    Raises:
        UsageError: it isn't there, isn't a folder or can't be read.
    """
    try:
        return os.open(submission, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError as error:
        raise UsageError(
            f"No submission at {shown(str(submission))}.",
            hint="Name its folder with --submission.",
        ) from error
    except NotADirectoryError as error:
        raise UsageError(
            f"{shown(str(submission))} is a file, expected the folder with the lab's files.",
            hint=f"Try --submission {shown(str(submission.parent))}.",
        ) from error
    except OSError as error:
        raise UsageError(
            f"The submission {shown(str(submission))} can't be read ({error.strerror}).", hint="Check its permissions."
        ) from error


def stage(submission: Path, lab: Lab, provided_from: Path) -> Staged:
    """Copy the folder `submission` to where a worker may see it.

    Args:
        provided_from: the lab's folder with pristine provided files (`starter/<lab>`).

    Raises:
        UsageError: the folder isn't there or can't be read.
        CourseError: a provided file is missing from the course.
    """
    source_fd = _open_folder(submission)
    notes = _Notes()
    staged = Staged(rundir.new_stage_dir(), submission)
    try:
        kept = frozenset((*lab.files.edit, *lab.files.artifacts, *lab.files.provided))
        _copy_tree(source_fd, staged.path, kept, notes)
        _overlay(staged.path, lab, provided_from)
        for path in [staged.path, *staged.path.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        staged.files, staged.sha256 = _hash(staged.path)
        staged.notes = notes.all()
    except BaseException:
        staged.close()
        raise
    finally:
        os.close(source_fd)
    return staged

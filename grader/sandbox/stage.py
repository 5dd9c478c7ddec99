"""Copies a submission to a place of the grader's own: regular files only, bounded, with the course's files laid over.

A submission is hostile material. Links aren't followed, FIFOs and devices aren't opened, and what is left out or put
right is said in a note.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from grader.course import Lab
from grader.errors import CourseError, UsageError
from grader.machine import blame_the_machine
from grader.sandbox import rundir
from grader.sandbox.text import mend_text
from grader.sandbox.tree import MAX_NAME_BYTES, Notes, copy_bounded, entries, is_plain, open_regular, shown

MAX_FILE_BYTES = 16 << 20
MAX_TOTAL_BYTES = 64 << 20
MAX_FILES = 500
MAX_ENTRIES = 20_000

HIJACKING_FILES = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py", "pytest.ini"})
COMPILED_SUFFIXES = (".pth", ".pyc", ".pyo")
LIBRARIES = frozenset({"numpy", "torch", "triton", "ml_dtypes", "pytest", "_pytest", "grader", "grader_worker"})


@dataclass
class Staged:
    """A copied submission; a context manager that removes the copy.

    Attributes:
        path: the copy, a folder of mode 0755 with files of mode 0644.
        source: the folder that the person named.
        files: relative path (``/`` between parts) → SHA-256, of every file in the copy, sorted.
        sha256: of all names and contents; equal copies have equal hashes.
        notes: what was put right and what was left out and why, for the scorecard.
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


def _refusal(name: str, kept: frozenset[str]) -> str:
    """Why a file of this relative name isn't taken, empty when it is."""
    base = name.rpartition("/")[2]
    if not is_plain(name) or "\\" in name or len(os.fsencode(base)) > MAX_NAME_BYTES:
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


def _copy_tree(source_fd: int, target: Path, kept: frozenset[str], notes: Notes) -> None:
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
            fd, size = open_regular(folder_fd, base)
        except OSError as error:
            blame_the_machine(error)
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
            total += copy_bounded(fd, target / name, min(MAX_FILE_BYTES, MAX_TOTAL_BYTES - total))
            count += 1
        except ValueError as error:
            notes.add(name, str(error))
        except OSError as error:
            blame_the_machine(error, target / name)
            notes.add(name, f"it can't be copied ({error.strerror})")
        finally:
            os.close(fd)

    for wanted_first in (True, False):
        budget = iter(range(MAX_ENTRIES))
        for folder_fd, base, name in entries(source_fd, "", 1, notes if wanted_first else Notes(), budget):
            hidden = any(part.startswith(".") for part in name.split("/"))
            if (name in kept) == wanted_first and (name in kept or not hidden):
                take(folder_fd, base, name)
    if next(budget, None) is None:
        notes.add("the rest", f"the folder holds more than {MAX_ENTRIES} entries")


def _mend(target: Path, wanted: Iterable[str]) -> list[str]:
    """Put the text of the files to hand in right, as a batch does; what was done, a sentence a file."""
    done = []
    for name in wanted:
        path = target / name
        if path.is_file():
            raw = path.read_bytes()
            mended, note = mend_text(name, raw)
            if mended is not raw:
                path.write_bytes(mended)
            done.extend([note] if note else [])
    return done


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
        blame_the_machine(error, submission)
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
        InfrastructureError: the machine ran out of something, e.g. of space for the copy.
    """
    source_fd = _open_folder(submission)
    notes = Notes()
    staged = Staged(rundir.new_stage_dir(), submission)
    try:
        kept = frozenset((*lab.files.edit, *lab.files.artifacts, *lab.files.provided))
        _copy_tree(source_fd, staged.path, kept, notes)
        mended = _mend(staged.path, (*lab.files.edit, *lab.files.artifacts))
        _overlay(staged.path, lab, provided_from)
        for path in [staged.path, *staged.path.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        staged.files, staged.sha256 = _hash(staged.path)
        staged.notes = (*mended, *notes.all())
    except BaseException:
        staged.close()
        raise
    finally:
        os.close(source_fd)
    return staged

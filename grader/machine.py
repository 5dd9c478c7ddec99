"""What an error of the operating system says about this machine: a full disk is nobody's mistake at the keyboard."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from grader.errors import GraderError, InfrastructureError, UsageError

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A judge's and an interpreter's products are so small that threads cost more than they bring, most of all where
several run side by side; and one thread adds in one order on every machine."""
_SPACE = "Free some space there, or use another disk."
_RESOURCES = {
    errno.ENOSPC: ("No space is left on the disk", _SPACE),
    errno.EDQUOT: ("The disk quota is used up", _SPACE),
    errno.EROFS: ("The file system is read-only", "Make it writable, or use a folder elsewhere."),
    errno.EFBIG: ("A file reached the largest size allowed", "Raise the limit (`ulimit -f unlimited`)."),
    errno.EIO: ("The disk reports an input/output error", "Use another disk; `dmesg` says more."),
}
_EVERYWHERE = {
    errno.EMFILE: ("This process has as many files open as it may", "Raise the limit: `ulimit -n 4096`."),
    errno.ENFILE: ("This machine has as many files open as it may", "End other programs, then try again."),
    errno.ENOMEM: ("This machine's memory ran out", "End other programs, or grade fewer submissions at a time."),
}
"""Kinds for which it doesn't matter what was to be opened."""
_REFUSALS = dict.fromkeys(
    (errno.EACCES, errno.EPERM), ("Permission is denied", "Check who may write there, or use another folder.")
)
_NO_TEMPORARY_FOLDER = "No usable temporary directory"
"""What `tempfile` says when each place that it knows is full, read-only or missing."""


class MachineError(InfrastructureError):
    """This machine ran out of something, refuses access or is set up wrongly; it tells of no submission or test."""


def out_of_resources(error: OSError, place: Path | str = "") -> MachineError | None:
    """The error in words for a person, where the machine ran out of something; None where it's about one file.

    Args:
        place: what was to be read or written; else the error's own file, else what is known of the temporary folder.
    """
    if _NO_TEMPORARY_FOLDER in str(error):
        return MachineError(
            f"No temporary folder can be written ({_temporary_folder()} is full, read-only or missing).",
            hint="Free some space there, or set TMPDIR to a folder with some.",
        )
    return _told(error, place, _RESOURCES)


def of_this_machine(error: OSError, place: Path | str = "") -> MachineError | None:
    """As `out_of_resources`; also where the system refuses access."""
    return out_of_resources(error, place) or _told(error, place, _REFUSALS)


def unwritable(named: str, error: OSError, *, hint: str) -> GraderError:
    """Why what the person named can't be written: the machine's fault, or a place that can't be.

    Args:
        named: the option and the path, as they were given.
        hint: what to do where another place would help.
    """
    return out_of_resources(error, named) or UsageError(f"{named}: cannot be written ({error.strerror}).", hint=hint)


def blame_the_machine(error: OSError, place: Path | str = "") -> None:
    """Raise what is no submission's fault; return for what may be.

    Raises:
        MachineError: the disk is full, read-only or broken, or descriptors ran out.
    """
    fault = out_of_resources(error, place)
    if fault is not None:
        raise fault from error


def _told(error: OSError, place: Path | str, kinds: dict[int, tuple[str, str]]) -> MachineError | None:
    number = error.errno or 0
    if number in _EVERYWHERE:
        what, hint = _EVERYWHERE[number]
        return MachineError(f"{what}.", hint=hint)
    if number not in kinds:
        return None
    what, hint = kinds[number]
    where = str(place) or _own_place(error)
    return MachineError(f"{what}: {where}.", hint=hint)


def _own_place(error: OSError) -> str:
    # Of a copy that failed the second name is the copy's.
    for name in (error.filename2, error.filename):
        if isinstance(name, (str, bytes, os.PathLike)):
            return os.fsdecode(name)
    return f"the place that is written to, or the temporary folder {_temporary_folder()} (TMPDIR)"


def _temporary_folder() -> str:
    # Not `tempfile.gettempdir()`: that one writes to find out, and fails where this function is needed.
    return os.environ.get("TMPDIR") or "/tmp"

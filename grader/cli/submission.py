"""Finds the folder to grade."""

from __future__ import annotations

from pathlib import Path

from grader.course import WORKING_FOLDER, Course, Lab
from grader.errors import UsageError


def find_submission(course: Course, lab: Lab, asked: Path | None) -> Path:
    """The folder named by --submission, else the lab's folder here, else the working folder's, else the starter's.

    A folder named one level too high (it holds ``lab06_fa2_forward/`` in place of the files) is stepped into.

    Raises:
        UsageError: there is no such folder; names every place looked at.
    """
    if asked is not None:
        try:
            return _named(lab, asked)
        except OSError as error:
            # A name too long, a folder above that may not be entered.
            raise UsageError(f"--submission {asked}: cannot be read ({error.strerror}).") from error
    here = Path.cwd()
    places = [
        *(folder for folder in (here, here / lab.id) if folder.name == lab.id and _holds(folder, lab)),
        *(folder / lab.id for folder in (here, *here.parents) if folder.name == WORKING_FOLDER),
        here / WORKING_FOLDER / lab.id,
        course.root / WORKING_FOLDER / lab.id,
        course.starter_dir(lab.id),
    ]
    for place in places:
        if place.is_dir():
            return place
    looked = ", ".join(dict.fromkeys(str(place) for place in places))
    raise UsageError(
        f"No submission of {lab.short_id} found; looked at {looked}.", hint="Name it with --submission DIR."
    )


def _holds(folder: Path, lab: Lab) -> bool:
    return any((folder / name).is_file() for name in lab.files.edit)


def _named(lab: Lab, folder: Path) -> Path:
    if not folder.exists():
        raise UsageError(f"--submission {folder}: there is no such folder.", hint=_nearby(folder))
    if not folder.is_dir():
        packed = folder.suffix in (".zip", ".gz", ".tgz", ".tar")
        step = "Unpack it and name the folder." if packed else f"Name its folder: --submission {folder.parent}"
        raise UsageError(f"--submission {folder}: that is a file.", hint=step)
    if _holds(folder, lab):
        return folder
    for inner in (lab.id, lab.short_id):
        if _holds(folder / inner, lab):
            return folder / inner
    return folder


def _nearby(folder: Path) -> str:
    import difflib

    if not folder.parent.is_dir():
        return "Check the path."
    try:
        names = sorted(path.name for path in folder.parent.iterdir() if path.is_dir())
    except OSError:
        return "Check the path."
    close = difflib.get_close_matches(folder.name, names, n=1, cutoff=0.5)
    return f"Did you mean {folder.parent / close[0]}?" if close else "Check the path."


def shown(path: Path) -> str:
    """`path` relative to the working folder where it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)

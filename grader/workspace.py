"""Lays out the folder that a student works in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grader.course import Course
from grader.errors import CourseError, UsageError
from grader.files import removed_unless_whole
from grader.machine import unwritable


@dataclass(frozen=True)
class LaidOut:
    """What happened to one lab's folder.

    Attributes:
        made: names of the files that were written.
        kept: names of those that were there already, and were left alone.
    """

    lab_id: str
    made: tuple[str, ...]
    kept: tuple[str, ...]


def lay_out(course: Course, target: Path) -> list[LaidOut]:
    """Copy every lab's starter below `target`; what is there already stays as it is, whatever it is.

    Raises:
        UsageError: `target` is no folder, or can't be written.
        CourseError: a starter is missing from the course.
    """
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file, expected a folder to work in.", hint="Name another one: grade init DIR.")
    if target.resolve() == (course.root / "starter").resolve():
        raise UsageError(f"{target} holds the starters themselves.", hint="Name another folder to work in.")
    return [_lay_out_lab(course, lab_id, target / lab_id) for lab_id in course.lab_ids()]


def _lay_out_lab(course: Course, lab_id: str, folder: Path) -> LaidOut:
    files = course.lab(lab_id).files
    made, kept = [], []
    for name in (*files.edit, *files.provided):
        source, place = course.starter_dir(lab_id) / name, folder / name
        if os.path.lexists(place):
            kept.append(name)
            continue
        try:
            raw = source.read_bytes()
        except OSError as error:
            raise CourseError(f"{source}: cannot be read ({error.strerror}).", hint="Restore the starter.") from error
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            # "x": should the file have come since, it's the student's.
            with open(place, "xb") as file, removed_unless_whole(place):
                file.write(raw)
                file.flush()
        except FileExistsError:
            kept.append(name)
        except OSError as error:
            raise unwritable(str(place), error, hint="Name another folder: grade init DIR.") from error
        else:
            made.append(name)
    return LaidOut(lab_id, tuple(made), tuple(kept))

"""What `grade capstone new` writes: the lab's starter, and what belongs to one option.

The README, plot.py and what is provided come from `starter/lab10_capstone`, the rest from `options/` beside this file:
``<option>.toml`` (the manifest), ``<option>.md`` (what the option asks, for the head of the README) and the files under
``<option>/``, whose names end in ``.txt`` there. patch.diff is made of the file that the option adds.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
from pathlib import Path

from grader.course import Course
from grader.errors import CourseError, UsageError
from grader.machine import unwritable

LAB = "lab10_capstone"
OPTIONS = {
    "A": "a hand-fused mask in Triton, against SDPA with a bias",
    "B": "a decode step with rotary in the kernel and one more small optimisation",
    "C": "a numerics audit: the error of each row against float64, and where the tolerance breaks",
    "D": "a Triton port of one FlashAttention-2 path, beside upstream",
    "E": "a patch of upstream, with its correctness and its benchmark",
}
FOLDER = "capstone"
HERE = Path(__file__).parent / "options"
HEADING = "# Capstone"
ADVICE = "`grade capstone new` with `--option A` to `--option E` lays out a folder that fits one option."
"""Lines of the starter's README that give way to the option's."""
README, PATCH, MANIFEST = "README.md", "patch.diff", "capstone.toml"


def files_of(course: Course, option: str) -> dict[str, str]:
    """Relative name → text of everything that a new capstone holds.

    Args:
        option: a key of `OPTIONS`.

    Raises:
        CourseError: a file of the course is missing.
    """
    files = course.lab(LAB).files
    starter = {name: _read(course.starter_dir(LAB) / name) for name in (*files.edit, *files.provided)}
    found = starter | {MANIFEST: _read(HERE / f"{option}.toml")}
    guide = _read(HERE / f"{option}.md").strip()
    heading = f"# Option {option}: {OPTIONS[option]}"
    found[README] = starter[README].replace(HEADING, heading, 1).replace(ADVICE, f"<!--\n{guide}\n-->", 1)
    added = {}
    for path in sorted((HERE / option).rglob("*.txt")):
        name = path.relative_to(HERE / option).as_posix().removesuffix(".txt")
        found[name] = _read(path)
        if f'"{name}"' in found[MANIFEST].partition("[path]")[0]:
            added[name] = found[name]
    if added:
        found[PATCH] = "".join(addition(name, text) for name, text in added.items())
    return found


def addition(name: str, text: str) -> str:
    """A patch that adds one file."""
    return "".join(difflib.unified_diff([], io.StringIO(text, newline="\n").readlines(), "/dev/null", f"b/{name}"))


def lay_out(course: Course, option: str, folder: Path) -> list[str]:
    """Write a new capstone; the names of its files.

    Raises:
        UsageError: the folder is there and not empty, or can't be written: nothing is ever overwritten.
        CourseError: a file of the course is missing. InfrastructureError: the disk is full.
    """
    files = files_of(course, option)
    try:
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder} is there already and isn't an empty folder; nothing was written.",
                hint="Name another one: grade capstone new --option A DIR.",
            )
        _write(files, folder)
    except OSError as error:
        raise unwritable(str(folder), error, hint="Name another folder.") from error
    return sorted(files)


def _write(files: dict[str, str], folder: Path) -> None:
    """Fill a folder that isn't there yet or is empty; where that fails no file of it is left: it can be tried again."""
    made: list[Path] = []
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except OSError:
        # Only what was made here: should a file have come since, it's the student's.
        for path in made:
            path.unlink(missing_ok=True)
        for emptied in sorted({folder, *(path.parent for path in made)}, key=lambda place: -len(place.parts)):
            with contextlib.suppress(OSError):
                emptied.rmdir()
        raise


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CourseError(f"{path}: cannot be read ({error.strerror}).", hint="Restore the file.") from error

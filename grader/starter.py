"""Makes `starter/` from the reference solution by taking out what lies between markers.

A marked region reads, at the indentation of the code around it and behind any comment prefix::

    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: rescale acc when the row maximum grows")
    acc = acc * alpha[:, None]
    # END SOLUTION

The starter gets the STARTER lines, uncommented, in place of the region. A region at the left margin may do without:
private helpers vanish whole. Run ``python -m grader.starter [LAB ...]`` to
write the starters anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from grader.canary import NOTEBOOK_KEY, unmarked
from grader.course import Course
from grader.errors import CourseError, GraderError

_PREFIX = r"^(?P<indent>[ \t]*)(?:#+|//+|--|;+|%+|<!--|/\*)\s*"
_SUFFIX = r"\s*(?:-->|\*/)?\s*$"
_BEGIN = re.compile(_PREFIX + "BEGIN SOLUTION" + _SUFFIX)
_END = re.compile(_PREFIX + "END SOLUTION" + _SUFFIX)
_STARTER = re.compile(_PREFIX + r"STARTER:(?: (?P<code>.*?))?" + _SUFFIX)
_GAP = re.compile(r"\n{4,}")
_END_GAP = re.compile(r"\n{2,}\Z")


def strip(text: str, name: str = "the file") -> str:
    """`text` with every marked region replaced by its STARTER lines, and without the mark that says it's a solution.

    Raises:
        CourseError: a marker has no partner, regions are nested, or an indented region has no STARTER line at its
            head; names the line.
    """
    kept: list[str] = []
    opened = 0
    starter_lines = 0
    in_head = False
    for number, line in enumerate(unmarked(text).splitlines(keepends=True), start=1):
        if _BEGIN.match(line):
            if opened:
                raise _misplaced(name, number, f"BEGIN SOLUTION inside the region that line {opened} opened")
            opened, starter_lines, in_head = number, 0, True
        elif _END.match(line):
            if not opened:
                raise _misplaced(name, number, "END SOLUTION without a BEGIN SOLUTION")
            if not starter_lines and line[0].isspace():
                raise _misplaced(name, opened, "the region has no `STARTER:` line, so the student would see a gap")
            opened = 0
        elif not opened:
            kept.append(line)
        elif starter := _STARTER.match(line):
            if not in_head:
                raise _misplaced(name, number, "a STARTER line below the solution; they stand at the region's head")
            starter_lines += 1
            code = starter["code"] or ""
            kept.append((starter["indent"] + code).rstrip() + ("\n" if line.endswith("\n") else ""))
        else:
            in_head = False
    if opened:
        raise _misplaced(name, opened, "BEGIN SOLUTION without an END SOLUTION")
    # A region that leaves nothing behind stood between two gaps of two lines; a formatter allows one of them, and none
    # at the end of the file.
    return _END_GAP.sub("\n", _GAP.sub("\n\n\n", "".join(kept)))


def has_region(text: str) -> bool:
    return any(_BEGIN.match(line) for line in text.splitlines())


def _misplaced(name: str, line: int, why: str) -> CourseError:
    return CourseError(f"{name}:{line}: {why}.")


def strip_notebook(text: str, name: str = "the notebook") -> str:
    """A Jupyter notebook with its cells' regions stripped, and without outputs and execution counts."""
    notebook = json.loads(text)
    notebook["metadata"].pop(NOTEBOOK_KEY, None)
    for place, cell in enumerate(notebook["cells"], start=1):
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        cell["source"] = strip(source, f"{name}, cell {place}").splitlines(keepends=True)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def build_starter(course: Course, lab_id: str) -> dict[str, bytes]:
    """Relative path → content of every file in a lab's starter: the files to edit, stripped, and the provided ones.

    Provided files come from the reference, or from `starter/` where the reference has none.

    Raises:
        CourseError: a file is missing, its markers are wrong, or no file to edit has a region.
    """
    files = course.lab(lab_id).files
    reference = course.solution_dir(lab_id) / "reference"
    starter: dict[str, bytes] = {}
    regions = 0
    for name in files.edit:
        path = reference / name
        if not path.is_file():
            raise CourseError(f"{path}: missing, but lab.toml lists it under files.edit.")
        text = path.read_text(encoding="utf-8")
        shown = path.relative_to(course.root).as_posix()
        if path.suffix == ".ipynb":
            stripped = strip_notebook(text, shown)
            regions += "BEGIN SOLUTION" in text
        else:
            stripped = strip(text, shown)
            regions += has_region(text)
        starter[name] = stripped.encode()
    if not regions:
        raise CourseError(f"{reference}: no file to edit has a marked region, so the starter would be the solution.")
    for name in files.provided:
        sources = [folder / name for folder in (reference, course.starter_dir(lab_id)) if (folder / name).is_file()]
        if not sources:
            raise CourseError(f"{reference / name}: missing, but lab.toml lists it under files.provided.")
        starter[name] = sources[0].read_bytes()
    return starter


def write_starter(course: Course, lab_id: str) -> list[Path]:
    """Make `starter/<lab>/` what the reference says: write what changed, remove what no longer belongs.

    Returns:
        The paths that were written or removed.
    """
    folder = course.starter_dir(lab_id)
    wanted = build_starter(course, lab_id)
    changed = []
    for name, content in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            changed.append(path)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
            changed.append(path)
    return changed


def main(names: Iterable[str]) -> int:
    """Write the starters of the labs called `names`, of all that have a reference when none is named."""
    course = Course.find()
    lab_ids = [course.resolve(name) for name in names]
    if not lab_ids:
        lab_ids = [lab_id for lab_id in course.lab_ids() if (course.solution_dir(lab_id) / "reference").is_dir()]
    for lab_id in lab_ids:
        changed = write_starter(course, lab_id)
        print(f"{lab_id}: {len(changed)} files changed" if changed else f"{lab_id}: up to date")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GraderError as failure:
        print(failure, file=sys.stderr)
        sys.exit(failure.exit_code)

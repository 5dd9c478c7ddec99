"""Goes through a folder of submissions and lays each out for grading; a bad one becomes a row that says why."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grader.batch.intake.locate import locate
from grader.batch.intake.model import Found, RefusedError, Roster
from grader.batch.intake.names import is_junk
from grader.batch.intake.source import Tree, walk
from grader.batch.intake.take import take
from grader.course import Course, Lab
from grader.errors import UsageError
from grader.sandbox.tree import shown

MAX_NAMES_TOLD = 8


def find_submissions(
    root: Path, course: Course, labs: Sequence[Lab], work: Path, roster: Roster | None = None
) -> Iterator[Found]:
    """Every submission below `root`, in order of its name, one item a student and lab.

    Args:
        labs: the labs that are graded; files of others are passed over.
        work: a folder of the caller's; nothing is written outside it. Each `Found.folder` lies in it and may be removed
            once it's graded.

    Raises:
        UsageError: `root` isn't there or can't be read. InfrastructureError: `work` can't be written.
    """
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        raise UsageError(
            f"{shown(str(root))}: the folder of submissions can't be read ({error.strerror}).",
            hint="Name a folder that holds one folder or archive a student.",
        ) from error
    for number, name in enumerate(name for name in names if not is_junk(name) and not name.startswith(".")):
        base = Found(name, (name,), labs[0].id if len(labs) == 1 else None, shown(name), None, "")
        if roster is not None:
            base = _after_roster(base, name, roster)
        try:
            yield from _of_student(base, root / name, labs, work / f"{number:05d}")
        except RefusedError as refusal:
            digest = hashlib.sha256(os.fsencode(name)).hexdigest()
            yield replace(base, content_sha256=digest, refused=f"{shown(name)}: {refusal}.")


def _after_roster(base: Found, name: str, roster: Roster) -> Found:
    members = roster.members_of(name)
    student = roster.student_of(name) or (members[0] if members else name)
    return replace(base, student=student, members=members or (student,))


def _of_student(base: Found, path: Path, labs: Sequence[Lab], work: Path) -> Iterator[Found]:
    """One item for each lab of which something is there.

    Raises:
        RefusedError: nothing can be taken.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise RefusedError("it's a symbolic link, expected a folder or an archive")
    if not stat.S_ISDIR(mode):
        raise RefusedError("it's no folder, expected one a student")
    tree = walk(path)
    found_any = False
    for lab in labs:
        found = _of_lab(base, tree, lab, work / lab.id)
        if found is not None:
            found_any = True
            yield found
    if not found_any:
        raise RefusedError(_nothing_here(tree, labs))


def _of_lab(base: Found, tree: Tree, lab: Lab, target: Path) -> Found | None:
    located = locate(tree.files, lab)
    if located is None:
        return None
    sha256, notes = take(tree, located, lab, target)
    return replace(
        base, lab_id=lab.id, folder=target, content_sha256=sha256, notes=(*tree.notes, *located.notes, *notes)
    )


def _nothing_here(tree: Tree, labs: Sequence[Lab]) -> str:
    wanted = " or ".join(", ".join(lab.files.edit) for lab in labs[:3])
    if not tree.files:
        return f"it's empty, expected {wanted}"
    names = sorted(tree.files)
    listed = ", ".join(shown(name) for name in names[:MAX_NAMES_TOLD])
    more = f" and {len(names) - MAX_NAMES_TOLD} more" if len(names) > MAX_NAMES_TOLD else ""
    return f"no file of {', '.join(lab.short_id for lab in labs)} is in it: expected {wanted}, found {listed}{more}"

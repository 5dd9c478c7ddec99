"""Goes through a folder of submissions and lays each out for grading; a bad one becomes a row that says why."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from grader.batch.intake.locate import locate
from grader.batch.intake.model import Found, RefusedError, Roster
from grader.batch.intake.names import is_junk
from grader.batch.intake.nothing import nothing_here
from grader.batch.intake.source import Place, Tree, walk
from grader.batch.intake.take import take
from grader.batch.intake.unpack import Unpacker
from grader.course import Course, Lab
from grader.errors import GraderError, UsageError
from grader.sandbox.tree import shown


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
        yield from _or_refused(base, root / name, labs, work / f"{number:05d}")


def _or_refused(base: Found, path: Path, labs: Sequence[Lab], work: Path) -> Iterator[Found]:
    """What a student handed in, or one item that says why it can't be taken."""
    try:
        yield from _of_student(base, path, labs, work)
        return
    except GraderError:
        raise
    except RefusedError as refusal:
        why = str(refusal)
    except Exception as error:  # noqa: BLE001 - whatever a forged archive makes a library raise is that student's row
        why = f"it can't be unpacked ({type(error).__name__})"
    digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()
    yield replace(base, content_sha256=digest, refused=f"{shown(path.name)}: {why}.")


def _after_roster(base: Found, name: str, roster: Roster) -> Found:
    members = roster.members_of(name)
    student = roster.student_of(name) or (members[0] if members else name)
    return replace(base, student=student, members=members or (student,))


def _of_student(base: Found, path: Path, labs: Sequence[Lab], work: Path) -> Iterator[Found]:
    """One item for each lab of which something is there.

    Raises:
        RefusedError: nothing can be taken.
    """
    unpacker = Unpacker(work / "unpacked")
    try:
        tree = _tree(path, unpacker)
        found_any = False
        for lab in labs:
            found = _of_lab(base, tree, lab, work / lab.id, unpacker.unread)
            if found is not None:
                found_any = True
                yield found
        if not found_any:
            raise RefusedError("; ".join(unpacker.unread) or nothing_here(tree, labs, path))
    finally:
        shutil.rmtree(unpacker.scratch, ignore_errors=True)


def _tree(path: Path, unpacker: Unpacker) -> Tree:
    """The files of a student's folder or archive, those of the archives in it included.

    Raises:
        RefusedError: it's neither, or it's unsafe or unreadable.
    """
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        tree = walk(path)
    elif stat.S_ISREG(mode):
        tree = unpacker.unpack(Place(path.parent, path.name), shown(path.name))
    elif stat.S_ISLNK(mode):
        raise RefusedError("it's a symbolic link, expected a folder or an archive")
    else:
        raise RefusedError("it's neither a folder nor a file")
    unpacker.expand(tree)
    return tree


def _of_lab(base: Found, tree: Tree, lab: Lab, target: Path, unread: Sequence[str]) -> Found | None:
    located = locate(tree.files, lab)
    if located is None:
        return None
    sha256, notes = take(tree, located, lab, target)
    notes = [*tree.notes, *(f"{why}; it was left out" for why in unread), *located.notes, *notes]
    return replace(base, lab_id=lab.id, folder=target, content_sha256=sha256, notes=tuple(notes))

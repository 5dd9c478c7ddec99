"""Goes through a folder of submissions and lays each out for grading; a bad one becomes a row that says why."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from grader.batch.intake.archives import MAX_PACKED_BYTES, archive_suffix, starts_like_an_archive
from grader.batch.intake.folder import check_submissions
from grader.batch.intake.layouts import Package, packages
from grader.batch.intake.locate import locate
from grader.batch.intake.model import Found, RefusedError
from grader.batch.intake.nothing import nothing_here
from grader.batch.intake.source import Place, Tree, opened, walk
from grader.batch.intake.take import take
from grader.batch.intake.unpack import Unpacker
from grader.classroom.records import printable_id
from grader.classroom.roster import Roster, Student
from grader.course import Course, Lab
from grader.errors import GraderError, UsageError
from grader.machine import blame_the_machine
from grader.sandbox.tree import shown

MAX_NOTES = 40


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
    check_submissions(root)
    try:
        root = root.resolve(strict=True)
        found = list(packages(root, [lab.number for lab in labs]))
    except OSError as error:
        raise UsageError(
            f"{shown(str(root))}: the folder of submissions can't be read ({error.strerror}).",
            hint="Name a folder that holds one folder or archive a student.",
        ) from error
    if found and {package.source for package in found} <= set(course.lab_ids()):
        raise UsageError(
            f"{shown(str(root))} holds the folders of labs, expected one folder or archive a student.",
            hint=f"Name the folder above: {shown(str(root.parent))}.",
        )
    for number, package in enumerate(found):
        students = tuple(dict.fromkeys(_students(package, roster)))
        lab_id = labs[0].id if len(labs) == 1 else None
        base = Found(
            students[0],
            students,
            lab_id,
            package.source,
            None,
            "",
            received_at=package.received_at,
            attempt=package.attempt,
            notes=package.notes,
        )
        yield from _or_refused(base, package, labs, work / f"{number:05d}")


def _students(package: Package, roster: Roster | None) -> Iterator[str]:
    """The ids of those who handed it in: the roster's where it knows them, a group's members for a group's name."""
    for person in package.people:
        known: Student | None = None
        group: tuple[str, ...] = ()
        if roster is not None:
            known = next((found for name in person.names if (found := roster.find(name, person.columns))), None)
            group = next((members for name in person.names if (members := roster.members_of(name))), ())
        if known is not None:
            yield known.student
        else:
            yield from group or (printable_id(person.otherwise),)


def _or_refused(base: Found, package: Package, labs: Sequence[Lab], work: Path) -> Iterator[Found]:
    """What a student handed in, or one item that says why it can't be taken."""
    try:
        if package.refused:
            raise RefusedError(package.refused)
        yield from _of_student(base, package, labs, work)
        return
    except GraderError:
        raise
    except RefusedError as refusal:
        why = str(refusal)
    except OSError as error:
        blame_the_machine(error, work)
        why = f"it can't be read ({error.strerror})"
    except Exception as error:  # noqa: BLE001 - whatever a forged archive makes a library raise is that student's row
        why = f"it can't be unpacked ({type(error).__name__})"
    why = f"{why[0].upper()}{why[1:]}."
    yield replace(base, content_sha256=_sha256(package, why), refused=why)


def _sha256(package: Package, why: str) -> str:
    """Of what was refused: the reason, and the bytes of its files, as many of them as would have been read."""
    digest = hashlib.sha256(f"{package.source}\0{why}\0".encode("utf-8", "surrogateescape"))
    for name, path in package.parts:
        digest.update(os.fsencode(name) + b"\0")
        with suppress(OSError, ValueError), opened(Place(path.parent, path.name)) as (fd, _):
            while (chunk := os.read(fd, 1 << 20)) and os.lseek(fd, 0, os.SEEK_CUR) <= MAX_PACKED_BYTES:
                digest.update(chunk)
    return digest.hexdigest()


def _of_student(base: Found, package: Package, labs: Sequence[Lab], work: Path) -> Iterator[Found]:
    """One item for each lab of which something is there.

    Raises:
        RefusedError: nothing can be taken.
    """
    unpacker = Unpacker(work / "unpacked")
    try:
        tree = _tree(package, unpacker)
        found_any = False
        for lab in labs:
            found = _of_lab(base, tree, lab, work / lab.id, unpacker.unread)
            if found is not None:
                found_any = True
                yield found
        if not found_any:
            raise RefusedError("; ".join(unpacker.unread) or nothing_here(tree, labs, package.parts[0][1]))
    finally:
        shutil.rmtree(unpacker.scratch, ignore_errors=True)


def _tree(package: Package, unpacker: Unpacker) -> Tree:
    """The files of a package, those of the archives in it included.

    Raises:
        RefusedError: it's no folder and no file, or it's unsafe or unreadable.
    """
    tree = Tree()
    for name, path in package.parts:
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            tree = walk(path)
        elif stat.S_ISLNK(mode):
            raise RefusedError("it's a symbolic link, expected a folder or an archive")
        elif not stat.S_ISREG(mode):
            raise RefusedError("it's neither a folder nor a file")
        elif len(package.parts) == 1 and (archive_suffix(name) or starts_like_an_archive(path)):
            tree = unpacker.unpack(Place(path.parent, path.name), shown(name))
        else:
            tree.files[name] = Place(path.parent, path.name)
    unpacker.expand(tree)
    return tree


def _of_lab(base: Found, tree: Tree, lab: Lab, target: Path, unread: Sequence[str]) -> Found | None:
    located = locate(tree.files, lab)
    if located is None:
        return None
    sha256, notes = take(tree, located, lab, target)
    notes = [*base.notes, *located.notes, *notes, *(f"{why}; it was left out" for why in unread), *tree.notes]
    if len(notes) > MAX_NOTES:
        notes[MAX_NOTES:] = [f"and {len(notes) - MAX_NOTES} more notes"]
    return replace(base, lab_id=lab.id, folder=target, content_sha256=sha256, notes=tuple(notes))

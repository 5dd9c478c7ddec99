"""Who handed in what, told by the layout of the folder: plain, Gradescope, Canvas or GitHub Classroom."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from grader.batch.intake.archives import archive_suffix, starts_like_an_archive
from grader.batch.intake.gradescope import METADATA_FILE, read_submissions
from grader.batch.intake.names import is_junk, lab_number
from grader.classroom.roster import IDS, Column
from grader.sandbox.tree import shown

SIDE_FILES = frozenset(
    {
        "roster.csv",
        "groups.csv",
        "course.toml",
        "overrides.toml",
        "rubric.toml",
        METADATA_FILE,
        "readme.md",
        "readme.txt",
    }
)
"""The instructor's own files, which may lie among the submissions."""

_GRADESCOPE_COLUMNS: tuple[Column, ...] = ("gradescope_id", "email", "student")
_CANVAS = re.compile(r"(?P<who>[^_]+)_(?P<late>LATE_)?(?P<user>\d+)_(?P<file>\d+)_(?P<name>.+)", re.DOTALL)
_SLUG = re.compile(r"(?i)lab[_-]?\d{1,2}(?:_[a-z0-9_]+)?-(?=.)")
_VERSION = re.compile(r"(?P<stem>.+)-(?P<version>\d{1,3})(?P<suffix>(?:\.tar)?\.\w+|)", re.DOTALL)


MIN_CLONES = 3
"""Two users may well share a first name; what three names share is the assignment's."""


@dataclass(frozen=True)
class Person:
    """Somebody who handed something in.

    Attributes:
        names: what an LMS or a folder calls them, the most telling first.
        otherwise: their id where no roster knows them.
        columns: of the roster, to look the names up in.
    """

    names: tuple[str, ...]
    otherwise: str
    columns: tuple[Column, ...] = IDS


@dataclass(frozen=True)
class Package:
    """What one student, or one group, handed in at one time.

    Attributes:
        people: who handed it in.
        source: as found, relative to the folder of submissions.
        parts: (name as the student had it, where it lies); a folder stands alone, with an empty name.
        refused: why none of it can be taken; empty when it may.
    """

    people: tuple[Person, ...]
    source: str
    parts: tuple[tuple[str, Path], ...]
    received_at: datetime | None = None
    attempt: int | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


def packages(root: Path, numbers: Sequence[int]) -> Iterator[Package]:
    """Every package below `root`, in order of its name.

    Args:
        numbers: of the labs that are graded; a GitHub Classroom clone of another lab is passed over.

    Raises:
        OSError: `root` can't be read. UsageError: Gradescope's metadata can't be.
    """
    names = sorted(name for name in os.listdir(root) if not is_junk(name) and not name.startswith("."))
    if METADATA_FILE in names:
        return _gradescope(root, names)
    names = [name for name in names if name.lower() not in SIDE_FILES]
    if any(_CANVAS.fullmatch(name) for name in names) and not any((root / name).is_dir() for name in names):
        return _canvas(root, names)
    return _plain(root, names, numbers)


def _plain(root: Path, names: Sequence[str], numbers: Sequence[int]) -> Iterator[Package]:
    students = _classroom_students(root, names)
    for name in names:
        path = root / name
        if name in students:
            student, number = students[name]
            if number in numbers:
                yield Package((Person((student, name), student),), shown(name), (("", path),))
        elif path.is_file() and not path.is_symlink():
            yield _lone_file(path)
        else:
            yield Package((Person((name,), name),), shown(name), (("", path),))


def _lone_file(path: Path) -> Package:
    suffix = archive_suffix(path.name)
    packed = bool(suffix) or starts_like_an_archive(path)
    student = path.name[: len(path.name) - len(suffix or path.suffix)] if packed else path.name
    why = "" if packed else "it lies directly among the submissions: put it into a folder named for its student"
    return Package((Person((student,), student or path.name),), shown(path.name), ((path.name, path),), refused=why)


def _classroom_students(root: Path, names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Folder → (GitHub user, number of the lab) of GitHub Classroom's clones, which are called `assignment-user`.

    Both may hold hyphens. The assignment is the lab's number or name, and, where three or more clones begin alike,
    what they share.
    """
    by_lab: dict[int, list[str]] = defaultdict(list)
    for name in names:
        number = lab_number(name)
        if number is not None and _SLUG.match(name) and (root / name / ".git").exists():
            by_lab[number].append(name)
    students = {}
    for number, clones in by_lab.items():
        shared = _shared_start(clones) if len(clones) >= MIN_CLONES else 0
        for clone in clones:
            slug = _SLUG.match(clone)
            start = max(shared, slug.end() if slug else 0)
            students[clone] = (clone[start:], number)
    return students


def _shared_start(names: Sequence[str]) -> int:
    """Length of the hyphened words that all names begin with."""
    shared = 0
    for words in zip(*(name.split("-")[:-1] for name in names), strict=False):
        if len(set(words)) > 1:
            break
        shared += len(words[0]) + 1
    return shared


def _canvas(root: Path, names: Sequence[str]) -> Iterator[Package]:
    """Flat files, `lastfirst_LATE_user_file_name-2.zip`: a student's files belong together."""
    by_user: dict[tuple[str, str], list[re.Match[str]]] = defaultdict(list)
    for name in names:
        match = _CANVAS.fullmatch(name)
        if match is None:
            yield _lone_file(root / name)
        else:
            by_user[match["who"], match["user"]].append(match)
    names_taken = [who for who, _ in by_user]
    for (who, user), matches in by_user.items():
        # Canvas writes names without spaces and signs: two students may share one.
        fallback = who if names_taken.count(who) == 1 else f"{who}_{user}"
        parts, notes, attempt = _versions(root, matches)
        if any(match["late"] for match in matches):
            notes.append("Canvas marked it as late")
        source = shown(matches[0].string if len(matches) == 1 else f"{who}_…_{user}_… ({len(matches)} files)")
        person = Person((user, who), fallback, ("canvas_id", "folder", "student"))
        yield Package((person,), source, tuple(parts), attempt=attempt, notes=tuple(notes))


def _versions(root: Path, matches: Sequence[re.Match[str]]) -> tuple[list[tuple[str, Path]], list[str], int | None]:
    """The newest of each file, notes on the others, and the attempt's number where Canvas's `-1` tells one."""
    newest: dict[str, tuple[int, re.Match[str]]] = {}
    notes = []
    for match in matches:
        version = _VERSION.fullmatch(match["name"])
        name = f"{version['stem']}{version['suffix']}" if version else match["name"]
        number = int(version["version"]) if version else 0
        if name in newest:
            older = min(number, newest[name][0])
            notes.append(f"version {older + 1} of {shown(name)} gave way to a newer one")
        if name not in newest or number > newest[name][0]:
            newest[name] = (number, match)
    parts = [(name, root / match.string) for name, (_, match) in newest.items()]
    attempt = 1 + max(number for number, _ in newest.values())
    return parts, notes, attempt if attempt > 1 else None


def _gradescope(root: Path, names: Sequence[str]) -> Iterator[Package]:
    """Folders `submission_N` with `submission_metadata.yml` beside them, which says who handed each in and when."""
    told = read_submissions(root / METADATA_FILE)
    for folder, submission in sorted(told.items()):
        there = folder in names
        people = tuple(Person(names, names[0], _GRADESCOPE_COLUMNS) for names in submission.submitters)
        yield Package(
            people or (Person((folder,), folder),),
            shown(folder),
            (("", root / folder),),
            received_at=submission.created_at,
            refused="" if there else f"{METADATA_FILE} names it, but its folder isn't in the export",
        )
    for name in names:
        if name not in told and name.lower() not in SIDE_FILES:
            note = f"{METADATA_FILE} doesn't name it, so who handed it in isn't known"
            yield Package((Person((name,), name),), shown(name), (("", root / name),), notes=(note,))

"""Compares the submissions of a class, lab by lab, with each other and with other folders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from grader.batch.intake import Found, find_submissions
from grader.classroom.roster import Roster
from grader.classroom.similarity.page import dumps, page
from grader.classroom.similarity.pairs import THRESHOLD, Similarity, compare
from grader.classroom.similarity.tokens import SUFFIXES
from grader.classroom.similarity.works import SKIPPED_FOLDERS, Work, read_work
from grader.course import Course, Lab
from grader.errors import UsageError
from grader.report.text import one_line

JSON_FILE, PAGE_FILE = "similarity.json", "similarity.html"


def compare_class(
    submissions: Sequence[Path],
    course: Course,
    labs: Sequence[Lab],
    work: Path,
    roster: Roster | None = None,
    against: Sequence[Path] = (),
    *,
    threshold: float = THRESHOLD,
) -> list[Similarity]:
    """What submissions share, one result a lab that somebody handed in.

    Args:
        submissions: folders of them; the same work of the same student found in two of them counts once.
        work: a folder for unpacked archives; the caller's to remove.
        against: folders of other code: solutions, an earlier term, anything.

    Raises:
        UsageError: a folder isn't there or can't be read.
    """
    by_lab: dict[str, list[Work]] = {lab.id: [] for lab in labs}
    seen: dict[tuple[str, str, str], Path] = {}
    for number, folder in enumerate(submissions):
        inside = work / str(number)
        inside.mkdir()
        for found in find_submissions(folder, course, labs, inside, roster):
            if found.folder is None or found.lab_id is None:
                continue
            # Two attempts with the same files in one folder are two, as the gradebook counts them.
            first = seen.setdefault((found.student, found.lab_id, found.content_sha256), folder)
            if first == folder:
                by_lab[found.lab_id].append(work_of(found, course.lab(found.lab_id)))
    others = [other for folder in against for other in works_below(folder)]
    return [compare_lab(course, lab, by_lab[lab.id], others, threshold=threshold) for lab in labs if by_lab[lab.id]]


def compare_lab(
    course: Course, lab: Lab, works: Sequence[Work], against: Sequence[Work] = (), *, threshold: float = THRESHOLD
) -> Similarity:
    """What the `works` of one lab share, the starter and the provided files left out."""
    starter = course.starter_dir(lab.id)
    given = [read_work(starter, "starter")] if starter.is_dir() else []
    return compare(lab.id, _numbered(works), given, against, threshold=threshold)


def work_of(found: Found, lab: Lab) -> Work:
    """One submission to be compared, the course's own files left out.

    Raises:
        ValueError: it was refused, so that there are no files.
    """
    if found.folder is None:
        raise ValueError(f"{found.source} was refused: {found.refused}")
    return read_work(found.folder, found.student, found.members, without=frozenset(lab.files.provided))


def _numbered(works: Iterable[Work]) -> list[Work]:
    """The same works with labels of their own: a second attempt says that it is one."""
    seen: dict[str, int] = {}
    numbered = []
    for work in works:
        seen[work.label] = seen.get(work.label, 0) + 1
        again = f"{work.label} (attempt {seen[work.label]})"
        numbered.append(work if seen[work.label] == 1 else replace(work, label=again))
    return numbered


def works_below(folder: Path) -> list[Work]:
    """Every folder at or below `folder` that holds code itself, as one work each: whoever's it is, in any layout.

    Raises:
        UsageError: there is no such folder, or no code in it.
    """
    if not folder.is_dir():
        raise UsageError(f"--against {folder}: there is no such folder.", hint="Check the path; unpack archives first.")
    holding = set()
    for path in folder.rglob("*"):
        below = path.relative_to(folder).parts[:-1]
        hidden = any(part.startswith(".") or part in SKIPPED_FOLDERS for part in below)
        if path.suffix in SUFFIXES and not hidden and not path.is_symlink() and path.is_file():
            holding.add(path.parent)
    if not holding:
        raise UsageError(f"--against {folder}: no file there can be compared ({', '.join(SUFFIXES)}).")
    # A folder inside one that counts already belongs to it.
    tops = [place for place in sorted(holding) if not any(above in holding for above in place.parents)]
    return [read_work(place, one_line(_label(folder, place))) for place in tops]


def _label(folder: Path, place: Path) -> str:
    inner = place.relative_to(folder).as_posix()
    name = folder.resolve().name
    return name if inner == "." else f"{name}/{inner}"


def files_of(found: Sequence[Similarity]) -> dict[str, str]:
    """Name → text of the files that a results folder keeps of a comparison."""
    return {JSON_FILE: dumps(found), PAGE_FILE: page(found)}

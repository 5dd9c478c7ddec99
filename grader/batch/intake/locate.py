"""Where in a student's files a lab's answer lies, and which file stands for which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from grader.batch.intake.names import lab_number, letters, meant, plain_form
from grader.course import WORKING_FOLDER, Lab
from grader.sandbox.tree import shown

MAX_COPIES_TOLD = 5
FILES_OF_ANY_FOLDER = frozenset({"README.md"})
"""Files to edit that many folders hold: alone, in a folder whose name says no lab, they tell nothing."""


@dataclass(frozen=True)
class Located:
    """A lab's answer.

    Attributes:
        folder: its folder, "" for the top.
        names: name in the lab's folder → name in the tree, for every file to take.
        notes: what was put right.
    """

    folder: str
    names: dict[str, str]
    notes: tuple[str, ...]


def locate(files: Collection[str], lab: Lab) -> Located | None:
    """The best place of `lab`'s answer among a student's files; None when none of its files is there.

    A folder counts by how many of the files to edit lie in it, then by a name that says the lab, then by being near
    the top. A folder whose name says another lab counts for that one only, and one whose name says none only by a
    file that isn't found in any folder.
    """
    known = set(files)
    near = {folder: held for folder, held in _near(known, lab).items() if _may_hold(folder, held, lab)}

    def rank(folder: str) -> tuple[int, int, bool, int, str]:
        exact = sum(_joined(folder, name) in known for name in lab.files.edit)
        return -len(near[folder]), -exact, _lab_told(folder) != lab.number, folder.count("/"), folder

    candidates = sorted(near, key=rank)
    if not candidates:
        return None
    folder, others = candidates[0], candidates[1:]
    prefix = _joined(folder, "")
    names, notes = _assign([name.removeprefix(prefix) for name in known if name.startswith(prefix)], lab)
    if folder and not _is_usual(folder, lab):
        notes.insert(0, f"the lab's files were found in {shown(folder)}/")
    for other in others[:MAX_COPIES_TOLD]:
        notes.append(f"a second copy in {shown(other) or 'the top folder'}/ was not graded")
    return Located(folder, {name: prefix + found for name, found in names.items()}, tuple(notes))


def _may_hold(folder: str, held: set[str], lab: Lab) -> bool:
    told = _lab_told(folder)
    return told == lab.number or (told is None and bool(held - FILES_OF_ANY_FOLDER))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _near(files: Collection[str], lab: Lab) -> dict[str, set[str]]:
    """Folder → the files to edit that something in it could be."""
    forms = [(wanted, plain_form(wanted), letters(wanted)) for wanted in lab.files.edit]
    found: dict[str, set[str]] = defaultdict(set)
    for name in files:
        parts, key = name.split("/"), letters(name)
        for wanted, form, own in forms:
            depth = wanted.count("/") + 1
            # Letters first: they cost less, and a heap of names may be made to cost much.
            if own in key and len(parts) >= depth and plain_form("/".join(parts[-depth:])) == form:
                found["/".join(parts[:-depth])].add(wanted)
    return found


def _lab_told(folder: str) -> int | None:
    """The number of the lab that the innermost telling part of a path names."""
    return next((number for part in reversed(folder.split("/")) if (number := lab_number(part)) is not None), None)


def _is_usual(folder: str, lab: Lab) -> bool:
    """Whether the folder is where a student is told to put it: the lab's own, or the one that `grade init` makes."""
    *above, base = folder.split("/")
    return lab_number(base) == lab.number and above in ([], [WORKING_FOLDER])


def _assign(here: Sequence[str], lab: Lab) -> tuple[dict[str, str], list[str]]:
    """Which file stands for which: every file under its own name, and mangled names put right."""
    wanted_files = (*lab.files.edit, *lab.files.artifacts)
    known = set(here)
    own = {name for name in (*wanted_files, *lab.files.provided) if name in known}
    renamed: dict[str, str] = {}
    notes: list[str] = []
    for wanted in (name for name in wanted_files if name not in known):
        options = [name for name in meant(wanted, known) if name not in own and name not in renamed.values()]
        if len(options) > 1:
            listed = ", ".join(shown(option) for option in options[:4])
            notes.append(f"{wanted} is missing, and {len(options)} files could be meant ({listed}): none was taken")
        elif options:
            renamed[wanted] = options[0]
            notes.append(f"{shown(options[0])} was taken for {wanted}")
    names = {name: name for name in sorted(known - set(renamed.values()))}
    return names | renamed, notes

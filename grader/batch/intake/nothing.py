"""Says what is there in place of a lab's files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from grader.batch.intake.source import Tree
from grader.course import Lab
from grader.sandbox.tree import shown

MAX_NAMES_TOLD = 8


def nothing_here(tree: Tree, labs: Sequence[Lab], path: Path) -> str:
    """Why no lab was found in `tree`: what was expected, what is there, and what to do where that can be told."""
    wanted = " or ".join(", ".join(lab.files.edit) for lab in labs[:3])
    names = sorted(tree.files)
    repository = _bare_repository(names)
    if repository is not None:
        where = f" ({shown(repository)}/)" if repository else ""
        return f"it's a bare git repository{where}, which holds no files as such: clone it and hand in the clone"
    if not names and (path / ".git").exists():
        return f"only the .git of a checkout is there, without its files: expected {wanted}"
    if not names and tree.notes:
        return f"nothing in it can be taken: {'; '.join(tree.notes[:MAX_NAMES_TOLD])}; expected {wanted}"
    if not names:
        return f"it's empty, expected {wanted}"
    listed = ", ".join(shown(name) for name in names[:MAX_NAMES_TOLD])
    more = f" and {len(names) - MAX_NAMES_TOLD} more" if len(names) > MAX_NAMES_TOLD else ""
    return f"no file of {', '.join(lab.short_id for lab in labs)} is in it: expected {wanted}, found {listed}{more}"


def _bare_repository(names: Sequence[str]) -> str | None:
    """The folder that looks like what `git clone --bare` makes, "" for the top; None for none."""
    with_objects = {name[: place - 1] if place else "" for name in names if (place := _place_of_objects(name)) >= 0}
    known = set(names)
    for folder in sorted(with_objects):
        prefix = f"{folder}/" if folder else ""
        if f"{prefix}HEAD" in known and f"{prefix}config" in known:
            return folder
    return None


def _place_of_objects(name: str) -> int:
    """Where in a path its folder `objects` begins; -1 without one."""
    return 0 if name.startswith("objects/") else name.find("/objects/") + 1 or -1

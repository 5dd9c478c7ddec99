"""Whether a folder can be a class's submissions at all, before its folders are taken for students."""

from __future__ import annotations

from pathlib import Path

from grader.batch.intake.archives import archive_suffix
from grader.errors import UsageError
from grader.sandbox.tree import shown

COURSE_FOLDERS = frozenset({"assignments", "starter", "solutions", "grader", "hardware_profiles", "tests"})

HINT = "Name the folder that holds one folder or archive a student."


def check_submissions(folder: Path) -> None:
    """Raise where `folder` is no class's.

    Raises:
        UsageError: it's no folder, or a course's own, a students' bundle, or a part of one; says what to name instead.
    """
    if not folder.is_dir():
        if archive_suffix(folder.name) and folder.is_file():
            raise UsageError(f"{shown(str(folder))}: an archive, expected a folder.", hint="Unpack it, then name that.")
        found = "it's no folder" if folder.exists() else "there is nothing of that name"
        raise UsageError(f"{shown(str(folder))}: the folder of submissions can't be read: {found}.", hint=HINT)
    inside = folder.resolve()
    for root in (inside, *inside.parents):
        if not (root / "assignments" / "course.toml").is_file():
            continue
        below = inside.relative_to(root).parts[:1]
        what = f"the `{below[0]}` of a course" if below else "the folder of a course, or of a students' bundle"
        if not below or below[0] in COURSE_FOLDERS:
            raise UsageError(
                f"{shown(str(folder))} is {what}: what lies there isn't a class's work.",
                hint=HINT,
            )

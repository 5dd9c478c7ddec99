"""Lays out the folder to work in and says what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path

from grader.cli.submission import shown
from grader.course import COURSE_ENVIRONMENT_VARIABLE, WORKING_FOLDER, Course
from grader.errors import ExitCode, UsageError
from grader.report.text import clean, count
from grader.workspace import lay_out


def lay_out_and_tell(folder: Path | None) -> int:
    """One line a lab, then the next step.

    Raises:
        UsageError: the folder can't be written. CourseError: a starter is missing.
    """
    course = Course.find()
    target = folder if folder is not None else Path(WORKING_FOLDER)
    labs = lay_out(course, target)
    for lab in labs:
        kept = f", {len(lab.kept)} there already and left as they are" if lab.kept else ""
        print(f"{lab.lab_id[:5]}  {clean(shown(target / lab.lab_id))}: {count(len(lab.made), 'file')} made{kept}")
    print(f"next: {_next_step(course, target, labs[0].lab_id[:5] if labs else 'lab02')}")
    return int(ExitCode.OK)


def _next_step(course: Course, target: Path, lab: str) -> str:
    """The command that grades the first lab from here, or from the new folder."""
    grade = f"grade {lab}"
    beside = target.resolve() in (Path.cwd().resolve() / WORKING_FOLDER, course.root / WORKING_FOLDER)
    if beside and target.resolve().is_relative_to(course.root):
        return grade
    known = f"export {COURSE_ENVIRONMENT_VARIABLE}={shlex.quote(str(course.root))} && "
    try:
        found = Course.find(target.resolve()).root == course.root
    except UsageError:
        found = False
    return f"{'' if found else known}cd {shlex.quote(shown(target))} && {grade}"

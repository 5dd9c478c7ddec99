"""Grades the submission in Gradescope's container: ``python -m grader.gradescope.autograder``.

What it prints is for the instructor; what a student reads is in `results.json` alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from grader.batch.intake.locate import locate
from grader.batch.intake.model import RefusedError
from grader.batch.intake.source import Tree, walk
from grader.batch.intake.take import take
from grader.course import Course, Lab
from grader.errors import ExitCode, GraderError, InfrastructureError
from grader.files import replace_text
from grader.gradescope.layout import SECRET, SETTINGS, Layout
from grader.gradescope.partial import PartialResults
from grader.judge.seeds import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from grader.machine import of_this_machine
from grader.report.exports.gradescope import Adjustment, gradescope, refused
from grader.report.text import clean
from grader.sandbox.levels import choose_isolation
from grader.session import GradeRequest, grade

_LAB = re.compile(r"(?i)lab[\s_-]*0*(\d{1,2})")
_LARGEST_METADATA = 8 << 20


def main() -> int:
    """Grade, write results.json, answer 0; 3 where nothing could be graded and no file may stand for a zero."""
    layout = Layout.from_environment()
    layout.results.unlink(missing_ok=True)
    try:
        _run(layout)
    except RefusedError as error:
        # The submission's doing: the student must read it, and nothing was earned.
        replace_text(layout.results, refused(f"Not graded: {error}.", 0.0), durable=True)
        print(f"not graded: {clean(str(error))}")
    except GraderError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(str(of_this_machine(error) or error))
    return int(ExitCode.OK)


def _failed(why: str) -> int:
    print(f"The grader failed, and the submission isn't to blame: {clean(why)}")
    return int(ExitCode.INFRASTRUCTURE)


def _run(layout: Layout) -> None:
    course = Course(layout.course)
    secret = layout.source / SECRET
    if secret.is_file() and SECRET_VARIABLE not in os.environ:
        os.environ[SECRET_FILE_VARIABLE] = str(secret)
    isolation = choose_isolation("auto", protect=[layout.source, layout.metadata, layout.results.parent])
    if isolation.level == "process":
        raise InfrastructureError(
            f"hidden tests need level `sealed` or `uid`: {isolation.reason}.", hint="Run the container as root."
        )
    tree = walk(layout.submission)
    lab = choose_lab(_labs(course, layout), tree, _assignment_title(layout))
    located = locate(tree.files, lab)
    notes = tuple(located.notes) if located is not None else ()
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        target = Path(folder) / lab.id
        if located is not None:
            notes += tuple(take(tree, located, lab, target)[1])
        else:
            # Nothing of the lab is there: each check says which file it misses.
            target.mkdir()
        partial = PartialResults(lab, layout.results, notes)
        partial.write()
        request = GradeRequest(course=course, lab_id=lab.id, submission=target, isolation=isolation.level)
        try:
            report = grade(request, progress=partial)
        except BaseException:
            if not partial.ended:
                # Without one result a file of zeros would be a grade that nobody gave.
                layout.results.unlink(missing_ok=True)
            raise
    final = gradescope(report, Adjustment(report.score.points, report.score.points, notes))
    replace_text(layout.results, final, durable=True)
    print(f"{lab.id}: {report.score.points:g}/{report.score.gradable:g} points at level {report.isolation.level}")


def _labs(course: Course, layout: Layout) -> list[Lab]:
    settings = json.loads((layout.source / SETTINGS).read_text(encoding="utf-8"))
    return [course.lab(name) for name in settings["labs"]]


def _assignment_title(layout: Layout) -> str:
    """The assignment's title as Gradescope tells it; empty where it doesn't."""
    try:
        raw = layout.metadata.read_bytes()[:_LARGEST_METADATA]
        metadata: Any = json.loads(raw)
    except (OSError, ValueError):
        return ""
    assignment = metadata.get("assignment") if isinstance(metadata, dict) else None
    title = assignment.get("title") if isinstance(assignment, dict) else None
    return title if isinstance(title, str) else ""


def choose_lab(labs: list[Lab], tree: Tree, title: str) -> Lab:
    """Which of the zip's labs this is: the only one, the one in the assignment's title, or the one whose files came.

    Raises:
        RefusedError: it can't be told.
    """
    if len(labs) == 1:
        return labs[0]
    told = _LAB.search(title)
    named = [lab for lab in labs if told and lab.number == int(told[1])]
    fitting = named or [lab for lab in labs if locate(tree.files, lab) is not None]
    if len(fitting) != 1:
        found = ", ".join(lab.short_id for lab in fitting) or "none"
        raise RefusedError(
            f"which lab this is can't be told from the files (they fit {found}). Hand in the files of one lab, under "
            "the names that its handout gives"
        )
    return fitting[0]


if __name__ == "__main__":
    sys.exit(main())

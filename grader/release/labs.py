"""Proves that a lab may be handed out: the starter fails politely, the reference gets all, no hint is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grader.canary import unplanted
from grader.course import Course
from grader.errors import CourseError
from grader.release.proof import MAX_STARTER_POINTS
from grader.report.model import Report, Status, tally
from grader.session import GradeRequest, grade
from grader.starter import build_starter


def problems_of(course: Course, lab_id: str) -> Iterator[str]:
    """What keeps one lab from being released, a sentence each. Grades the starter and the reference, on the CPU."""
    for look in (_hints, _files, _starter, _reference):
        try:
            yield from look(course, lab_id)
        except CourseError as error:
            yield str(error)


def _grade(course: Course, lab_id: str, submission: Path) -> Report:
    return grade(GradeRequest(course=course, lab_id=lab_id, submission=submission, device="cpu"))


def _hints(course: Course, lab_id: str) -> Iterator[str]:
    hints, checks = course.hints(lab_id).checks, course.lab(lab_id).checks
    for check_id in checks:
        hint = hints.get(check_id)
        if hint is None:
            yield f"hints.toml: no hint for the check {check_id!r}"
        elif empty := [step for step, text in hint if not text.strip()]:
            yield f"hints.toml: the hint for {check_id!r} has an empty {empty[0]}"
    for check_id in hints:
        if check_id not in checks:
            yield f"hints.toml: a hint for {check_id!r}, which is no check"


def _files(course: Course, lab_id: str) -> Iterator[str]:
    for name, raw in build_starter(course, lab_id).items():
        path = course.starter_dir(lab_id) / name
        if not path.is_file() or path.read_bytes() != raw:
            yield f"{path.relative_to(course.root)} isn't what the reference makes of it: run `make starters`"
    for name in unplanted(course):
        if lab_id in name.split("/"):
            yield f"{name} has no mark that it must not be handed out: run `make starters`"


def _starter(course: Course, lab_id: str) -> Iterator[str]:
    report = _grade(course, lab_id, course.starter_dir(lab_id))
    earned = tally(report.checks).points
    if earned > MAX_STARTER_POINTS:
        yield f"the starter gets {earned:g} points, expected at most {MAX_STARTER_POINTS}"
    for check in report.checks:
        broken = check.phase == "import" or check.status in (Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM)
        if broken:
            yield f"the starter doesn't fail politely: {check.id} is {check.status.value}: {check.message}"
            return


def _reference(course: Course, lab_id: str) -> Iterator[str]:
    report = _grade(course, lab_id, course.solution_dir(lab_id) / "reference")
    total = tally(report.checks)
    if not total.gradable:
        yield "nothing of the reference can be graded here"
    for check in report.checks:
        ran = check.status not in (Status.SKIPPED, Status.PENDING, Status.PASS)
        if ran and check.points < check.max_points:
            yield (
                f"the reference gets {check.points:g} of {check.max_points:g} points for {check.id} "
                f"({check.status.value}): {check.message}"
            )

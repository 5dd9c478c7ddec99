"""Runs checks of an earlier report again, with the very inputs that they had: a dispute is settled by looking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.classroom.changes import differing
from grader.course import Course, Lab
from grader.errors import UsageError
from grader.judge.plan import HIDDEN_FILE, Progress
from grader.judge.seeds import SECRET_FILE_VARIABLE, SECRET_VARIABLE, Seeds
from grader.judge.selection import select
from grader.report.model import CheckResult, Report, Status
from grader.sandbox.stage import stage
from grader.session import GradeRequest, grade


@dataclass(frozen=True)
class ReplayRequest:
    """Which checks of which report are run again.

    Attributes:
        select: a `-k` expression; the id of one check, as a rule.
        submission: the folder with the files that were graded.
        isolation: a level, or empty for the report's own.
    """

    course: Course
    report: Report
    select: str
    submission: Path
    isolation: str = ""


@dataclass(frozen=True)
class Replayed:
    """One check then and now."""

    then: CheckResult
    now: CheckResult

    @property
    def same(self) -> bool:
        """Whether it ended in the same way. Messages may differ in a measured time, so they don't count."""
        return (self.then.status, self.then.points) == (self.now.status, self.now.points)


@dataclass(frozen=True)
class Replay:
    """What came of it.

    Attributes:
        report: of the new run.
        differs: what isn't as it was then, in words; empty when the grade was made by the same files and versions.
    """

    report: Report
    checks: tuple[Replayed, ...]
    differs: tuple[str, ...]


def replay(request: ReplayRequest, progress: Progress | None = None) -> Replay:
    """Run the chosen checks again.

    Raises:
        UsageError: this isn't an instructor's copy, the key isn't the report's, or the files aren't those that were
            graded; says which.
        InfrastructureError: the report's isolation level can't be had here.
    """
    report, course = request.report, request.course
    lab = course.lab(report.lab.id)
    chosen = _chosen(course, lab, report, request.select)
    seeds = seeds_of(report)
    differs = _check_files(course, lab, report, request.submission)
    again = GradeRequest(
        course=course,
        lab_id=lab.id,
        submission=request.submission,
        device=report.device,
        profile=report.profile.name,
        isolation=request.isolation or report.isolation.level,
        checks=frozenset(chosen),
        seeds=seeds,
    )
    now = grade(again, progress=progress) if progress is not None else grade(again)
    results = {check.id: check for check in now.checks}
    pairs = tuple(Replayed(check, results[check.id]) for check in report.checks if check.id in chosen)
    return Replay(now, pairs, (*differs, *differing(report, now), *_versions(report.versions, now.versions)))


def seeds_of(report: Report) -> Seeds:
    """The key that the report's inputs were drawn from.

    Raises:
        UsageError: it was a secret that isn't at hand, or another one is.
    """
    if report.seed.key is not None:
        return Seeds.replay(report.seed.key)
    wanted = report.seed.key_id
    seeds = Seeds.from_environment()
    if seeds.source != "secret":
        raise UsageError(
            f"The report's inputs come from a secret (key {wanted}), and none is set here.",
            hint=f"Set {SECRET_VARIABLE}, or {SECRET_FILE_VARIABLE} to the file that holds it.",
        )
    found = seeds.record().key_id
    if found != wanted:
        raise UsageError(
            f"The report's inputs come from the secret {wanted}; the one that is set is {found}.",
            hint="Set the secret of the batch that made the report.",
        )
    return seeds


def _chosen(course: Course, lab: Lab, report: Report, expression: str) -> list[str]:
    """Ids of the checks to run: picked, in the report, and run by it."""
    if any(spec.hidden for spec in lab.checks.values()) and not (course.assignment_dir(lab.id) / HIDDEN_FILE).is_file():
        raise UsageError(
            f"This copy of the course lacks the hidden tests of {lab.short_id}: a replay is the instructor's.",
            hint="Ask whoever runs the course.",
        )
    known = {check.id: check for check in report.checks}
    # An id picks its check alone, though it may be part of another's.
    picked = {expression} if expression in lab.checks else select(lab, expression)
    if not picked & known.keys():
        raise UsageError(
            f"The report has no result of {', '.join(sorted(picked))}.", hint=f"It has {', '.join(known)}."
        )
    ran = [check_id for check_id in known if check_id in picked and known[check_id].status is not Status.SKIPPED]
    if not ran:
        why = known[min(picked & known.keys())].message
        raise UsageError(f"The report's run skipped that ({why}): there is nothing to repeat.")
    return ran


def _check_files(course: Course, lab: Lab, report: Report, submission: Path) -> list[str]:
    """Hold the submission to the report's hashes, before any of it runs; what the course itself changed since.

    Raises:
        UsageError: a file of the student's isn't the one that was graded; names the first.
    """
    with stage(submission, lab, course.starter_dir(lab.id)) as staged:
        now, digest = dict(staged.files), staged.sha256
    if digest == report.submission.sha256:
        return []
    then = report.submission.files
    changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    theirs = [name for name in changed if name not in lab.files.provided]
    if then and not theirs:
        return [f"the provided {name}" for name in changed]
    first = theirs[0] if theirs else "a file"
    how = "is missing" if first not in now else "wasn't there" if first not in then else "isn't the same"
    raise UsageError(
        f"{submission} isn't what was graded: {first} {how} "
        f"(submission {digest[:12]}, the report's {report.submission.sha256[:12]}).",
        hint="Name the graded files with --submission.",
    )


def _versions(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name} ({then.get(name, 'none')} then, {now.get(name, 'none')} now)"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]

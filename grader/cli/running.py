"""What `grade run` does once its words are parsed: find the submission, grade it, show and write the report."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from grader.cli.console import STDOUT, console, say
from grader.cli.output import write_json
from grader.cli.progress import Progress
from grader.cli.submission import find_submission, shown
from grader.course import Course, Hints, Lab
from grader.errors import CourseError, ExitCode, UsageError
from grader.report import json as report_json
from grader.report.model import Report
from grader.report.scorecard import Scorecard, summary
from grader.report.verdict import exit_code


@dataclass(frozen=True)
class RunOptions:
    """How a run was asked for."""

    submission: Path | None
    device: str
    profile: str | None
    isolation: str
    public_only: bool
    select: str
    seed: str | None = None

    def words(self) -> tuple[str, ...]:
        """The options that a repetition of this run needs; -k is left to whoever repeats it."""
        words: list[str] = []
        if self.submission is not None:
            words += ["--submission", str(self.submission)]
        if self.device != "auto":
            words += ["--device", self.device]
        if self.profile is not None:
            words += ["--profile", self.profile]
        if self.isolation != "auto":
            words += ["--isolation", self.isolation]
        if self.seed is not None:
            words += ["--seed", self.seed]
        if self.public_only:
            words += ["--public-only"]
        return tuple(words)


def grade_and_show(lab_name: str, options: RunOptions, *, json_target: str | None, verbose: bool) -> int:
    """Grade, print the scorecard (unless stdout is the JSON's), write the JSON, answer the exit code.

    Raises:
        GraderError: whatever kept the run from a report, or the report from its file. The scorecard comes first, so
            that a file that can't be written loses nothing.
    """
    course = Course.find()
    lab = course.lab(lab_name)
    submission = find_submission(course, lab, options.submission)
    say(f"grading {lab.short_id} from {shlex.quote(shown(submission))}")
    report = _grade(course, lab, submission, options)
    if json_target != STDOUT:
        hints = _hints(course, lab)
        questions = {check_id: hint.question for check_id, hint in hints.checks.items()}
        card = Scorecard(report, questions, hints.mistakes, options=options.words(), verbose=verbose)
        console(sys.stdout).print(card)
        sys.stdout.flush()
    if lab.rubric:
        parts = ", ".join(f"{name} {item.points:g}" for name, item in lab.rubric.items())
        total = sum(item.points for item in lab.rubric.values())
        say(f"{total:g} more points are a person's ({parts}): pending until `grade rubric` enters them")
    if json_target is not None:
        write_json(report_json.dumps(report), json_target)
        say(f"{lab.short_id}: {summary(report)}" if json_target == STDOUT else f"report written to {json_target}")
    code = exit_code(report)
    if code is ExitCode.USAGE:
        drop = "-k or --public-only" if options.public_only else "-k"
        raise UsageError(f"Nothing was graded: {summary(report)}.", hint=f"Select other checks, or drop {drop}.")
    return int(code)


def _grade(course: Course, lab: Lab, submission: Path, options: RunOptions) -> Report:
    from grader.judge.seeds import Seeds
    from grader.session import GradeRequest, grade

    request = GradeRequest(
        course=course,
        lab_id=lab.id,
        submission=Path(shown(submission)),
        device=options.device,
        profile=options.profile,
        isolation=options.isolation,
        public_only=options.public_only,
        select=options.select,
        seeds=Seeds.replay(options.seed) if options.seed is not None else None,
    )
    progress = Progress(_expected(course, lab, options))
    try:
        return grade(request, progress=progress)
    finally:
        progress.close()


def _expected(course: Course, lab: Lab, options: RunOptions) -> int:
    """How many checks this run will report; a student's copy has no hidden tests."""
    from grader.judge.plan import HIDDEN_FILE
    from grader.judge.selection import select

    hidden_too = not options.public_only and (course.assignment_dir(lab.id) / HIDDEN_FILE).is_file()
    return sum(hidden_too or not lab.checks[check_id].hidden for check_id in select(lab, options.select))


def _hints(course: Course, lab: Lab) -> Hints:
    """The lab's hints; a lab without them, or with a broken file, still gets its scorecard."""
    if (course.assignment_dir(lab.id) / "hints.toml").is_file():
        try:
            return course.hints(lab.id)
        except CourseError as error:
            say(f"warning: hints left out: {error}")
    return Hints(format_version=1, checks={})

"""What `grade replay` does once its words are parsed."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from grader.batch.intake import find_submissions
from grader.classroom.records import Record
from grader.classroom.sources import Source, read_source
from grader.cli.console import STDOUT, console, say
from grader.cli.output import write_json
from grader.cli.progress import Progress
from grader.course import Course
from grader.errors import ExitCode, UsageError
from grader.replay import Replay, ReplayRequest, replay
from grader.report import json as report_json
from grader.report.model import Status
from grader.report.scorecard import Paragraph
from grader.report.text import clean, one_line, points


def show_replay(
    path: Path, expression: str, submission: Path | None, *, isolation: str, json_target: str | None
) -> int:
    """Run again, show then and now; 0 when all ended as before, 1 when not, 3 by the grader's own fault.

    Raises:
        GraderError: see `grader.replay.replay`.
    """
    course = Course.find()
    source = read_source(path)
    progress = Progress(None)
    with _submission(course, source, submission) as folder:
        try:
            done = replay(ReplayRequest(course, source.report, expression, folder, isolation), progress)
        finally:
            progress.close()
    if json_target is not None:
        write_json(report_json.dumps(done.report), json_target)
    if json_target != STDOUT:
        _print(done)
    for difference in done.differs:
        say(f"changed since that report: {one_line(difference)}")
    if any(check.now.status is Status.ERROR for check in done.checks):
        return int(ExitCode.INFRASTRUCTURE)
    return int(ExitCode.OK if all(check.same for check in done.checks) else ExitCode.POINTS_LOST)


@contextlib.contextmanager
def _submission(course: Course, source: Source, named: Path | None) -> Iterator[Path]:
    """The folder of the graded files: as named, else as the report says, else found again among the batch's."""
    if named is not None:
        yield named
        return
    there = Path(source.report.submission.path)
    if there.is_dir():
        yield there
        return
    with tempfile.TemporaryDirectory(prefix="grade-replay-") as work:
        folder = _in_batch(course, source.path, source.record, Path(work)) if source.record is not None else None
        if folder is None:
            raise UsageError(
                f"The graded files aren't at {one_line(str(there))} any more.",
                hint="Name their folder with --submission.",
            )
        yield folder


def _in_batch(course: Course, path: Path, record: Record, work: Path) -> Path | None:
    """The files of a record, taken in again from the submissions of its batch; None where they aren't there."""
    try:
        # RESULTS/records/<student>/<lab>/<record>
        settings = json.loads((path.resolve().parents[3] / "batch.json").read_text(encoding="utf-8"))
        submissions = Path(settings["submissions"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, IndexError):
        return None
    if not submissions.is_dir():
        return None
    for found in find_submissions(submissions, course, [course.lab(record.lab)], work):
        if found.folder is not None and found.content_sha256 == record.content_sha256:
            return found.folder
    return None


def _print(done: Replay) -> None:
    out = console(sys.stdout)
    for check in done.checks:
        said = "the same" if check.same else "NOT the same"
        out.print(Text(f"{check.then.id}  {said}", style="bold"))
        for label, result in (("then", check.then), ("now", check.now)):
            worth = f"{result.status.value} {points(result.points)}/{points(result.max_points)}"
            out.print(Paragraph(Text(f"{worth}  {clean(result.message)}"), indent=8, first=f"  {label}"), end="")
            measured = ", ".join(f"{name} = {one_line(str(value))}" for name, value in result.measured.items())
            if measured:
                out.print(Paragraph(Text(measured, style="dim"), indent=8), end="")
    same = sum(check.same for check in done.checks)
    say(f"{same} of {len(done.checks)} as before, with the inputs of the key {done.report.seed.key_id}")

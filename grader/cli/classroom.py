"""What `grade gradebook`, `merge-reports` and `diff` show."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from grader.classroom import changes
from grader.classroom.book import Book, ClassFiles, open_book, take_in
from grader.classroom.gradebook import Row, gradebook, span
from grader.classroom.points import plain
from grader.classroom.records import Record, results_folder
from grader.classroom.sources import Source, read_source, read_sources
from grader.classroom.table import as_dict
from grader.cli.books import opened
from grader.cli.console import STDOUT, console, say
from grader.cli.listing import emit
from grader.course import Course
from grader.errors import ExitCode, UsageError
from grader.grading import Grading
from grader.report.scorecard import Paragraph
from grader.report.text import clean, count, one_line

_STYLES = {"pending": "yellow", "infrastructure": "red", "refused": "red", "missing": "red", "too late": "red"}


def show_gradebook(results: Path, files: ClassFiles, *, json_target: str | None) -> int:
    """Write gradebook.csv, then a line a row.

    Raises:
        UsageError, CourseError: no results there, or one of the files is wrong.
    """
    book = opened(results, Course.find(), files)
    path = book.write()
    if json_target is not None:
        emit([as_dict(row) for row in book.rows], json_target)
    if json_target != STDOUT:
        console(sys.stdout).print(_table(book.rows))
    for used in book.used:
        say(f"read {used}")
    say(f"{_summary(book)}; written to {path}")
    return int(ExitCode.OK)


def _summary(book: Book) -> str:
    by_status = Counter(row.status for row in book.rows)
    parts = [f"{number} {status}" for status, number in sorted(by_status.items())]
    strangers = sorted({row.student for row in book.rows if not row.in_roster})
    if strangers:
        named = ", ".join(one_line(student) for student in strangers[:10]) + (" ..." if len(strangers) > 10 else "")
        parts.append(f"not in the roster: {named}")
    return f"{count(len(book.rows), 'row')}: " + ", ".join(parts)


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, style in (("student", ""), ("lab", ""), ("status", ""), ("points", "r"), ("late", "r"), ("", "")):
        table.add_column(heading, justify="right" if style == "r" else "left", overflow="fold")
    for row in rows:
        late = f"{span(row.late.late_by)}, keeps {_kept(row)}" if row.late.late_by else ""
        table.add_row(
            Text(one_line(row.student, max_characters=40)),
            Text(row.lab[:5]),
            Text(row.status, style=_STYLES.get(row.status, "")),
            Text(_points(row)),
            Text(late),
            Text(_remark(row), style="dim"),
        )
    return table


def _points(row: Row) -> str:
    if row.final is not None:
        return f"{plain(row.final)}/{plain(row.total)}"
    return f"{plain(row.so_far)} + {plain(row.pending)}?/{plain(row.total)}"


def _kept(row: Row) -> str:
    return "nothing" if row.late.multiplier is None else f"{plain(row.late.multiplier * 100)} %"


def _remark(row: Row) -> str:
    said = [row.message, *row.notes]
    said += [f"{applied.check} by hand" for applied in row.overrides]
    if row.merged:
        said.append(f"{count(len(row.merged), 'check')} graded elsewhere")
    return one_line("; ".join(part.rstrip(".") for part in said if part), max_characters=120)


def merge_in(results: Path, paths: list[Path]) -> int:
    """Keep each report that decides something here, say what became of each, and make gradebook.csv anew.

    Raises:
        UsageError: nothing could be merged.
    """
    folder = results_folder(results)
    records = folder.records()
    taken = failed = 0
    for source in list(read_sources(paths)):
        if isinstance(source, UsageError):
            failed += 1
            say(f"not merged: {clean(str(source))}")
            continue
        outcome = take_in(folder, records, source)
        shown = one_line(str(source.path))
        if outcome.why_not:
            failed += 1
            say(f"not merged: {shown}: {outcome.why_not}")
            continue
        taken += 1
        for student, checks in outcome.decides.items():
            say(f"merged: {shown}: {one_line(student)}: {', '.join(checks)}")
        if source.report.isolation.level == "process":
            say(f"  {shown} was made at level process, which a submission can talk into points: know who made it")
    if not taken:
        raise UsageError(f"Nothing was merged ({count(failed, 'file')} read).", hint="The lines above say why.")
    book = opened(results, Course.find())
    say(f"{_summary(book)}; written to {book.write()}")
    return int(ExitCode.OK)


def show_changes(old: Path, new: Path, *, json_target: str | None) -> int:
    """A line a changed score, its checks below; 1 when there is any.

    Raises:
        UsageError: a side can't be read, or the two are of different kinds.
    """
    compared = changes.compare(*_sides(old, new))
    if json_target is not None:
        emit([_as_json(change) for change in compared.changes], json_target)
    if json_target != STDOUT:
        out = console(sys.stdout)
        for change in compared.changes:
            head = Text(f"{one_line(change.student)}  ", style="bold").append(str(change), style="not bold")
            out.print(Paragraph(head, indent=4, first=""), end="")
            for check in change.checks:
                out.print(Paragraph(Text(str(check)), indent=8, first="    "), end="")
    for difference in compared.versions:
        say(f"differs: {difference}")
    say(f"{len(compared.changes)} of {count(compared.compared, 'score')} changed")
    return int(ExitCode.POINTS_LOST if compared.changes else ExitCode.OK)


def _sides(old: Path, new: Path) -> tuple[list[Row], list[Row]]:
    """The rows of both sides: two gradebooks, or two reports as gradebooks of one row."""
    course = Course.find()
    for side in (old, new):
        if not side.exists():
            raise UsageError(f"{side}: there is no such file or folder.", hint="Check the path.")
    if old.is_dir() != new.is_dir():
        file, folder = (new, old) if old.is_dir() else (old, new)
        raise UsageError(
            f"{file} is a file and {folder} a folder.", hint="Compare two results folders, or two reports."
        )
    if old.is_dir():
        return open_book(old, course).rows, opened(new, course).rows
    left, right = read_source(old), read_source(new)
    if left.report.lab.id != right.report.lab.id:
        raise UsageError(f"{old} is of {left.report.lab.id[:5]}, {new} of {right.report.lab.id[:5]}.")
    return [_row(left, course)], [_row(right, course)]


def _row(source: Source, course: Course) -> Row:
    """The row that a report alone gives: no deadline, no override."""
    student = source.student or source.report.lab.id[:5]
    record = Record(
        student=student,
        members=(student,),
        lab=source.report.lab.id,
        content_sha256=source.report.submission.sha256,
        job_key=source.report.submission.sha256,
        outcome="graded",
        report=source.report,
    )
    return gradebook([record], course, Grading())[0]


def _as_json(change: changes.ScoreChange) -> dict[str, Any]:
    return {
        "student": change.student,
        "lab": change.lab,
        "old": None if change.old is None else plain(change.old),
        "new": None if change.new is None else plain(change.new),
        "old_status": change.old_status,
        "new_status": change.new_status,
        "another_submission": change.another_submission,
        "checks": [
            {
                "id": check.check,
                "old": check.old.model_dump(mode="json", include={"status", "points"}) if check.old else None,
                "new": check.new.model_dump(mode="json", include={"status", "points"}) if check.new else None,
            }
            for check in change.checks
        ],
    }

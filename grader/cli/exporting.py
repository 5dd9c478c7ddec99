"""What `grade export` does once its words are parsed: read what is stored, hand it to a pure function, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.classroom.book import Book, ClassFiles
from grader.classroom.gradebook import Row
from grader.classroom.gradebook import span as late_span
from grader.classroom.points import plain
from grader.classroom.records import safe_name
from grader.classroom.roster import Roster
from grader.classroom.sources import read_source
from grader.classroom.table import gradebook_csv
from grader.cli.books import opened
from grader.cli.console import STDOUT, say
from grader.cli.output import write_below, write_text
from grader.course import Course, Lab
from grader.errors import ExitCode, UsageError
from grader.report.exports.autolab import autolab
from grader.report.exports.ctrf import ctrf
from grader.report.exports.github import github, workflow
from grader.report.exports.gradescope import Adjustment, gradescope, refused
from grader.report.exports.junit import junit
from grader.report.exports.named import Named
from grader.report.exports.tables import CanvasStudent, canvas, checks_csv
from grader.report.model import Report
from grader.report.text import count, one_line

OPTION = "-o"

SINGLE: dict[str, tuple[str, Callable[[Report], str]]] = {
    "gradescope": ("json", gradescope),
    "github": ("txt", github),
    "autolab": ("json", autolab),
}
"""Format → suffix, and how one report is written; a whole class becomes a file a student and lab."""

MANY: dict[str, Callable[[Sequence[Named]], str]] = {"ctrf": ctrf, "junit": junit, "csv": checks_csv}
"""Formats that hold any number of reports in one document."""


@dataclass(frozen=True)
class Files:
    """Files named by options."""

    roster: Path | None = None
    overrides: Path | None = None
    rubric: Path | None = None
    secret_file: Path | None = None
    wheels: Path | None = None


def write_export(format: str, sources: Sequence[str], output: str, files: Files) -> int:
    """Write one export to `output`.

    Raises:
        UsageError: a source isn't what the format needs, or the target can't be written.
    """
    if format in ("github-workflow", "gradescope-zip"):
        _write_tool(format, sources, output, files)
        return int(ExitCode.OK)
    if not sources:
        raise UsageError(
            f"`grade export {format}` needs results.", hint="Name the -o folder of a batch, or a report from --json."
        )
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and paths[0].is_dir():
        book = opened(paths[0], Course.find(), ClassFiles(files.roster, files.overrides, files.rubric))
        _write_class(format, book, output)
    else:
        _write_reports(format, paths, output)
    return int(ExitCode.OK)


def _write_tool(format: str, sources: Sequence[str], output: str, files: Files) -> None:
    course = Course.find()
    labs = [course.lab(name) for name in (sources or course.lab_ids())]
    if format == "github-workflow":
        write_text(workflow([(lab.id, lab.runtime != "numpy") for lab in labs]), output, option=OPTION)
        return
    from grader.gradescope.build import build_zip

    if output == STDOUT:
        raise UsageError("A zip isn't for a screen.", hint="Name a file: -o autograder.zip.")
    written = build_zip(course, labs, Path(output), secret_file=files.secret_file, wheels=files.wheels)
    say(f"{output}: {count(written, 'file')} for {_names(labs)}")


def _names(labs: Sequence[Lab]) -> str:
    return ", ".join(lab.short_id for lab in labs)


def _write_reports(format: str, paths: Sequence[Path], output: str) -> None:
    if format == "canvas":
        raise UsageError("Canvas takes a whole class, not reports.", hint="Name the -o folder of a batch.")
    reports = [read_source(path).report for path in paths]
    if format in MANY:
        text = MANY[format]([Named("", report) for report in reports])
    elif len(reports) == 1:
        text = SINGLE[format][1](reports[0])
    else:
        raise UsageError(f"A {format} document holds one report, found {len(reports)}.", hint="Export one at a time.")
    write_text(text, output, option=OPTION)


def _write_class(format: str, book: Book, output: str) -> None:
    if format == "csv":
        write_text(gradebook_csv(book.rows), output, option=OPTION)
    elif format == "canvas":
        write_text(canvas_of(book), output, option=OPTION)
    elif format in MANY:
        named = [Named(row.student, row.report) for row in book.rows if row.report is not None]
        write_text(MANY[format](named), output, option=OPTION)
    else:
        _write_folder(format, book.rows, output)


def _write_folder(format: str, rows: Sequence[Row], output: str) -> None:
    if output == STDOUT:
        raise UsageError(f"A class in {format} is a file a student.", hint="Name a folder: -o FOLDER.")
    suffix, write = SINGLE[format]
    written = 0
    for row in rows:
        text = gradescope_of(row) if format == "gradescope" else write(row.report) if row.report else ""
        if not text:
            say(f"no file for {one_line(row.student)}, {row.lab[:5]}: {row.status}: {one_line(row.message)}")
            continue
        write_below(Path(output), f"{safe_name(row.student)}/{row.lab}.{suffix}", text, option=OPTION)
        written += 1
    say(f"{output}: {count(written, 'file')}")


def gradescope_of(row: Row) -> str:
    """One row as Gradescope shows it, late days and overrides told; empty where nothing may be scored."""
    if row.report is None:
        decided = row.status == "refused" and row.final is not None
        return refused(one_line(row.message), float(row.final or 0)) if decided else ""
    score = row.so_far if row.final is None else row.final
    automatic = None if row.automatic is None else float(row.automatic)
    return gradescope(row.report, Adjustment(float(score), automatic, row_notes(row)))


def row_notes(row: Row) -> tuple[str, ...]:
    """What lateness and people did to a grade, a line each, for the student; reasons stay with the instructor."""
    notes = [f"Handed in {late_span(row.late.late_by)} late."] if row.late.late_by else []
    notes += [row.message] if row.status == "too late" else []
    for applied in row.overrides:
        before = "undecided" if applied.before is None else plain(applied.before)
        notes.append(f"Changed by a person on {applied.date}: {before} became {plain(applied.after)}.")
    return tuple(notes)


def canvas_of(book: Book) -> str:
    """Final points by student; a cell stays empty while points are pending."""
    labs = sorted({row.lab for row in book.rows})
    possible = {row.lab: float(row.total) for row in book.rows}
    known = [book.course.lab(lab) for lab in labs if lab in book.course.lab_ids()]
    titles = {lab.id: f"{lab.short_id} {lab.title}" for lab in known}
    roster = book.roster or Roster(())
    points: dict[str, dict[str, float | None]] = {}
    for row in book.rows:
        points.setdefault(row.student, {})[row.lab] = None if row.final is None else float(row.final)
    if book.roster is None:
        say("no roster.csv: students go by their folders' names, which Canvas may not know")
    rows = [(_canvas_student(name, roster), found) for name, found in points.items()]
    return canvas(rows, [(lab, titles.get(lab, lab), possible[lab]) for lab in labs])


def _canvas_student(name: str, roster: Roster) -> CanvasStudent:
    found = roster.find(name, ("student",))
    if found is None:
        return CanvasStudent(name, sis_login_id=name)
    return CanvasStudent(found.name or name, found.canvas_id, found.canvas_sis_id, found.canvas_login, found.section)

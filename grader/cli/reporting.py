"""What `grade report` does once its words are parsed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from grader.classroom.book import Book, ClassFiles
from grader.classroom.gradebook import Row
from grader.classroom.records import safe_name
from grader.classroom.sources import read_source
from grader.cli.books import opened
from grader.cli.console import say
from grader.cli.exporting import row_notes
from grader.cli.output import write_below
from grader.course import Course
from grader.errors import ExitCode
from grader.pages.index import IndexRow, index_page
from grader.pages.student import Section, student_page
from grader.profiles import HardwareProfile, list_profiles, load_profile
from grader.report.model import Report
from grader.report.text import count
from grader.report.text import points as shown_points

OPTION = "-o"


def write_pages(sources: Sequence[Path], output: Path, files: ClassFiles, *, instructor: bool) -> int:
    """Write the pages of a class, or of single reports.

    Raises:
        UsageError: a source is neither results nor a report, or the folder can't be written.
    """
    course = Course.find()
    if len(sources) == 1 and sources[0].is_dir():
        book = opened(sources[0], course, files)
        students = _class(book)
    else:
        reports = [read_source(path).report for path in sources]
        students = {_name(report): [(_section(report), shown_points(report.score.points))] for report in reports}
    profiles = _profiles(course, (section for found in students.values() for section, _ in found))
    rows = []
    for student, found in students.items():
        file = f"students/{safe_name(student)}.html"
        sections = [section for section, _ in found]
        page = student_page(student, sections, profiles, instructor=instructor)
        write_below(output, file, page, option=OPTION)
        # safe_name escapes with `%`, which a link would decode again.
        cells = {section.lab: cell for section, cell in found}
        rows.append(IndexRow(student, file.replace("%", "%25"), cells))
    index = write_below(output, "index.html", index_page(course.settings.title, rows), option=OPTION)
    say(f"{count(len(rows), 'page')}, with an index for you alone: {index}")
    return int(ExitCode.OK)


def _class(book: Book) -> dict[str, list[tuple[Section, str]]]:
    titles = {lab: book.course.lab(lab).title for lab in book.course.lab_ids()}
    students: dict[str, list[tuple[Section, str]]] = {}
    for row in book.rows:
        section = Section(row.lab, titles.get(row.lab, row.lab), row.report, _notes(row))
        students.setdefault(row.student, []).append((section, _cell(row)))
    return students


def _notes(row: Row) -> tuple[str, ...]:
    if row.report is None:
        return (f"Not graded ({row.status}): {row.message}",)
    final = "" if row.final is None else f"Final: {shown_points(float(row.final))} points."
    pending = f"{shown_points(float(row.pending))} points pending." if row.pending else ""
    return tuple(note for note in (*row_notes(row), final, pending) if note)


def _cell(row: Row) -> str:
    if row.final is not None:
        return shown_points(float(row.final))
    if row.status == "pending":
        return f"{shown_points(float(row.so_far))} so far, {shown_points(float(row.pending))} pending"
    return row.status


def _name(report: Report) -> str:
    return f"{report.lab.id[:5]} {report.submission.sha256[:12]}"


def _section(report: Report) -> Section:
    return Section(report.lab.id, report.lab.title, report)


def _profiles(course: Course, sections: Iterable[Section]) -> dict[str, HardwareProfile]:
    """The profiles that the reports were held to, as far as this course has them."""
    known = set(list_profiles(course.root))
    wanted = {section.report.profile.name for section in sections if section.report is not None}
    found = {}
    for name in sorted(wanted):
        if name not in known:
            say(f"no roofline for {name}: this course has no such profile")
            continue
        found[name] = load_profile(course.root, name)
    return found

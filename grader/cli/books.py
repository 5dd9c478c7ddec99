"""Opens a gradebook for a command: what changes nothing in the instructor's files is said on stderr."""

from __future__ import annotations

from pathlib import Path

from grader.classroom.book import Book, ClassFiles, open_book
from grader.cli.console import say
from grader.course import Course
from grader.report.text import clean


def opened(results: Path, course: Course, files: ClassFiles | None = None, *, lenient: bool = False) -> Book:
    """As `open_book`, with a line for each of its warnings."""
    book = open_book(results, course, files, lenient=lenient)
    tell_warnings(book)
    return book


def tell_warnings(book: Book) -> None:
    for warning in book.warnings:
        say(f"warning: {clean(warning)}")

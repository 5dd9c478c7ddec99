"""`grade merge OUT RESULTS…`: one results folder out of those of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grader.cli.console import say


def merge(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the whole; made when missing.")],
    parts: Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="Results of `grade batch --shard`.")],
    partial: Annotated[bool, typer.Option("--partial", help="Also when shards are missing.")] = False,
) -> None:
    """Merge the results of a class that was graded in parts, and write its gradebook."""
    from grader.batch.merge import merge as merge_results
    from grader.classroom.book import open_book
    from grader.course import Course
    from grader.report.text import count

    course = Course.find()
    number = merge_results(out, parts, partial=partial)
    gradebook = open_book(out, course).write()
    say(f"{count(number, 'record')} from {count(len(parts), 'folder')}; gradebook: {gradebook}")

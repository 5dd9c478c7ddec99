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
    from grader.cli.books import opened
    from grader.cli.likeness import keep_similarity_of_parts
    from grader.course import Course
    from grader.report.text import count

    course = Course.find()
    merged = merge_results(out, parts, partial=partial)
    book = opened(out, course, lenient=True)
    keep_similarity_of_parts(course, merged, out, book.roster)
    say(f"{count(merged.records, 'record')} from {count(len(parts), 'folder')}; gradebook: {book.write()}")

"""The instructor's table of all pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from grader.pages.environment import render
from grader.pages.student import STYLES


@dataclass(frozen=True)
class IndexRow:
    """One student: the page's file, relative to the index and safe in a link, and lab → what the cell says."""

    student: str
    file: str
    cells: dict[str, str] = field(default_factory=dict)


def index_page(heading: str, rows: Sequence[IndexRow]) -> str:
    """A self-contained page."""
    labs = sorted({lab for row in rows for lab in row.cells})
    return render("index.html.j2", style=STYLES, heading=heading, labs=labs, rows=rows)

"""CSV: the checks of reports, and Canvas's gradebook. Every cell is inert in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grader.report.exports.disclosure import disclose
from grader.report.exports.named import Named
from grader.report.inert import spreadsheet_cell

Cell = str | float | int | bool | None

CHECK_COLUMNS = (
    "student",
    "lab",
    "check",
    "kind",
    "visibility",
    "status",
    "points",
    "max_points",
    "pending_points",
    "message",
)


def write_table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """CSV with ``\\n`` ends, the same bytes for the same rows."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([spreadsheet_cell(name) for name in header])
    writer.writerows([spreadsheet_cell(cell) for cell in row] for row in rows)
    return stream.getvalue()


def checks_csv(reports: Sequence[Named]) -> str:
    """A row a check. Pending points stand in a column of their own, never as a zero."""
    rows: list[list[Cell]] = []
    for named in reports:
        for shown in disclose(named.report):
            rows.append(
                [
                    named.student,
                    named.report.lab.id,
                    shown.id,
                    str(shown.kind),
                    "hidden" if shown.hidden else "public",
                    str(shown.status),
                    shown.points if shown.at_stake else None,
                    shown.max_points,
                    shown.pending,
                    shown.text,
                ]
            )
    return write_table(CHECK_COLUMNS, rows)


@dataclass(frozen=True)
class CanvasStudent:
    """The columns by which Canvas knows a student; empty where the roster doesn't say."""

    name: str
    canvas_id: str = ""
    sis_user_id: str = ""
    sis_login_id: str = ""
    section: str = ""


def canvas(
    students: Sequence[tuple[CanvasStudent, dict[str, float | None]]], assignments: Sequence[tuple[str, str, float]]
) -> str:
    """Canvas's gradebook import.

    Format: the Canvas instructor guide, "How do I import grades in the Gradebook?": the five identifying columns, an
    assignment a column (``Title (id)`` for one that is there already), and a row of points possible.

    Args:
        students: who, and lab → final points; None or absent leaves the cell empty, which Canvas doesn't overwrite.
        assignments: (lab, column title, points possible), in order.
    """
    header = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *(title for _, title, _ in assignments)]
    possible: list[Cell] = ["Points Possible", "", "", "", "", *(points for _, _, points in assignments)]
    rows: list[list[Cell]] = []
    for student, points in students:
        identity: list[Cell] = [student.name, student.canvas_id, student.sis_user_id, student.sis_login_id]
        rows.append([*identity, student.section, *(points.get(lab) for lab, _, _ in assignments)])
    return write_table(header, [possible, *rows])

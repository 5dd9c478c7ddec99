"""lab03's io.csv: its points, how it is read, and what its numbers must be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.judge.csv_file import TableError, read_rows
from grader.judge.tiles import forms
from grader.judge.tiles.forms import FUNCTIONS, Setting
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

COLUMNS = ("function", "seq_len", "head_dim", "sram_elements", "counted_bytes", "model_bytes", "max_error")
SWEEP = tuple((128, 16, 4 * 16 * 2**k) for k in range(2, 8))
PAPER = (1024, 64, 192 * 1024 // 2)
POINTS = tuple((function, *point) for function in FUNCTIONS for point in (*SWEEP, PAPER))
MAX_FILE_BYTES = 1 << 16

Point = tuple[str, int, int, int]

NOT_REPRODUCED = Diagnosis(
    id="table-not-reproduced", text="The file holds numbers that io_model.py doesn't produce. Run it again."
)
NOT_COUNTED = Diagnosis(
    id="counted-not-model", text="A row's counted bytes aren't those that its function moves at that point."
)
MODEL_OFF = Diagnosis(id="model-not-form", text="A row's model bytes aren't those of the closed form.")
UNTESTED = Diagnosis(
    id="row-untested", text="A row's error is no error of a float16 run: no row without its output tested."
)


@dataclass(frozen=True)
class Row:
    counted: int
    model: int
    error: float


Table = dict[Point, Row]


def read_table(raw: bytes) -> Table:
    """The rows of io.csv by point.

    Raises:
        TableError: names the first thing that is wrong.
    """
    return table_of(read_rows(raw, COLUMNS, max_bytes=MAX_FILE_BYTES, max_rows=len(POINTS)))


def table_of(rows: object) -> Table:
    """Rows, as the CSV or `make_table` gives them, by point; every point exactly once.

    Raises:
        TableError: `rows` is no list of dicts, or a cell, a point or the set of points is wrong.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TableError("it is no list of dicts, one a row")
    if len(rows) > len(POINTS):
        raise TableError(f"it has more than the {len(POINTS)} rows asked for")
    table: Table = {}
    for number, row in enumerate(rows, start=1):
        try:
            point = (str(row["function"]), *(int(row[name]) for name in COLUMNS[1:4]))
            found = Row(int(row["counted_bytes"]), int(row["model_bytes"]), float(row["max_error"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TableError(f"row {number} lacks a column or holds text where a number belongs") from error
        if point not in POINTS or point in table:
            raise TableError(f"row {number} is at no point that is asked for, or is there twice")
        if not math.isfinite(found.error) or found.error < 0:
            raise TableError(f"row {number} holds an error that is negative or not finite")
        table[point] = found  # type: ignore[index]  # a function and three numbers
    if len(table) < len(POINTS):
        missing = next(point for point in POINTS if point not in table)
        raise TableError(f"it has {len(table)} of {len(POINTS)} rows; {missing} is missing")
    return table


def judge_tables(judge: Judge, written: Table, again: Table) -> None:
    """Hold the file to the closed forms and to what `make_table` gives now."""
    for point in POINTS:
        function, n, d, m = point
        want = forms.total(function, Setting(n, d, m))
        for what, row in (("io.csv", written[point]), ("make_table", again[point])):
            if row.counted != want:
                judge.fail(f"{what}: counted_bytes at {point} is not right.", diagnosis=NOT_COUNTED)
            if row.model != want:
                judge.fail(f"{what}: model_bytes at {point} is not right.", diagnosis=MODEL_OFF)
            if not judge.thresholds["min_error"] <= row.error <= judge.thresholds["max_error"]:
                judge.fail(f"{what}: max_error at {point} is {row.error:.1e}.", diagnosis=UNTESTED)
        # Counts are exact; an error hangs on the order of the machine's sums.
        if not abs(written[point].error - again[point].error) <= judge.thresholds["repeat"] * again[point].error:
            judge.fail(f"io.csv: max_error at {point} isn't repeated by a new run.", diagnosis=NOT_REPRODUCED)

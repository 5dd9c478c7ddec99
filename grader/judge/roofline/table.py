"""Judges lab01's tables: what `intensity_table` returns, what table.csv holds, and whether the two agree."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.errors import UsageError
from grader.judge.roofline.costs import CALLS
from grader.judge.roofline.mistakes import BYTES, FLOPS, explain
from grader.judge.roofline.model import ALGORITHMS, EXACT, Case, Gpu, Shape
from grader.profiles import HardwareProfile
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable

    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

WORDS = ("profile", "algorithm", "dtype", "causal", "direction")
SIZES = ("batch", "q_heads", "kv_heads", "q_len", "k_len", "head_dim")
NUMBERS = ("flops", "bytes", "intensity", "ridge", "attainable_tflops", "time_us")
COLUMNS = (*WORDS, *SIZES, "flops", "bytes", "intensity", "ridge", "bound", "attainable_tflops", "time_us")
CODE_RELATIVE = 1e-9
FILE_RELATIVE = 1e-5
"""Numbers of a file may be rounded to six digits."""

SHAPES = (
    Shape(32, 16, 16, 512, 512, 128),
    Shape(8, 16, 16, 2048, 2048, 128),
    Shape(1, 16, 16, 16384, 16384, 128),
    Shape(8, 32, 32, 2048, 2048, 64),
    Shape(4, 32, 8, 256, 8192, 128),
    Shape(16, 32, 32, 1, 16384, 128),
    Shape(16, 32, 8, 1, 16384, 128),
    Shape(16, 64, 8, 1, 16384, 128),
)
SWEEP = (
    ("bfloat16", False, "forward"),
    ("bfloat16", True, "forward"),
    ("bfloat16", True, "backward"),
    ("float32", True, "forward"),
)
GRID: tuple[Case, ...] = tuple(
    Case(shape, algorithm, dtype, causal, direction)
    for dtype, causal, direction in SWEEP
    for shape in SHAPES
    for algorithm in ALGORITHMS
)
"""The rows of table.csv; the student's copy is in the provided course_types."""

STALE = Diagnosis(
    id="table-stale", text="The file holds numbers that your code doesn't give. Run the notebook again, from the top."
)
INVERTED = Diagnosis(id="intensity-inverted", text="Your intensity is bytes over FLOPs; it's FLOPs over bytes.")
COMPUTE_TIME = Diagnosis(
    id="time-without-memory", text="Your time is FLOPs over the peak, for rows too that memory limits."
)
MEMORY_TIME = Diagnosis(
    id="time-without-compute", text="Your time is bytes over the bandwidth, for rows too that arithmetic limits."
)
SUMMED_TIME = Diagnosis(id="times-added", text="Your time is the sum of arithmetic and memory; they overlap.")
ROW_ORDER = Diagnosis(
    id="table-order", text="The rows aren't in order: two a shape, standard before flash, in the order of the shapes."
)

Row = dict[str, Any]


class TableError(ValueError):
    """The table can't be read or isn't the one asked for; the message is for the student."""


def expected_row(case: Case, card: Gpu) -> Row:
    """The row of one case, from the judge's own count."""
    flops, moved = EXACT.flops(case), EXACT.bytes(case)
    intensity = flops / moved
    return {
        "profile": card.name,
        "algorithm": case.algorithm,
        "dtype": case.dtype,
        "causal": "yes" if case.causal else "no",
        "direction": case.direction,
        **vars(case.shape),
        "flops": int(flops),
        "bytes": int(moved),
        "intensity": intensity,
        "ridge": card.ridge(case.dtype),
        "bound": card.bound(intensity, case.dtype),
        "attainable_tflops": card.attainable(intensity, case.dtype),
        "time_us": card.time_us(flops, moved, case.dtype),
    }


def checked_row(row: object, place: str) -> Row:
    """A row's cells as text and numbers.

    Raises:
        TableError: a column is missing, or a cell is no number where one belongs.
    """
    if not isinstance(row, Mapping):
        raise TableError(f"{place} is a {type(row).__name__}, expected a dict")
    missing = [name for name in COLUMNS if row.get(name) is None]
    if missing:
        raise TableError(f"{place} lacks {', '.join(missing)}")
    cells: Row = {name: row[name] for name in (*WORDS, "bound")}
    for name, value in cells.items():
        if not isinstance(value, str):
            raise TableError(f"{place}: `{name}` is a {type(value).__name__}, expected text")
    for name in (*SIZES, *NUMBERS):
        cells[name] = _positive(row[name])
        if cells[name] is None:
            shown = repr(row[name][:30]) if isinstance(row[name], str) else f"a {type(row[name]).__name__}"
            raise TableError(f"{place}: `{name}` is {shown}, expected a positive number")
    return cells


def _positive(value: object) -> float | None:
    """A positive finite number, as a number or as a CSV cell; None for anything else."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, (int, float, str)):
        return None
    try:
        number = float(plain)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number > 0 else None


def run_table(
    submission: Submission, judge: Judge, shapes: Sequence[Shape], card: Gpu, options: dict[str, Any]
) -> list[Row]:
    """What `intensity_table` returns, as checked rows; ends the check when it isn't a list of such."""
    result = submission.call("table", [shape.sizes() for shape in shapes], card.wire(), options, module=CALLS)
    if not isinstance(result, list):
        judge.contract(f"intensity_table returned {type(result).__name__}, expected a list of dicts.")
    if len(result) != 2 * len(shapes):
        judge.fail(f"intensity_table returned {len(result)} rows for {len(shapes)} shapes; expected two a shape.")
    try:
        return [checked_row(row, f"row {place} of intensity_table") for place, row in enumerate(result, start=1)]
    except TableError as error:
        judge.fail(f"{error}.")


def judge_rows(judge: Judge, rows: Sequence[Row], cases: Sequence[Case], card: Gpu, what: str, relative: float) -> None:
    """Hold rows, in the order of `cases`, to the judge's own."""
    expected = [expected_row(case, card) for case in cases]
    if [_key(row) for row in rows] != [_key(row) for row in expected]:
        reordered = sorted(map(_key, rows)) == sorted(map(_key, expected))
        judge.fail(f"{what}: the rows aren't those asked for.", diagnosis=ROW_ORDER if reordered else None)
    wrong = [
        name
        for name in (*NUMBERS, "bound")
        if not all(_agree(row[name], right[name], relative) for row, right in zip(rows, expected, strict=True))
    ]
    judge.measure("wrong_columns", len(wrong))
    if wrong:
        diagnosis = _diagnose(wrong[0], rows, cases, card, relative)
        judge.fail(f"{what}: {', '.join(wrong)} are not what the definitions give.", diagnosis=diagnosis)


def _key(row: Row) -> tuple[str, ...]:
    return (*(str(row[name]) for name in WORDS), *(str(int(row[name])) for name in SIZES))


def _agree(a: float | str, b: float | str, relative: float) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= relative * max(abs(a), abs(b))


def _diagnose(column: str, rows: Sequence[Row], cases: Sequence[Case], card: Gpu, relative: float) -> Diagnosis | None:
    """The mistake that explains the first wrong column."""
    got = [row[column] for row in rows]
    if column in ("flops", "bytes"):
        known, right = (FLOPS, EXACT.flops) if column == "flops" else (BYTES, EXACT.bytes)
        mistake = explain(known, cases, got, right)
        return mistake.diagnosis if mistake else None
    guesses: list[tuple[str, Diagnosis, Callable[[Case], float]]] = [
        ("intensity", INVERTED, lambda case: EXACT.bytes(case) / EXACT.flops(case)),
        ("time_us", COMPUTE_TIME, lambda case: _compute_us(case, card)),
        ("time_us", MEMORY_TIME, lambda case: _memory_us(case, card)),
        ("time_us", SUMMED_TIME, lambda case: _compute_us(case, card) + _memory_us(case, card)),
    ]
    for name, diagnosis, value in guesses:
        if name == column and all(_agree(v, value(case), relative) for v, case in zip(got, cases, strict=True)):
            return diagnosis
    return None


def _compute_us(case: Case, card: Gpu) -> float:
    return EXACT.flops(case) / card.peak_tflops[case.dtype] / 1e6


def _memory_us(case: Case, card: Gpu) -> float:
    return EXACT.bytes(case) / card.bandwidth_gbs / 1e3


# The file


def read_csv(raw: bytes) -> list[Row]:
    """Checked rows of table.csv.

    Raises:
        TableError: names the first thing that is wrong.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError("it isn't UTF-8 text") from error
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise TableError(f"its first line must be {','.join(COLUMNS)}")
        rows = [row for row, _ in zip(reader, range(len(GRID) + 1), strict=False)]
    except csv.Error as error:
        raise TableError(f"it isn't a CSV file ({error})") from error
    if len(rows) != len(GRID):
        count = f"more than {len(GRID)}" if len(rows) > len(GRID) else str(len(rows))
        raise TableError(f"it has {count} rows, expected {len(GRID)}: every shape, both algorithms, every SWEEP entry")
    return [checked_row(row, f"line {line}") for line, row in enumerate(rows, start=2)]


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The rows in the order of GRID.

    Raises:
        TableError: a row isn't one of the grid, one is missing, or they name several GPUs.
    """
    names = {row["profile"] for row in rows}
    if len(names) != 1:
        raise TableError(f"it names {len(names)} GPUs in the column `profile`, expected one")
    by_key = {_key(row)[1:]: row for row in rows}
    card = Gpu("", 1.0, dict.fromkeys(("bfloat16", "float32"), 1.0))
    wanted = [_key(expected_row(case, card))[1:] for case in GRID]
    missing = [key for key in wanted if key not in by_key]
    if missing:
        raise TableError(f"the row {' '.join(missing[0])} is missing")
    return [by_key[key] for key in wanted]


def card_of(rows: Sequence[Row], load: Callable[[str], HardwareProfile]) -> Gpu:
    """The card that the table names, with the course's figures.

    Raises:
        TableError: the course has no such card, or none with the dtypes of the sweep.
    """
    name = str(rows[0]["profile"])
    try:
        profile = load(name)
    except UsageError as error:
        raise TableError(f"`profile` is {name[:40]!r}, which isn't a GPU of profiles.toml") from error
    card = gpu_of(profile)
    if not {dtype for dtype, _, _ in SWEEP} <= set(card.peak_tflops):
        raise TableError(f"{card.name} has no bfloat16 peak; choose a GPU of profiles.toml")
    return card


def gpu_of(profile: HardwareProfile) -> Gpu:
    return Gpu(profile.name, profile.bandwidth_gbs, {str(dtype): peak for dtype, peak in profile.peak_tflops.items()})


def judge_reproduced(judge: Judge, rows: Sequence[Row], again: Sequence[Row]) -> None:
    """Hold the file's rows to what the code returns now, row by row."""
    for row, new in zip(rows, again, strict=True):
        for name in (*NUMBERS, "bound"):
            if not _agree(row[name], new[name], FILE_RELATIVE):
                judge.fail(f"table.csv: `{name}` differs from what your code returns.", diagnosis=STALE)


def judge_left_table(judge: Judge, left: bytes | None, shipped: bytes | None) -> None:
    """Hold the table that the notebook left to the grid, and the one that was handed in to it."""
    assert left is not None  # a run without it has failed before
    try:
        rows = ordered(read_csv(left))
    except TableError as error:
        judge.fail(f"the table that the notebook leaves: {error}.")
    try:
        handed_in = ordered(read_csv(shipped)) if shipped is not None else None
    except TableError:
        return  # `table-format` says what is wrong with it
    if handed_in is None:
        return
    if handed_in[0]["profile"] != rows[0]["profile"]:
        judge.fail("table.csv and the notebook name different GPUs.", diagnosis=STALE)
    judge_reproduced(judge, handed_in, rows)


def judge_consistent(judge: Judge, rows: Sequence[Row], shapes: Sequence[Shape], card: Gpu) -> None:
    """Hold rows to what was asked and to one another: whatever the counts are, the rest follows from them."""
    wanted = [_key(expected_row(Case(shape, algorithm), card)) for shape in shapes for algorithm in ALGORITHMS]
    keys = [_key(row) for row in rows]
    if keys != wanted:
        judge.fail(
            "intensity_table: the rows don't name what was asked for, two a shape, standard before flash.",
            diagnosis=ROW_ORDER if sorted(keys) == sorted(wanted) else None,
        )
    for place, row in enumerate(rows, start=1):
        flops, moved, dtype = row["flops"], row["bytes"], row["dtype"]
        follows = {
            "intensity": flops / moved,
            "ridge": card.ridge(dtype),
            "bound": card.bound(flops / moved, dtype),
            "attainable_tflops": card.attainable(flops / moved, dtype),
            "time_us": card.time_us(flops, moved, dtype),
        }
        for name, value in follows.items():
            if not _agree(row[name], value, CODE_RELATIVE):
                judge.fail(
                    f"intensity_table, row {place}: `{name}` is {row[name]}; its FLOPs and bytes give {value}.",
                    diagnosis=INVERTED if _agree(row["intensity"], moved / flops, CODE_RELATIVE) else None,
                )

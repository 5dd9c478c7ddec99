"""lab02's tolerance table: its grid, how the file is read, and what an honest kernel measures at each point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.csv_file import TableError, read_rows
from grader.judge.memo import kept
from grader.judge.precision import numpy_dtype
from grader.judge.softmax.attention import Case, emulate, truth
from grader.judge.softmax.mistakes import Array
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

ERRORS = ("max_error", "rms_error", "lse_error")
COLUMNS = ("dtype", "accumulate", "block", "length", *ERRORS)
DTYPES = ("float16", "bfloat16")
ACCUMULATORS = ("float32", "working")
BLOCKS = (16, 64, 256)
LENGTHS = (128, 512, 2048)
QUERIES = 32
HEAD_DIM = 64
SEED = 2
MAX_FILE_BYTES = 1 << 16

LSE_NOISE = 1e-5
"""Below this an `lse_error` is float32 noise, which differs from machine to machine."""

UNROUNDED = Diagnosis(
    id="oracle-unrounded",
    text="The oracle got the inputs before they were rounded: the error of rounding q, k and v is counted in.",
)
NOT_REPRODUCED = Diagnosis(
    id="table-not-reproduced", text="The file holds numbers that tolerance.py doesn't measure. Run it again."
)

Point = tuple[str, str, int, int]
Table = dict[Point, dict[str, float]]

GRID: tuple[Point, ...] = tuple(
    (dtype, accumulate, block, length)
    for dtype in DTYPES
    for accumulate in ACCUMULATORS
    for block in BLOCKS
    for length in LENGTHS
)


def read_table(raw: bytes) -> Table:
    """The rows of tolerance.csv by grid point.

    Raises:
        TableError: names the first thing that is wrong.
    """
    return table_of(read_rows(raw, COLUMNS, max_bytes=MAX_FILE_BYTES, max_rows=len(GRID)))


def table_of(rows: object) -> Table:
    """Rows, as the CSV or `make_table` gives them, by grid point; every point exactly once.

    Raises:
        TableError: `rows` is no list of dicts, or a cell, a point or the set of points is wrong.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TableError("it is no list of dicts, one a row")
    if len(rows) > len(GRID):
        raise TableError(f"it has more than the {len(GRID)} rows of the grid")
    table: Table = {}
    for number, row in enumerate(rows, start=1):
        try:
            point = (str(row["dtype"]), str(row["accumulate"]), int(row["block"]), int(row["length"]))
            errors = {name: float(row[name]) for name in ERRORS}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TableError(f"row {number} lacks a column or holds text where a number belongs") from error
        if point not in GRID or point in table:
            raise TableError(f"row {number} is not on the grid, or is there twice")
        if any(not math.isfinite(value) or value < 0 for value in errors.values()):
            raise TableError(f"row {number} {point} holds an error that is negative or not finite")
        table[point] = errors
    if len(table) < len(GRID):
        missing = next(point for point in GRID if point not in table)
        raise TableError(f"it has {len(table)} of the {len(GRID)} points of the grid; {missing} is missing")
    return table


def measured_point(result: object) -> dict[str, float]:
    """What `measure` returned, as numbers.

    Raises:
        TableError: it is no dict of the three errors.
    """
    try:
        return {name: float(result[name]) for name in ERRORS}  # type: ignore[index]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise TableError(f"measure must return a dict of numbers with the keys {', '.join(ERRORS)}") from error


def inputs(length: int) -> tuple[Array, Array, Array]:
    """The handout's q, k, v in float64, from the same generator as the starter's `inputs`."""
    rng = np.random.default_rng([SEED, length])
    q, k, v = (rng.standard_normal((rows, HEAD_DIM)) for rows in (QUERIES, length, length))
    return q, k, v


@dataclass(frozen=True)
class Expected:
    """What emulated kernels measure at one point: with P unrounded, and with P in the working dtype.

    Attributes:
        errors: error name → (smaller, larger) of the two kernels.
        unrounded_rms: the larger rms_error if the oracle were given the inputs before rounding (a known mistake).
    """

    errors: dict[str, tuple[float, float]]
    unrounded_rms: float


def expected_at(point: Point) -> Expected:
    """Emulated errors at one point, on the grid or off it."""
    errors, unrounded_rms = kept("tolerance table", point, lambda: _emulated_at(point))
    return Expected(errors, unrounded_rms)


def _emulated_at(point: Point) -> tuple[dict[str, tuple[float, float]], float]:
    """The fields of `Expected`."""
    name, accumulate, block, length = point
    dtype = numpy_dtype(name)
    q, k, v = inputs(length)
    raw_oracle, _ = truth(Case(q, k, v, block))
    case = Case(q.astype(dtype), k.astype(dtype), v.astype(dtype), block)
    oracle = truth(case)
    state = dtype if accumulate == "working" else None
    runs = [emulate(case, weights_dtype=weights, state_dtype=state) for weights in (None, dtype)]
    measured = [errors_of(run, oracle) for run in runs]
    spans = {e: (min(m[e] for m in measured), max(m[e] for m in measured)) for e in ERRORS}
    return spans, max(_relative_rms(o, raw_oracle) for o, _ in runs)


def sample_points(rng: np.random.Generator) -> list[Point]:
    """One point of the grid for each dtype and accumulator; the rest of a table is held to its repetition."""
    groups = [[p for p in GRID if p[:2] == (dtype, way)] for dtype in DTYPES for way in ACCUMULATORS]
    return [group[rng.integers(len(group))] for group in groups]


def errors_of(got: tuple[Array, Array], oracle: tuple[Array, Array]) -> dict[str, float]:
    """The three errors of the handout."""
    return {
        "max_error": float(np.abs(got[0].astype(np.float64) - oracle[0]).max()),
        "rms_error": _relative_rms(got[0], oracle[0]),
        "lse_error": float(np.abs(got[1].astype(np.float64) - oracle[1]).max()),
    }


def _relative_rms(o: Array, oracle: Array) -> float:
    return float(np.sqrt(np.mean((o.astype(np.float64) - oracle) ** 2) / np.mean(oracle**2)))


def implausible(table: Table, expected: Mapping[Point, Expected], factor: float) -> str:
    """The first cell outside `factor` times what emulated kernels measure; empty when all those expected lie inside."""
    for point, spans in expected.items():
        for name, (low, high) in spans.errors.items():
            value = table[point][name]
            if name == "lse_error" and max(value, low) < LSE_NOISE:
                continue
            if not low / factor <= value <= high * factor:
                return f"{name} at {point} is {value:.2e}; kernels of that kind measure {low:.1e} to {high:.1e}"
    return ""


def oracle_was_unrounded(table: Table, expected: Mapping[Point, Expected]) -> bool:
    """Whether the float32 points measure against attention of the inputs before they were rounded."""
    points = [point for point in expected if point[1] == "float32"]
    ratios = [table[point]["rms_error"] / expected[point].unrounded_rms for point in points]
    honest = [table[point]["rms_error"] / expected[point].errors["rms_error"][1] for point in points]
    return bool(points) and min(honest) > 1.25 and all(0.8 < ratio < 1.25 for ratio in ratios)


def unlike(table: Table, again: Table, repeat: float) -> str:
    """The first cell of the file that a new run doesn't repeat; empty when all do.

    An RMS repeats to `repeat`, relatively; a maximum hangs on one element, so it may move three times as far.
    """
    for point, errors in table.items():
        for name, value in errors.items():
            new = again[point][name]
            if name == "lse_error" and max(value, new) < LSE_NOISE:
                continue
            bound = repeat if name == "rms_error" else 3 * repeat
            if not abs(value - new) <= bound * max(value, new):
                return f"{name} at {point} is {value:.3e} in the file and {new:.3e} when tolerance.py runs"
    return ""


def judge_tables(judge: Judge, written: Table, again: Table) -> None:
    """Hold a table to its own repetition and, at sampled points, to emulated kernels."""
    expected = {point: expected_at(point) for point in sample_points(judge.rng())}
    for what, found in (("tolerance.csv", written), ("make_table", again)):
        wrong = implausible(found, expected, judge.thresholds["factor"])
        if wrong or oracle_was_unrounded(found, expected):
            diagnosis = UNROUNDED if oracle_was_unrounded(found, expected) else None
            judge.fail(f"{what}: {wrong or 'the errors are too large'}.", diagnosis=diagnosis)
    different = unlike(written, again, judge.thresholds["repeat"])
    if different:
        judge.fail(f"tolerance.csv: {different}.", diagnosis=NOT_REPRODUCED)

"""lab05's call-path table: its form, its arithmetic, what no table of nested layers can say; and the timing code."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from grader.judge.answers import as_float
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

FILE_NAME = "callpath.csv"
COLUMNS = ("layer", "head_dim", "median_us", "iqr_us", "n", "predicted", "break_even_seqlen")
LAYERS = ("extension", "custom_op", "flash_attn_func")
HEAD_DIMS = (64, 59)
BATCH, HEADS, TFLOPS = 4, 16, 300.0
MAX_BYTES = 1 << 16
RELATIVE = 1e-6
LONGEST_US = 1e9

TEXTS = {
    "prediction-unchecked": "A row has a time although its prediction wasn't found right.",
    "layers-not-nested": "An inner layer is slower than the one that calls it.",
    "break-even-arithmetic": "break_even_seqlen doesn't follow from the row's median.",
    "one-sample": "The spread is zero or there are few samples: calls weren't timed one by one.",
    "unit-wrong": "The times are off by a factor of a thousand: microseconds were asked for.",
    "warmup-timed": "The warm-up calls were timed.",
    "warmup-missing": "No call was made before the timed ones.",
    "mean-for-median": "`median_us` is the mean.",
    "deviation-for-iqr": "`iqr_us` is a standard deviation.",
    "range-for-iqr": "`iqr_us` is the range.",
    "two-flops-a-pair": "The break-even length counts 2 head_dim FLOPs a pair (one product, or half the pairs), not 4.",
}


class TableError(ValueError):
    """callpath.csv can't be read or lacks rows; the message is for the student."""


@dataclass(frozen=True)
class Row:
    layer: str
    head_dim: int
    median_us: float
    iqr_us: float
    n: int
    predicted: str
    break_even_seqlen: int


def read_table(raw: bytes) -> dict[tuple[str, int], Row]:
    """The rows by (layer, head_dim); each of the six exactly once.

    Raises:
        TableError: names the first thing that is wrong.
    """
    if len(raw) > MAX_BYTES:
        raise TableError(f"it is larger than {MAX_BYTES} bytes")
    try:
        reader = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
        columns, cells = tuple(reader.fieldnames or ()), list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError("it isn't a CSV file in UTF-8") from error
    if columns != COLUMNS:
        raise TableError(f"its first line must be {','.join(COLUMNS)}")
    rows: dict[tuple[str, int], Row] = {}
    for number, cell in enumerate(cells, start=2):
        row = _row(number, cell)
        key = (row.layer, row.head_dim)
        if row.layer not in LAYERS or row.head_dim not in HEAD_DIMS or key in rows:
            raise TableError(f"line {number} is of no layer and head_dim of the handout, or is there twice")
        rows[key] = row
    missing = [(layer, dim) for dim in HEAD_DIMS for layer in LAYERS if (layer, dim) not in rows]
    if missing:
        raise TableError(f"it has no row for {missing[0][0]} at head_dim {missing[0][1]}")
    return rows


def _row(number: int, cell: Mapping[str, Any]) -> Row:
    try:
        row = Row(
            layer=str(cell["layer"]),
            head_dim=int(cell["head_dim"]),
            median_us=float(cell["median_us"]),
            iqr_us=float(cell["iqr_us"]),
            n=int(cell["n"]),
            predicted=str(cell["predicted"]),
            break_even_seqlen=int(cell["break_even_seqlen"]),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise TableError(f"line {number} lacks a column or holds text where a number belongs") from error
    if not (0 < row.median_us <= LONGEST_US and 0 <= row.iqr_us <= LONGEST_US):
        raise TableError(f"line {number} holds a time that isn't positive and finite, or is above {LONGEST_US:g} us")
    return row


def judge_rows(judge: Judge, rows: Mapping[tuple[str, int], Row]) -> None:
    """Hold each row to its own arithmetic, and to having been tested and timed call by call."""
    for row in rows.values():
        where = f"{FILE_NAME}, {row.layer} at head_dim {row.head_dim}"
        if row.predicted != "yes":
            _fail(judge, "prediction-unchecked", f"{where}: `predicted` is {row.predicted[:20]!r}.")
        if row.n < judge.thresholds["min_repeats"] or row.iqr_us == 0:
            _fail(judge, "one-sample", f"{where}: n is {row.n}, iqr_us {row.iqr_us:g}.")
        want = break_even(row.median_us, BATCH, HEADS, row.head_dim, TFLOPS)
        if not abs(row.break_even_seqlen - want) <= 1:
            _fail(judge, "break-even-arithmetic", f"{where}: {row.break_even_seqlen}, but its median gives {want}.")


def judge_against(
    judge: Judge, rows: Mapping[tuple[str, int], Row], measured: Mapping[int, Mapping[str, float]]
) -> None:
    """Hold a table to the nesting of its layers, and to what the same calls take here, within a wide factor.

    Args:
        measured: head_dim → layer → median microseconds in a clean worker on this machine.
    """
    for dim in HEAD_DIMS:
        for inner, outer in itertools.pairwise(LAYERS):
            fast, slow = rows[inner, dim], rows[outer, dim]
            if fast.median_us > slow.median_us + max(fast.iqr_us, slow.iqr_us):
                _fail(judge, "layers-not-nested", f"{FILE_NAME}: {inner} takes longer than {outer} at head_dim {dim}.")
    factor = judge.thresholds["machine_factor"]
    ratios = [row.median_us / measured[dim][layer] for (layer, dim), row in rows.items()]
    judge.measure("table_over_here", [round(ratio, 3) for ratio in ratios])
    middle = float(np.median(ratios))
    if 1 / factor <= middle <= factor:
        return
    message = f"{FILE_NAME}: its times and those of the same calls on this machine differ by a factor over {factor:g}."
    for scale in (1e-3, 1e3):
        if 1 / factor <= middle * scale <= factor:
            _fail(judge, "unit-wrong", message)
    judge.fail(message)


def break_even(overhead_us: float, batch: int, heads: int, head_dim: int, tflops: float, flops: float = 4.0) -> int:
    """The shortest length whose kernel (`flops` head_dim a pair) takes `overhead_us`."""
    return math.ceil(math.sqrt(overhead_us * tflops * 1e6 / (flops * batch * heads * head_dim)))


# The timing code


class Timed:
    """A call and a clock that the judge hosts: call number i takes `durations_ns[i]`, and reading the clock takes none.

    Attributes:
        call, clock: to be hosted, each with its method ``__call__``.
        calls: how many calls were made.
    """

    def __init__(self, durations_ns: Sequence[int]) -> None:
        self.call = _Call(self)
        self.clock = _Clock(self)
        self.calls = 0
        self.now_ns = 10**15
        self._durations = list(durations_ns)

    def pass_one(self) -> None:
        """Let one call's time pass; after the last known duration every call takes a second."""
        self.now_ns += self._durations[self.calls] if self.calls < len(self._durations) else 10**9
        self.calls += 1


class _Call:
    def __init__(self, timed: Timed) -> None:
        self._timed = timed

    def __call__(self) -> None:
        self._timed.pass_one()


class _Clock:
    def __init__(self, timed: Timed) -> None:
        self._timed = timed

    def __call__(self) -> int:
        return self._timed.now_ns


def judge_samples(judge: Judge, got: object, durations_ns: Sequence[int], warmup: int, calls: int) -> None:
    """Hold what `time_calls` returned to the durations after the warm-up, one each."""
    want = list(durations_ns[warmup:])
    samples = [int(x) for x in got] if isinstance(got, (list, tuple)) and all(_number(x) for x in got) else None
    if samples == want and calls == len(durations_ns):
        return
    if samples is None:
        judge.contract("time_calls must return a list of numbers.")
    if samples == list(durations_ns[: len(want)]):
        _fail(judge, "warmup-missing", "time_calls: its samples are those of the first calls.")
    if samples == list(durations_ns):
        _fail(judge, "warmup-timed", "time_calls: it returned a sample for every call, warm-up included.")
    if len(set(samples)) == 1:
        _fail(judge, "one-sample", "time_calls: its samples are all equal, where the calls took different times.")
    judge.fail("time_calls: its samples aren't the durations of the timed calls.")


def judge_summary(judge: Judge, samples_ns: Sequence[int], got: object) -> None:
    """Hold `summarise` to the median, the interquartile range and the number of samples."""
    us = np.asarray(samples_ns) / 1000
    first, median, third = (float(x) for x in np.percentile(us, [25, 50, 75]))
    want = {"median_us": median, "iqr_us": third - first, "n": len(us)}
    if not isinstance(got, dict) or set(got) != set(want) or not all(_number(value) for value in got.values()):
        judge.contract("summarise must return a dict of numbers with the keys median_us, iqr_us, n.")
    wrong = [name for name, value in want.items() if not _close(got[name], value)]
    if not wrong:
        return
    known = {
        "unit-wrong": [("median_us", median * 1000), ("median_us", median / 1000)],
        "mean-for-median": [("median_us", float(us.mean()))],
        "deviation-for-iqr": [("iqr_us", float(us.std())), ("iqr_us", float(us.std(ddof=1)))],
        "range-for-iqr": [("iqr_us", float(np.ptp(us)))],
    }
    for diagnosis, values in known.items():
        if any(name in wrong and _close(got[name], value) for name, value in values):
            _fail(judge, diagnosis, f"summarise: {', '.join(wrong)} wrong.")
    judge.fail(f"summarise: {', '.join(wrong)} wrong.")


def judge_break_even(judge: Judge, got: object, overhead_us: float, sizes: Mapping[str, int], tflops: float) -> None:
    """Hold `break_even_seqlen` to the closed form, to within one token of rounding.

    Args:
        sizes: ``batch``, ``heads``, ``head_dim``.
    """
    if not _number(got):
        judge.contract("break_even_seqlen must return a whole number.")
    shape = (sizes["batch"], sizes["heads"], sizes["head_dim"], tflops)
    want = break_even(overhead_us, *shape)
    if abs(int(got) - want) <= 1:  # type: ignore[call-overload]
        return
    if abs(int(got) - break_even(overhead_us, *shape, flops=2.0)) <= 1:  # type: ignore[call-overload]
        _fail(judge, "two-flops-a-pair", "break_even_seqlen: off by the square root of 2.")
    judge.fail("break_even_seqlen: it isn't the length at which 4 batch heads seqlen² head_dim FLOPs take that long.")


def _number(value: object) -> bool:
    plain = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return plain and math.isfinite(as_float(value))


def _close(got: Any, want: float) -> bool:
    return math.isclose(float(got), want, rel_tol=RELATIVE, abs_tol=1e-9)


def _fail(judge: Judge, diagnosis: str, message: str) -> NoReturn:
    judge.fail(message, diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]))

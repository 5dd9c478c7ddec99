"""Reads a benchmark CSV that a student ships: every row tested, timed with its spread, and its arithmetic right.

Nothing is run: the table is held to what follows from its own columns and from the physics of the card that it names.
That refuses a wrong table, and can't tell a right one from one that was made up. So the rule in all labs with a table
of a card's times: where that card isn't there, what isn't refused is pending, until a machine with the card or a person
decides.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from grader.judge.png import PngError, inspect_png
from grader.kernels.closed_forms import attention_flops
from grader.profiles import HardwareProfile, detect
from grader.report.model import Diagnosis
from grader.report.text import one_line

MAX_ROWS = 5000
CPU = "CPU"
"""What `grade bench` writes as the name of the card where there is none."""
MAX_SIZE = 1 << 30
"""Of a shape's numbers."""
MIN_INK, MIN_DISTINCT_ROWS = 0.002, 30


@dataclass(frozen=True)
class Columns:
    """What a table must have.

    Attributes:
        words, numbers: in every row. times: numbers of the rows that passed their test, `rate` and `also_timed` among
            them.
        shown: columns that tell a row from its neighbours, for messages.
        file: the table's name, for messages.
    """

    words: tuple[str, ...]
    numbers: tuple[str, ...]
    rate: str
    shown: tuple[str, ...]
    file: str = "benchmark.csv"
    also_timed: tuple[str, ...] = ()

    @property
    def times(self) -> tuple[str, ...]:
        return ("median_ms", "iqr_ms", "repeats", self.rate, *self.also_timed)


ERRORS = ("max_error", "allowed_error")
FORWARD = Columns(
    words=("kernel", "causal", "dtype", "correct", "gpu"),
    numbers=("batch", "q_heads", "kv_heads", "seqlen", "head_dim", *ERRORS),
    rate="tflops",
    shown=("seqlen", "head_dim", "causal"),
)

CHOICES = {"dtype": ("float16", "bfloat16", "float32"), "causal": ("yes", "no")}
"""Columns of words, where a table has them, and the words that may stand there."""
TEXTS = {
    "benchmark-untested-row": "A row has a time but no passed test at its shape.",
    "benchmark-arithmetic": "A row's rate doesn't follow from its shape and its median.",
    "benchmark-impossible": "A row is faster than the card's peak.",
    "benchmark-incomplete": "The table lacks rows that it must have.",
    "benchmark-malformed": "The table isn't of the form in which the benchmark writes it.",
}


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    thresholds: dict[str, float]

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


class Waiting(Protocol):
    """The part of the judge fixture that `await_card` uses."""

    device: str

    def pending(self, message: str, *, fraction: float = 0.0) -> NoReturn: ...


@dataclass(frozen=True)
class Row:
    """One line of the table; `line` is its number in the file. Times are None in a row that failed its test."""

    columns: Columns
    line: int
    words: dict[str, str]
    numbers: dict[str, float]
    times: dict[str, float] | None

    @property
    def place(self) -> str:
        told = {**self.words, **{name: f"{value:g}" for name, value in self.numbers.items()}}
        shown = ", ".join(f"{name} {told[name]}" for name in self.columns.shown)
        return f"{self.columns.file}:{self.line} ({self.words['kernel']}, {shown})"


def flops_of(row: Row) -> float:
    """FLOPs of a forward row, by exact visible pairs."""
    sizes = {name: int(value) for name, value in row.numbers.items() if name not in ERRORS}
    length, causal = sizes["seqlen"], row.words["causal"] == "yes"
    return attention_flops(sizes["batch"], sizes["q_heads"], length, length, sizes["head_dim"], causal)


def judge_benchmark(
    judge: Judging, text: bytes, kernels: Sequence[str], profiles: Sequence[HardwareProfile], student_kernel: str
) -> list[Row]:
    """Hold a benchmark table to its own arithmetic; its rows.

    Args:
        text: the file's bytes.
        kernels: names that must be there, with a passed test, for every head dimension.
        profiles: cards whose peak is known by the `gpu` column.
        student_kernel: the kernel that needs `min_seqlens` lengths, with and without a causal mask.
    """
    rows = read_table(judge, text, FORWARD)
    for row in rows:
        judge_tested(judge, row)
        judge_rate(judge, row, profiles)
    _judge_coverage(judge, rows, kernels, student_kernel)
    judge.measure("rows", len(rows))
    own = [row.times["tflops"] for row in rows if row.words["kernel"] == student_kernel and row.times]
    judge.measure("best_tflops", max(own))
    return rows


def read_table(judge: Judging, text: bytes, columns: Columns) -> list[Row]:
    """The rows; fails naming the line, the column and what was found."""
    try:
        reader = csv.DictReader(io.StringIO(text.decode("utf-8-sig"), newline=""))
        raw = [row for row, _ in zip(reader, range(MAX_ROWS), strict=False)]
    except (UnicodeDecodeError, csv.Error) as error:
        fail(judge, "benchmark-malformed", f"{columns.file} is not a CSV file in UTF-8: {error}.")
    wanted = (*columns.words, *columns.numbers, *columns.times)
    missing = [name for name in wanted if name not in (reader.fieldnames or ())]
    if missing or not raw:
        what = f"lacks the columns {', '.join(missing)}" if missing else "has no rows"
        fail(judge, "benchmark-malformed", f"{columns.file} {what}. Make it again; what makes it writes them.")
    return [_row(judge, number, cells, columns) for number, cells in enumerate(raw, start=2)]


def _row(judge: Judging, line: int, cells: dict[str, str], columns: Columns) -> Row:
    words = {name: str(cells[name] or "").strip() for name in columns.words}
    timed = words["correct"] == "yes" or any((cells[name] or "").strip() for name in columns.times)
    numbers = {name: _number(judge, f"{columns.file}:{line}", name, cells[name]) for name in columns.numbers}
    for name in columns.numbers:
        if name not in ERRORS and not (1 <= numbers[name] <= MAX_SIZE and numbers[name].is_integer()):
            shown = repr((cells[name] or "")[:40])
            fail(
                judge,
                "benchmark-malformed",
                f"{columns.file}:{line}: `{name}` is {shown}, expected a whole number >= 1.",
            )
    times = (
        {name: _number(judge, f"{columns.file}:{line}", name, cells[name]) for name in columns.times} if timed else None
    )
    row = Row(columns, line, words, numbers, times)
    for name, choices in CHOICES.items():
        if name in words and words[name] not in choices:
            found = f"{row.place}: {name} is {words[name][:40]!r}, expected {' or '.join(choices)}."
            fail(judge, "benchmark-malformed", found)
    if not words["gpu"]:
        fail(judge, "benchmark-malformed", f"{row.place}: gpu is empty, expected the name of the card.")
    if times is not None and times["median_ms"] <= 0:
        fail(judge, "benchmark-malformed", f"{row.place}: median_ms is 0.")
    return row


def _number(judge: Judging, place: str, column: str, cell: str | None) -> float:
    try:
        value = float(cell or "")
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        shown = repr((cell or "")[:40])
        fail(judge, "benchmark-malformed", f"{place}: `{column}` is {shown}, expected a number >= 0.")
    return value


def judge_tested(judge: Judging, row: Row) -> None:
    """Fail unless a row with a time has a passed test and enough repeats."""
    if row.times is None:
        return
    if row.words["correct"] != "yes" or row.numbers["max_error"] > row.numbers["allowed_error"]:
        said = row.words["correct"] or "nothing"
        fail(
            judge,
            "benchmark-untested-row",
            f"{row.place}: has a time, but its test reads correct = {said}, error {row.numbers['max_error']:.3g} of "
            f"{row.numbers['allowed_error']:.3g} allowed. No time without a passed test.",
        )
    if row.times["repeats"] < judge.thresholds["min_repeats"]:
        least = judge.thresholds["min_repeats"]
        fail(
            judge, "benchmark-malformed", f"{row.place}: {row.times['repeats']:g} repeats, expected at least {least:g}."
        )


def judge_rate(judge: Judging, row: Row, profiles: Sequence[HardwareProfile]) -> None:
    """TFLOP/s follow from the shape and the median, and the card can do them."""
    if row.times is None:
        return
    flops = flops_of(row)
    expected = flops / row.times["median_ms"] / 1e9
    if not abs(row.times["tflops"] - expected) <= judge.thresholds["tflops_rel"] * expected:
        fail(
            judge,
            "benchmark-arithmetic",
            f"{row.place}: tflops is {row.times['tflops']:g}, but {flops:.4g} FLOPs in "
            f"{row.times['median_ms']:g} ms are {expected:.4g}. Count 4 head_dim a visible pair.",
        )
    peak = peak_of(row, profiles)
    if peak is not None and expected > peak:
        fail(
            judge,
            "benchmark-impossible",
            f"{row.place}: {expected:.4g} TFLOP/s, more than the {peak:g} that its card can do ({row.words['gpu']}).",
        )


def peak_of(row: Row, profiles: Sequence[HardwareProfile]) -> float | None:
    """Peak TFLOP/s of the card that a row names; the fastest of those that answer to the name, None when none does."""
    peaks = [
        profile.peak_tflops[row.words["dtype"]]
        for profile in profiles
        if row.words["gpu"] in profile.device_names and row.words["dtype"] in profile.peak_tflops
    ]
    return max(peaks, default=None)


def _judge_coverage(judge: Judging, rows: Sequence[Row], kernels: Sequence[str], student_kernel: str) -> None:
    good = [row for row in rows if row.times is not None]
    where = made_on_cpu(rows)
    dims = sorted({int(row.numbers["head_dim"]) for row in rows})
    if len(dims) < 2:
        fail(
            judge,
            "benchmark-incomplete",
            f"benchmark.csv has head_dim {dims} only; expected a sweep over two or more.{where}",
        )
    for dim in dims:
        here = [row for row in good if row.numbers["head_dim"] == dim]
        absent = [name for name in kernels if not any(row.words["kernel"] == name for row in here)]
        if absent:
            fail(
                judge,
                "benchmark-incomplete",
                f"benchmark.csv has no tested row of {', '.join(absent)} at head_dim {dim}.{where}",
            )
        for causal in ("no", "yes"):
            lengths = {
                row.numbers["seqlen"]
                for row in here
                if row.words["kernel"] == student_kernel and row.words["causal"] == causal
            }
            least = judge.thresholds["min_seqlens"]
            if len(lengths) < least:
                fail(
                    judge,
                    "benchmark-incomplete",
                    f"benchmark.csv has {len(lengths)} sequence lengths of {student_kernel} at head_dim {dim}, causal "
                    f"{causal}; expected {least:g} or more.{where}",
                )


def made_on_cpu(rows: Sequence[Row]) -> str:
    """A sentence to end a message with where the table's rows are of a run without a GPU; empty elsewhere."""
    return " It was made without a GPU: make it on one." if all(row.words["gpu"] == CPU for row in rows) else ""


def cards_of(rows: Sequence[Row]) -> list[str]:
    """The cards that a table's times are of, each once."""
    return list(dict.fromkeys(row.words["gpu"] for row in rows if row.times is not None))


def await_card(judge: Waiting, cards: Sequence[str]) -> None:
    """Leave the points of a table that wasn't refused pending unless this machine has the card of its times."""
    gpu = detect().gpu if judge.device == "cuda" else None
    away = [card for card in cards if gpu is None or gpu.name.lower() != card.lower()]
    if away:
        judge.pending(
            f"What can be seen without {one_line(away[0])[:60]!r}, which it names, is right. Pending, not lost: a "
            "machine with that card decides, or your instructor."
        )


def judge_plot(judge: Judging, name: str, data: bytes) -> None:
    """Hold a PNG to being a picture with something in it."""
    try:
        facts = inspect_png(data)
    except PngError as error:
        fail(judge, "benchmark-malformed", f"{name} can't be read as a PNG: {error}.")
    if facts.ink < MIN_INK or facts.distinct_rows < MIN_DISTINCT_ROWS:
        fail(
            judge, "benchmark-malformed", f"{name} is {facts.width} x {facts.height} pixels and shows next to nothing."
        )


def fail(judge: Judging, diagnosis: str, message: str) -> NoReturn:
    """Fail with one of `TEXTS` as the diagnosis."""
    judge.fail(message, diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]))

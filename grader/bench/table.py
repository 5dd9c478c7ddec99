"""The table of a benchmark: its columns, and the CSV file that grows row by row."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from grader.errors import UsageError
from grader.files import replace_text
from grader.judge import benchmark_table
from grader.machine import unwritable

Row = dict[str, str]

SHAPE = {
    "lab06": ("batch", "q_heads", "kv_heads", "seqlen", "head_dim", "causal", "dtype", "direction"),
    "lab07": ("batch", "q_heads", "kv_heads", "seqlen", "head_dim", "causal", "dtype", "direction"),
    "lab08": ("batch", "q_heads", "kv_heads", "context", "head_dim", "page_size", "dtype"),
    "lab09": ("batch", "q_heads", "kv_heads", "seqlen", "head_dim", "causal", "dtype", "direction"),
}
TESTED = ("correct", "max_error", "allowed_error")
TIMES = ("median_ms", "iqr_ms", "repeats", "calls", "tflops", "gbs", "roofline_fraction")
MACHINE = ("device", "gpu", "driver", "torch", "triton", "python", "profile")
HEAT = ("sm_mhz", "power_w", "temperature_c", "throttle_reasons")
"""State of the card after the shape's windows, by the labels of `grader.judge.speed.environment`."""


WORDS = frozenset({"kernel", "causal", "dtype", "direction"})
CHOICES = benchmark_table.CHOICES | {"correct": ("yes", "no"), "direction": ("forward", "backward")}
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]*")
_WHOLE = re.compile(r"[1-9][0-9]{0,8}")


def columns(lab: str) -> tuple[str, ...]:
    """Names of a lab's columns: kernel, shape, test, times, machine, hash of the submission's files, notes."""
    return ("kernel", *SHAPE[lab], *TESTED, *TIMES, "hbm_bytes", *MACHINE, *HEAT, "submission", "note")


def key_of(row: Mapping[str, str], key: Sequence[str]) -> tuple[str, ...]:
    return tuple(row[name] for name in key)


def write(path: Path, lab: str, rows: Iterable[Row]) -> None:
    """Put the whole table in place.

    Raises:
        UsageError: the file can't be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns(lab), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        replace_text(path, text.getvalue())
    except OSError as error:
        raise unwritable(str(path), error, hint="Choose another --out.") from error


def read(path: Path, lab: str) -> list[Row]:
    """The rows of an earlier run; none where there is no file.

    Raises:
        UsageError: the file is of another kind, or a row holds what no run writes: it may have been edited.
    """
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            named = tuple(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} can't be read as a CSV table: {error}.", hint="Leave --resume out.") from error
    if named != columns(lab):
        raise UsageError(
            f"{path} isn't a table of `grade bench {lab}` of this version.", hint="Leave --resume out to start anew."
        )
    for number, row in enumerate(rows, start=1):
        fault = _fault(row, lab)
        if fault:
            raise UsageError(
                f"{path}, row {number}: {fault}.", hint="Remove that row, or leave --resume out to start anew."
            )
    return rows


def _fault(row: Mapping[str | None, object], lab: str) -> str:
    """What is wrong with a row that was read; empty when nothing is."""
    if None in row or None in row.values():
        return f"it has {'more' if None in row else 'fewer'} cells than the header"
    for name, cell in row.items():
        text = str(cell)
        if name in CHOICES and text not in CHOICES[str(name)]:
            return f"{name} is {text!r}, expected {' or '.join(CHOICES[str(name)])}"
        if name in WORDS and not _WORD.fullmatch(text):
            return f"{name} is {text!r}"
        if name in SHAPE[lab] and name not in WORDS and not _WHOLE.fullmatch(text):
            return f"{name} is {text!r}, expected a whole number above 0"
        if name in (*TIMES, "hbm_bytes") and text and not _is_measure(text):
            return f"{name} is {text!r}, expected a number"
    return ""


def _is_measure(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and value >= 0

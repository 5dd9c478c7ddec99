"""benchmark.png: whole, not empty, made of this benchmark.csv, and what `plot.py` draws of it.

Three ties between picture and table: the table's hash in the picture's metadata; what `figure(rows)` draws holds the
table's numbers, and other numbers when it's given another table; and the picture looks like that drawing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from grader.judge.png import SIGNATURE, PngFacts, inspect_png
from grader.judge.precision import Array

FILE, MODULE = "benchmark.png", "plot"
COURSE_MODULE = "graded_figure"
MIN_INK, MAX_INK, MIN_DISTINCT_ROWS, MIN_SIDE = 0.002, 0.6, 30, 300
RELATIVE = 1e-3
GRID = 24
"""The pictures are compared as so many cells a side, each the mean of its pixels' darkness."""
Rows = list[dict[str, str]]


class FigureError(ValueError):
    """The picture, or what draws it, is wrong.

    Attributes:
        kind: ``plot-empty``, ``plot-other-data``, ``plot-unreadable``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Calling(Protocol):
    """The part of a worker that is used here."""

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True)
class Drawn:
    """What a figure holds: every coordinate of what's drawn, and its words."""

    values: Array
    words: int


def look(raw: bytes, table: bytes) -> PngFacts:
    """The picture by itself, and the hash that it carries.

    Raises:
        PngError: it's no whole PNG. FigureError: it shows nothing, or was made of another table.
    """
    facts = inspect_png(raw)
    if min(facts.width, facts.height) < MIN_SIDE:
        raise FigureError("plot-empty", f"{facts.width} x {facts.height} pixels are too few to read")
    if not MIN_INK <= facts.ink <= MAX_INK or facts.distinct_rows < MIN_DISTINCT_ROWS:
        raise FigureError("plot-empty", "it shows nothing that looks like lines and axes")
    wanted = f"benchmark.csv sha256:{hashlib.sha256(table).hexdigest()}"
    texts = _texts(raw)
    if wanted not in texts:
        said = any(text.startswith("benchmark.csv sha256:") for text in texts)
        what = "the hash of another benchmark.csv" if said else "no hash of benchmark.csv (the key Source)"
        raise FigureError("plot-other-data", f"its metadata has {what}; draw it anew from the table")
    return facts


def _texts(raw: bytes) -> list[str]:
    """Values of its tEXt chunks; the chunks were found whole before."""
    found, position = [], len(SIGNATURE)
    while position + 12 <= len(raw):
        length, kind = struct.unpack_from(">I4s", raw, position)
        if kind == b"tEXt":
            found.append(raw[position + 8 : position + 8 + length].partition(b"\0")[2].decode("latin-1"))
        position += 12 + length
    return found


def rows_of(table: bytes) -> Rows:
    """The table as `figure` gets it."""
    return list(csv.DictReader(io.StringIO(table.decode("utf-8-sig"), newline="")))


def drawn(worker: Calling, rows: Rows) -> Drawn:
    """What `plot.figure(rows)` draws.

    Raises:
        FigureError: something else came back. WorkerFailure: it failed.
    """
    told = worker.call("drawn", rows, module=COURSE_MODULE)
    try:
        values = np.asarray(told["values"], dtype=np.float64)
        words = int(told["words"])
    except (TypeError, KeyError, ValueError, OverflowError):
        raise FigureError("plot-unreadable", "what it draws can't be read") from None
    return Drawn(values[np.isfinite(values)], words)


def shown_part(found: Drawn, figures: Sequence[float]) -> float:
    """The part of `figures` that is among what's drawn."""
    wanted = np.asarray(figures)
    if not found.values.size or not wanted.size:
        return 0.0
    near = np.abs(found.values[None] - wanted[:, None]) <= RELATIVE * np.abs(wanted[:, None])
    return float(near.any(axis=1).mean())


def perturbed(rows: Rows, columns: Sequence[str], rng: np.random.Generator) -> Rows:
    """The table with other numbers in some columns, each by a factor of its own."""
    return [
        {
            name: f"{float(text) * rng.uniform(1.1, 1.9):.6g}" if name in columns and text.strip() else text
            for name, text in row.items()
        }
        for row in rows
    ]


def alike(shipped: Array, redrawn: Array) -> float:
    """How much two pictures' grids have in common: their correlation, 1 where they're the same."""
    one, other = (np.asarray(grid, dtype=np.float64).ravel() for grid in (shipped, redrawn))
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum() / size) if size > 0 else 0.0

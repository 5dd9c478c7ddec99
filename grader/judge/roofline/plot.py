"""Judges what `plot_roofline` draws, from the lines and points that its axes hold, and the pictures shipped (lab01)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.judge.png import PngError, inspect_png
from grader.judge.roofline.model import Gpu
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

Array = NDArray[np.float64]

LOOKED_AT = np.array([1 / 8, 1 / 4, 1 / 2, 2, 4, 8])
"""Intensities, in units of the ridge point, at which a roof is looked at."""
MAX_LINES = 60

TEXTS = {
    "plot-linear-axes": "An axis of the plot is linear: on it three quarters of the points lie on top of one another.",
    "plot-axes-swapped": "The plot has intensity on the vertical axis and TFLOP/s on the horizontal one.",
    "plot-points-missing": "Rows of the table have no point in the plot.",
    "plot-roof-unbounded": "The plot's roof rises past the card's peak: it has no ceiling.",
    "plot-roof-flat": "The plot's roof is flat: below the ridge point it falls with the intensity.",
    "plot-one-roof": "The plot has the roof of one dtype only, and the rows have several.",
    "plot-roof-misplaced": "No line of the plot is the roofline of this card.",
    "plot-unlabelled": "The axes don't say what they show, in FLOP/byte and TFLOP/s.",
    "picture-empty": "The picture shows nothing that looks like lines and axes.",
}


class DrawingError(ValueError):
    """What came back isn't a drawing; the message says why."""


@dataclass(frozen=True)
class Drawing:
    """What one pair of axes holds. `lines`: (x, y) of each; `points`: (2, n)."""

    scales: tuple[str, str]
    labels: tuple[str, str]
    lines: list[tuple[Array, Array]]
    points: Array


def read_drawing(told: object) -> Drawing:
    """The drawing that `graded_calls.drawn` reports.

    Raises:
        DrawingError: it's malformed.
    """
    if not isinstance(told, dict):
        raise DrawingError(f"a {type(told).__name__} instead of a drawing")
    try:
        lines = [_pair(item) for item in told["lines"][:MAX_LINES]]
        points = np.stack(_pair(told["points"]))
        scales, labels = (tuple(str(told[f"{axis}{of}"]) for axis in "xy") for of in ("scale", "label"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DrawingError(f"a drawing that can't be read ({type(error).__name__})") from error
    return Drawing((scales[0], scales[1]), (labels[0], labels[1]), lines, points)


def _pair(item: Any) -> tuple[Array, Array]:
    x, y = (np.asarray(part, dtype=np.float64) for part in item)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"coordinates of shapes {x.shape} and {y.shape}")
    return x, y


def judge_drawing(judge: Judge, drawing: Drawing, rows: Sequence[dict[str, Any]], card: Gpu) -> None:
    """Logarithmic axes, a point for each row, a roof for each dtype, labels with units."""
    relative = judge.thresholds["relative"]
    if drawing.scales != ("log", "log"):
        _fail(
            judge, "plot-linear-axes", f"The axes are {drawing.scales[0]} and {drawing.scales[1]}, expected both log."
        )
    wanted = np.array([[row["intensity"], row["attainable_tflops"]] for row in rows]).T
    missing = _missing(wanted, drawing.points, relative)
    judge.measure("points_missing", missing)
    if missing:
        swapped = _missing(wanted, drawing.points[::-1], relative) == 0
        _fail(
            judge,
            "plot-axes-swapped" if swapped else "plot-points-missing",
            f"{missing} of {len(rows)} rows have no point at (intensity, attainable TFLOP/s).",
        )
    dtypes = list(dict.fromkeys(str(row["dtype"]) for row in rows))
    absent = [dtype for dtype in dtypes if not has_roof(drawing, card, dtype, relative)]
    if absent:
        _fail(
            judge, _why_absent(drawing, card, dtypes, absent, relative), f"The roof of {', '.join(absent)} is missing."
        )
    if "byte" not in drawing.labels[0].lower() or "flop" not in drawing.labels[1].lower():
        _fail(judge, "plot-unlabelled", "The axes aren't labelled with their units.")


def _missing(wanted: Array, points: Array, relative: float) -> int:
    """How many of `wanted` (2, n) have no point of `points` (2, m) nearby in both coordinates."""
    total = len(wanted[0])
    if not len(points[0]):
        return total
    near = np.abs(points[:, None, :] - wanted[:, :, None]) <= relative * np.abs(wanted[:, :, None])  # (2, n, m)
    return total - int(np.count_nonzero(np.any(np.all(near, axis=0), axis=1)))


def _height(line: tuple[Array, Array], x: Array) -> Array:
    """Height of a line at `x`, straight on logarithmic axes between its vertices; inf where it doesn't reach."""
    order = np.argsort(line[0], kind="stable")
    xs, ys = line[0][order], line[1][order]
    if len(xs) < 2 or not np.all(np.isfinite([xs, ys])) or xs[0] <= 0 or ys.min() <= 0 or xs[0] == xs[-1]:
        return np.full(len(x), np.inf)
    heights = np.exp(np.interp(np.log(x), np.log(xs), np.log(ys)))
    # Vertices pass through the axes' transform and back, which rounds.
    inside = (x >= xs[0] * (1 - 1e-6)) & (x <= xs[-1] * (1 + 1e-6))
    return np.where(inside, heights, np.inf)


def _near(heights: Array, wanted: Array, relative: float) -> bool:
    return bool(np.all(np.abs(heights - wanted) <= relative * wanted))


def has_roof(drawing: Drawing, card: Gpu, dtype: str, relative: float) -> bool:
    """Whether one line, or the lower of two, is the roof of `dtype` on either side of its ridge point."""
    x = LOOKED_AT * card.ridge(dtype)
    roof = np.array([card.attainable(float(value), dtype) for value in x])
    heights = [_height(line, x) for line in drawing.lines]
    pairs = (np.minimum(a, b) for a, b in itertools.combinations(heights, 2))
    return any(_near(height, roof, relative) for height in itertools.chain(heights, pairs))


def _why_absent(drawing: Drawing, card: Gpu, dtypes: list[str], absent: list[str], relative: float) -> str:
    if len(absent) < len(dtypes):
        return "plot-one-roof"
    x = LOOKED_AT * card.ridge(absent[0])
    shapes = (
        ("plot-roof-unbounded", x * card.bandwidth_gbs / 1e3),
        ("plot-roof-flat", np.full(len(x), card.peak_tflops[absent[0]])),
    )
    for name, heights in shapes:
        if any(_near(_height(line, x), heights, relative) for line in drawing.lines):
            return name
    return "plot-roof-misplaced"


def judge_picture(judge: Judge, name: str, data: bytes | None) -> None:
    """Hold a PNG to being a whole picture of sufficient size that is neither blank nor noise."""
    if data is None:
        judge.fail(f"{name} is missing. Run the notebook in the lab's folder and hand the file in.")
    try:
        facts = inspect_png(data)
    except PngError as error:
        judge.fail(f"{name} can't be read: {error}.")
    need = judge.thresholds
    if facts.width < need["min_width"] or facts.height < need["min_height"]:
        judge.fail(f"{name} is {facts.width} x {facts.height} pixels; too small to read.")
    if facts.distinct_rows < need["min_rows"] or not need["min_ink"] <= facts.ink <= need["max_ink"]:
        _fail(judge, "picture-empty", f"{name} shows nothing that looks like lines and axes.")


def _fail(judge: Judge, diagnosis: str, message: str) -> None:
    judge.fail(message, diagnosis=Diagnosis(id=diagnosis, text=TEXTS[diagnosis]))

"""The pictures of a student's page: roofline, traffic bars, error maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grader.pages.svg import Drawing
from grader.profiles import DType, HardwareProfile
from grader.report.error_map import LEVELS, level, pooled
from grader.report.model import ErrorMap
from grader.report.moved import Moved
from grader.report.timings import Timed

WIDTH, HEIGHT = 640.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 600.0, 34.0, 350.0
ROOF_DTYPE: DType = "float16"
"""The dtype of the course's attention kernels."""

MAP_CELLS = 48
BAR_HEIGHT, BAR_ROW = 14.0, 62.0


@dataclass(frozen=True)
class Point:
    """One call on the roofline: FLOPs a byte, TFLOP/s."""

    label: str
    intensity: float
    tflops: float
    measured: bool

    @property
    def text(self) -> str:
        how = "measured" if self.measured else "the most that its counted bytes allow"
        return f"{self.label}: {self.tflops:.3g} TFLOP/s at {self.intensity:.3g} FLOP/byte, {how}"


@dataclass(frozen=True)
class Roofline:
    """The picture, and the same points as text."""

    drawing: Drawing
    points: tuple[Point, ...]


def points_of(profile: HardwareProfile, timed: Sequence[Timed], counted: Sequence[Moved]) -> list[Point]:
    """Timed shapes where they were seen; counted calls on the roof, at the intensity of the bytes that they moved."""
    found = [
        Point(shape.label, shape.intensity, shape.tflops, True)
        for shape in timed
        if shape.intensity and shape.tflops and shape.intensity > 0 and shape.tflops > 0
    ]
    for call in counted:
        if call.intensity:
            roof = profile.attainable_tflops(call.intensity, _dtype(profile))
            found.append(Point(call.label, call.intensity, roof, False))
    return found


def _dtype(profile: HardwareProfile) -> DType:
    return ROOF_DTYPE if ROOF_DTYPE in profile.peak_tflops else next(iter(profile.peak_tflops))


def roofline(profile: HardwareProfile | None, timed: Sequence[Timed], counted: Sequence[Moved]) -> Roofline | None:
    """Log-log, with the profile's roof; None without a profile or a point."""
    points = points_of(profile, timed, counted) if profile is not None else []
    if profile is None or not points:
        return None
    dtype = _dtype(profile)
    ridge = profile.ridge_point(dtype)
    intensities, rates = [p.intensity for p in points], [p.tflops for p in points]
    x_low, x_high = _decades(min(*intensities, ridge / 10), max(*intensities, ridge * 10))
    y_low, y_high = _decades(min(*rates, profile.attainable_tflops(10**x_low, dtype)), max(*rates, profile.peak(dtype)))

    def place(intensity: float, tflops: float) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * (math.log10(intensity) - x_low) / (x_high - x_low)
        return x, BOTTOM - (BOTTOM - TOP) * (math.log10(tflops) - y_low) / (y_high - y_low)

    drawing = Drawing(
        WIDTH, HEIGHT, f"Roofline of {profile.title}, {dtype}", "; ".join(point.text for point in points) + "."
    )
    for decade in range(x_low, x_high + 1):
        x, _ = place(10.0**decade, 10.0**y_low)
        drawing.line(x, TOP, x, BOTTOM, "grid")
        drawing.text(x, BOTTOM + 18, f"{10.0**decade:g}", anchor="middle", css_class="tick")
    for decade in range(y_low, y_high + 1):
        _, y = place(10.0**x_low, 10.0**decade)
        drawing.line(LEFT, y, RIGHT, y, "grid")
        drawing.text(LEFT - 6, y + 4, f"{10.0**decade:g}", anchor="end", css_class="tick")
    ends = (10.0**x_low, ridge, 10.0**x_high)
    drawing.path([place(x, profile.attainable_tflops(x, dtype)) for x in ends], "roof")
    drawing.text((LEFT + RIGHT) / 2, HEIGHT - 8, "FLOP/byte", anchor="middle")
    drawing.text(4, 16, "TFLOP/s")
    for point in points:
        x, y = place(point.intensity, point.tflops)
        drawing.circle(x, y, 7, "dot" if point.measured else "ring", title=point.text)
    return Roofline(drawing, tuple(points))


def _decades(low: float, high: float) -> tuple[int, int]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def traffic(counted: Sequence[Moved]) -> Drawing:
    """Two bars a call: what moved and what the closed form has."""
    most = max(max(call.moved_bytes, call.bound_bytes) for call in counted)
    description = " ".join(
        f"{call.label}: {call.moved_bytes:.4g} bytes moved, bound {call.bound_bytes:.4g}." for call in counted
    )
    drawing = Drawing(WIDTH, BAR_ROW * len(counted) + 4, "Bytes moved against the bound", description)
    for row, call in enumerate(counted):
        top = BAR_ROW * row
        times = call.moved_bytes / call.bound_bytes
        drawing.text(16, top + 18, f"{call.label}: {times:.3g} times the bound")
        for offset, (value, css_class) in enumerate(((call.moved_bytes, "bar"), (call.bound_bytes, "bound"))):
            y = top + 24 + offset * (BAR_HEIGHT + 2)
            title = f"{'moved' if css_class == 'bar' else 'bound'}: {value:.6g} bytes"
            drawing.rect(16, y, (RIGHT - 16) * value / most, BAR_HEIGHT, css_class, title=title)
    return drawing


def error_map(found: ErrorMap) -> Drawing:
    """The tiles of an output, shaded by how far they are off; a coarser cell shows the worst that it covers."""
    levels = pooled(found.cells, MAP_CELLS, MAP_CELLS)
    flat = [level(cell) for row in found.cells for cell in row]
    counts = ", ".join(f"{flat.count(number)} {words}" for number, words in enumerate(LEVELS) if number in flat)
    columns = max((len(row) for row in levels), default=1)
    side = min(24.0, (RIGHT - LEFT) / columns)
    height = 28 + side * max(len(levels), 1) + 4
    drawing = Drawing(
        WIDTH,
        height,
        f"Where the output is wrong: {found.title}",
        f"{found.row_axis} down, {found.col_axis} across. Tiles by error over what is allowed: {counts or 'none'}.",
    )
    drawing.text(LEFT, 18, f"{found.col_axis} across, {found.row_axis} down")
    for down, row in enumerate(levels):
        for across, cell in enumerate(row):
            drawing.rect(LEFT + side * across, 28 + side * down, side, side, f"cell level{cell}", title=LEVELS[cell])
    return drawing

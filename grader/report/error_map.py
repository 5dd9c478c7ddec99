"""Draws an error map: one character a tile, darker where the error is larger."""

from __future__ import annotations

import math

from rich.text import Text

from grader.report.model import ErrorMap
from grader.report.text import one_line

MAX_ROWS = 16
MAX_COLUMNS = 48

_BOUNDS = (1.0, 10.0, 100.0)
_SHADED = ("·", "░", "▒", "▓", "█")
_PLAIN = (".", "-", "+", "#", "!")
_STYLES = ("dim", "yellow", "dark_orange", "red", "bold magenta")
LEVELS = ("allowed", "up to 10x", "up to 100x", "more", "not finite")


def level(cell: float) -> int:
    """0 within tolerance, 1 to 3 by decades above it, 4 where a value isn't finite or should not have been."""
    if not math.isfinite(cell):
        return 4
    return sum(cell > bound for bound in _BOUNDS)


def pooled(cells: list[list[float]], rows: int, columns: int) -> list[list[int]]:
    """Levels on a grid of at most `rows` by `columns`; a coarser cell shows the worst level that it covers."""
    height = len(cells)
    width = max((len(row) for row in cells), default=0)
    if not height or not width:
        return []
    down, across = -(-height // rows), -(-width // columns)
    pooled_levels = []
    for top in range(0, height, down):
        band = cells[top : top + down]
        pooled_levels.append(
            [
                max(level(cell) for row in band for cell in row[left : left + across] or [0.0])
                for left in range(0, width, across)
            ]
        )
    return pooled_levels


def draw(error_map: ErrorMap, *, shaded: bool, max_columns: int = MAX_COLUMNS) -> list[Text]:
    """Lines of the picture: what is shown, the tiles, the legend of the characters that appear."""
    levels = pooled(error_map.cells, MAX_ROWS, max_columns)
    if not levels:
        return []
    height, width = len(error_map.cells), max(len(row) for row in error_map.cells)
    # A drawn cell may cover several tiles of the map.
    down = error_map.tile[0] * -(-height // MAX_ROWS)
    across = error_map.tile[1] * -(-width // max_columns)
    rows, columns = one_line(error_map.row_axis, max_characters=40), one_line(error_map.col_axis, max_characters=40)
    glyphs = _SHADED if shaded else _PLAIN
    lines = [
        Text(
            f"{one_line(error_map.title, max_characters=80)}: {rows} down, {columns} across, {down} x {across} a cell"
        ),
    ]
    for row in levels:
        line = Text("  ")
        for cell in row:
            line.append(glyphs[cell], style=_STYLES[cell])
        lines.append(line)
    seen = sorted({cell for row in levels for cell in row})
    legend = Text("  error / allowed: ", style="dim")
    for position, cell in enumerate(seen):
        legend.append(("  " if position else "") + glyphs[cell], style=_STYLES[cell]).append(f" {LEVELS[cell]}")
    lines.append(legend)
    return lines

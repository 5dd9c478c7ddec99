"""A plot a lab: each profile is a line, each entry a dot at its value."""

from __future__ import annotations

from collections.abc import Sequence

from grader.leaderboard.model import Board
from grader.pages.svg import Drawing

WIDTH, LEFT, RIGHT, ROW = 640.0, 16.0, 624.0, 62.0

METRICS = {"ratio_to_baseline": "times the baseline's speed", "points": "points"}


def plot(boards: Sequence[Board]) -> Drawing:
    """All boards of one lab."""
    drawing = Drawing(WIDTH, ROW * len(boards) + 8, f"Entries of {boards[0].lab}", _description(boards))
    for row, board in enumerate(boards):
        top = ROW * row
        values = [entry.value for entry in board.entries]
        most = max(1.0, *values) if board.metric.name == "ratio_to_baseline" else 100.0
        drawing.open_group(profile=board.profile)
        drawing.text(LEFT, top + 16, f"{board.profile}, {METRICS[board.metric.name]}")
        drawing.line(LEFT, top + 36, RIGHT, top + 36, "axis")
        for value in (0.0, most / 2, most):
            x = LEFT + (RIGHT - LEFT) * value / most
            drawing.line(x, top + 31, x, top + 41, "axis")
            anchor = "start" if not value else "end" if value == most else "middle"
            drawing.text(x, top + 56, f"{value:.3g}", anchor=anchor, css_class="tick")
        for entry in reversed(board.entries):
            x = LEFT + (RIGHT - LEFT) * max(entry.value, 0.0) / most
            drawing.circle(x, top + 36, 6, "dot", title=f"{entry.rank}. {entry.name}: {entry.value:g}")
        drawing.close_group()
    return drawing


def _description(boards: Sequence[Board]) -> str:
    return " ".join(
        f"{board.profile}: {len(board.entries)} entries, the best {board.entries[0].value:g} "
        f"{METRICS[board.metric.name]}, the last {board.entries[-1].value:g}."
        for board in boards
    )

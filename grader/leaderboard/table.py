"""The leaderboard in a terminal: plain text in rich tables, no markup parsed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from grader.leaderboard.model import Board, Leaderboard
from grader.leaderboard.plot import METRICS


def tables(leaderboard: Leaderboard) -> Iterator[Table]:
    """One a board."""
    for board in leaderboard.boards:
        yield _table(board)


def _table(board: Board) -> Table:
    title = Text(f"{board.lab[:5]}  {board.title}: {board.profile}, by {METRICS[board.metric.name]}", style="bold")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("name", overflow="fold")
    table.add_column("value", justify="right")
    for name in ("points", "submitted", "gpu", "isolation", "verified", "submission"):
        table.add_column(name)
    for entry in board.entries:
        table.add_row(
            str(entry.rank),
            Text(entry.name),
            f"{entry.value:g}",
            f"{entry.points:g}/{entry.gradable_points:g}",
            "-" if entry.submitted_at is None else f"{entry.submitted_at:%Y-%m-%d %H:%M}",
            Text(entry.gpu or "-"),
            entry.isolation,
            "yes" if entry.verified else "no",
            entry.submission[:12],
        )
    return table

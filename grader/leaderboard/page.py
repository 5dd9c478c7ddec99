"""The leaderboard as one static page: sortable tables, a filter by profile, a plot a lab."""

from __future__ import annotations

from itertools import groupby

from grader.leaderboard.model import Leaderboard
from grader.leaderboard.plot import METRICS, plot
from grader.pages.environment import render


def page(leaderboard: Leaderboard) -> str:
    """A self-contained HTML page, the same bytes for the same leaderboard."""
    labs = []
    for lab, group in groupby(leaderboard.boards, key=lambda board: board.lab):
        boards = list(group)
        labs.append({"id": lab[:5], "title": boards[0].title, "boards": boards, "plot": plot(boards)})
    return render(
        "leaderboard.html.j2",
        style=("base.css", "leaderboard.css"),
        script="leaderboard.js",
        course=leaderboard.course,
        time=leaderboard.time,
        labs=labs,
        profiles=sorted({board.profile for board in leaderboard.boards}),
        metrics=METRICS,
    )

"""Autolab: one line of JSON, the last that the autograding script prints.

Format: https://docs.autolabproject.com/lab/ (Writing Autograders): `scores` by problem, `scoreboard` a list.
"""

from __future__ import annotations

from grader.report.exports.canonical import dumps_line
from grader.report.model import Report
from grader.report.verdict import by_kind


def autolab(report: Report) -> str:
    """Points by kind of check, so the lab's problems in Autolab are named ``correctness``, ``numerics`` and so on.

    A kind of which nothing was gradable is left out: Autolab then keeps that problem ungraded.
    """
    decided = {kind: tally for kind, tally in by_kind(report).items() if tally.gradable}
    scores = {str(kind): tally.points for kind, tally in decided.items()}
    return dumps_line({"scores": scores, "scoreboard": [report.score.points]}) + "\n"

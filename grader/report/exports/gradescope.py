"""Gradescope's `results.json`.

Format: https://gradescope-autograders.readthedocs.io/en/latest/specs/ (Output format).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grader.report.eligibility import ineligible
from grader.report.exports.canonical import dumps
from grader.report.exports.disclosure import FAILED, Disclosed, disclose, headline
from grader.report.model import Report, Status
from grader.report.text import clean
from grader.report.timings import mean_ratio

PUBLIC, HIDDEN = "visible", "after_published"


@dataclass(frozen=True)
class Adjustment:
    """What lateness and people made of a report's score.

    Attributes:
        score: what counts.
        automatic: what it would be without overrides; None while points are pending.
        notes: lines for the student.
    """

    score: float
    automatic: float | None
    notes: tuple[str, ...] = ()


def gradescope(report: Report, adjustment: Adjustment | None = None) -> str:
    """The whole document. Points that nobody has decided carry no score, so that they never read as lost."""
    output, score, extra = headline(report), report.score.points, provenance(report)
    if adjustment is not None:
        output = "\n".join([output, *(clean(note) for note in adjustment.notes)])
        score = adjustment.score
        extra |= {"points_before_adjustment": report.score.points, "automatic": adjustment.automatic}
    tests = [row(shown) for shown in disclose(report)]
    document = results(tests, score=score, duration_s=report.duration_s, output=output, extra=extra)
    ratio = mean_ratio(report)
    if ratio is not None and not ineligible(report):
        # Not the points: Gradescope shows its leaderboard at once, and hidden points aren't published yet.
        document["leaderboard"] = [{"name": "Times the baseline's speed", "value": round(ratio, 4)}]
    return dumps(document)


def refused(message: str, score: float) -> str:
    """The document of a submission that couldn't be graded, with the score that the course's policy gives it."""
    return dumps(results([], score=score, duration_s=0.0, output=clean(message), extra={"outcome": "refused"}))


def results(
    tests: list[dict[str, Any]], *, score: float, duration_s: float, output: str, extra: dict[str, Any]
) -> dict[str, Any]:
    """A document from its tests; also for one that is rewritten as checks end."""
    return {
        "score": round(score, 6),
        "execution_time": round(duration_s, 3),
        "output": output,
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": PUBLIC,
        "stdout_visibility": "hidden",
        "extra_data": extra,
        "tests": tests,
    }


def row(shown: Disclosed) -> dict[str, Any]:
    """One row. `status` says passed or failed only where that is decided."""
    table: dict[str, Any] = {
        "name": shown.name,
        "name_format": "text",
        "number": str(shown.number),
        "output": shown.text,
        "output_format": "text",
        "tags": [str(shown.kind), "hidden" if shown.hidden else "public"],
        "visibility": HIDDEN if shown.hidden else PUBLIC,
        "extra_data": {"status": str(shown.status)},
    }
    if not shown.at_stake:
        return table
    table |= {"score": round(shown.points, 6), "max_score": shown.at_stake}
    if shown.status is Status.PASS:
        table["status"] = "passed"
    elif shown.status in FAILED and shown.points < shown.max_points:
        table["status"] = "failed"
    return table


def provenance(report: Report) -> dict[str, Any]:
    return {
        "lab": report.lab.id,
        "submission_sha256": report.submission.sha256,
        "grader_sha256": report.hashes.grader,
        "lab_sha256": report.hashes.lab,
        "isolation": report.isolation.level,
        "gradable": report.score.gradable,
        "total": report.score.total,
    }

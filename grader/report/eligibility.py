"""Whether a report may stand on a leaderboard."""

from __future__ import annotations

from grader.report.model import CheckResult, Kind, Report, Status

_RIGHTNESS = frozenset({Kind.CORRECTNESS, Kind.NUMERICS, Kind.INTEGRITY})
_NOT_WRONG = frozenset({Status.PASS, Status.SKIPPED, Status.PENDING})
_IN_BAND = frozenset({Status.PASS, Status.NOISY, Status.SKIPPED, Status.PENDING})
"""Ends of a speed check that say how fast, not that something went wrong."""
_SETTLED = frozenset({"ratio", "fraction"})
"""What a speed check measures once all timed outputs were right; a failure without it is a wrong answer."""


def ineligible(report: Report) -> str:
    """Why a report can't be ranked; empty when it can."""
    if report.isolation.level not in ("sealed", "uid"):
        return f"graded at isolation level {report.isolation.level}"
    if report.selection:
        return "only some checks were selected"
    hidden = [check for check in report.checks if check.hidden]
    if report.public_only or all(check.status is Status.SKIPPED for check in hidden):
        return "no hidden check ran"
    if any(check.status is Status.SUSPECT for check in report.checks):
        return "a result is held for review"
    if any(check.status is Status.ERROR for check in report.checks):
        return "the grader failed on a check"
    if not all(_passed(check) for check in hidden):
        return "a hidden check didn't pass"
    if any(check.kind in _RIGHTNESS and check.status not in _NOT_WRONG for check in report.checks):
        return "a public answer is wrong"
    return ""


def _passed(check: CheckResult) -> bool:
    if check.kind is not Kind.SPEED:
        return check.status in _NOT_WRONG
    if check.status is Status.FAIL:
        return not _SETTLED.isdisjoint(check.measured)
    return check.status in _IN_BAND

"""What a report means: the exit code, the first thing to fix, what stops at the same problem, what wasn't gradable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from grader.errors import ExitCode
from grader.report.model import CheckResult, Kind, Report, Status, Tally, tally
from grader.report.text import one_line

NOT_SELECTED = "not selected"
"""The message of a check that -k left out."""

_UNTROUBLED = frozenset({Status.PASS, Status.SKIPPED})

_STATUS_RANK = {Status.PENDING: 1, Status.NOISY: 2, Status.SUSPECT: 3, Status.ERROR: 4}
"""A pending or noisy timing, a held result and the grader's own failure come after anything that can be mended."""

_KIND_RANK = {
    kind: rank
    for rank, kind in enumerate(
        (Kind.CORRECTNESS, Kind.NUMERICS, Kind.INTEGRITY, Kind.TRAFFIC, Kind.CODEGEN, Kind.SPEED, Kind.ARTIFACT)
    )
}
_DEPTH = {Kind.CORRECTNESS: 0, Kind.NUMERICS: 0, Kind.SPEED: 2, Kind.ARTIFACT: 2}
"""Values come first. What is moved and compiled may be off because they are, times and tables because of either."""
_EPSILON = 1e-9
_LINE = re.compile(r"[\w./-]+\.py:\d+")
_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)\b")
_CASES = re.compile(r" ?\(\d+ of \d+ cases\.\)")


def exit_code(report: Report) -> ExitCode:
    """3 when any check ended in the grader's own error, 2 when nothing was gradable, else 0 or 1 by points."""
    if any(check.status is Status.ERROR for check in report.checks):
        return ExitCode.INFRASTRUCTURE
    score = report.score
    if score.gradable <= _EPSILON and not pending_points(report.checks):
        return ExitCode.USAGE
    return ExitCode.OK if score.points >= score.gradable - _EPSILON else ExitCode.POINTS_LOST


def pending_points(checks: Iterable[CheckResult]) -> float:
    """Points that wait until somebody has measured the thresholds of this card."""
    return round(sum(check.max_points - check.points for check in checks if check.status is Status.PENDING), 6)


def is_selected(check: CheckResult) -> bool:
    return not (check.status is Status.SKIPPED and check.message == NOT_SELECTED)


def troubled(report: Report) -> list[CheckResult]:
    """Checks that ran and didn't pass, the most useful to mend first.

    An import that fails comes first, since nothing else can work; then what a student can mend before noise, reviews
    and the grader's faults; then wrong values before what may follow from them, what names its cause before what only
    shows a number, correctness before speed, public before hidden, and the order of the lab.
    """
    numbered = [(index, check) for index, check in enumerate(report.checks) if check.status not in _UNTROUBLED]
    return [check for _, check in sorted(numbered, key=lambda item: _urgency(*item))]


def _urgency(index: int, check: CheckResult) -> tuple[int, bool, int, bool, int, bool, int]:
    return (
        _STATUS_RANK.get(check.status, 0),
        check.phase != "import",
        _DEPTH.get(check.kind, 1),
        not _names_its_cause(check),
        _KIND_RANK[check.kind],
        check.hidden,
        index,
    )


def _names_its_cause(check: CheckResult) -> bool:
    """Whether a student reads what is wrong: a known mistake, an exception's line, another end than a wrong result."""
    return check.diagnosis is not None or check.status is not Status.FAIL or exception_site(check.message) is not None


@dataclass(frozen=True)
class Problem:
    """Checks that ended in the same way with the same words, the most useful first."""

    checks: tuple[CheckResult, ...]

    @property
    def first(self) -> CheckResult:
        return self.checks[0]


def problems(report: Report) -> list[Problem]:
    """Troubled checks, grouped by what they say; groups and their members in order of usefulness.

    The same known mistake is one problem wherever it shows, and so is the same exception from the same line: a
    hidden check words it in its own way.
    """
    groups: dict[tuple[str, ...], list[CheckResult]] = {}
    for check in troubled(report):
        message = one_line(check.message, max_characters=2000)
        said = exception_site(message) or ("", _CASES.sub("", message))
        key = ("diagnosis", check.diagnosis.id) if check.diagnosis else said
        groups.setdefault((check.status, *key), []).append(check)
    return [Problem(tuple(checks)) for checks in groups.values()]


def exception_site(message: str) -> tuple[str, str] | None:
    """(``online_softmax.py:42``, ``NotImplementedError``) when a message tells of an exception and its line."""
    line, kind = _LINE.search(message), _EXCEPTION.search(message)
    return (line[0], kind[0]) if line and kind else None


def unwritten_at(check: CheckResult) -> str:
    """The line of a TODO that a check ran into; empty when it failed in another way."""
    line, kind = exception_site(check.message) or ("", "")
    return line if kind == "NotImplementedError" else ""


def by_kind(report: Report) -> dict[Kind, Tally]:
    """Tallies of the kinds that appear, in the order of a scorecard."""
    present = sorted({check.kind for check in report.checks}, key=_KIND_RANK.__getitem__)
    return {kind: tally([check for check in report.checks if check.kind is kind]) for kind in present}


def skipped_points(checks: Iterable[CheckResult]) -> dict[str, float]:
    """Reason → points of the checks that could not run here, in order of appearance.

    A reason's details, in parentheses at its end, are left to a note: they would part what belongs together.
    """
    reasons: dict[str, float] = {}
    for check in checks:
        if check.status is Status.SKIPPED:
            reason = one_line(check.message).partition(" (")[0].rstrip(".")
            reasons[reason] = reasons.get(reason, 0.0) + check.max_points
    return reasons

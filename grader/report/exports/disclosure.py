"""What a student may read of a check: everything of a public one; category and diagnosis of a hidden one.

Every export that a student may come to see goes through `disclose`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from grader.report.model import CheckResult, Kind, Report, Status
from grader.report.text import clean, count_points, one_line

MAX_CHARACTERS = 4000
MAX_LINES = 40

UNDECIDED = frozenset({Status.SKIPPED, Status.SUSPECT, Status.ERROR})
"""Statuses whose points nobody has decided yet: never exported as a zero."""

FAILED = frozenset({Status.FAIL, Status.TIMEOUT, Status.OOM, Status.CRASH, Status.CONTRACT})

_ENDS = {
    Status.PASS: "Passed.",
    Status.FAIL: "Failed.",
    Status.TIMEOUT: "Stopped at its time limit.",
    Status.OOM: "Went over its memory limit.",
    Status.CRASH: "The submission's process crashed.",
    Status.CONTRACT: "The submission broke the contract of its interface.",
    Status.NOISY: "The timing was too noisy to decide in full.",
    Status.PENDING: "Not decided in full on this machine.",
}
_PHASES = {
    "import": "while it was imported",
    "compile": "while it was compiled",
    "call": "while it ran",
    "time": "while it was timed",
    "judge": "",
}


@dataclass(frozen=True)
class Disclosed:
    """One check as a student may read it; every text is clean.

    Attributes:
        number: place in the lab, from 1.
        name: the title of a public check, the category of a hidden one.
        text: what happened, several lines.
    """

    number: int
    id: str
    name: str
    kind: Kind
    hidden: bool
    status: Status
    points: float
    max_points: float
    text: str
    duration_s: float

    @property
    def at_stake(self) -> float:
        """Points that this run decided: none of an undecided check, what it earned of a pending one, else all."""
        if self.status in UNDECIDED:
            return 0.0
        return self.points if self.status is Status.PENDING else self.max_points

    @property
    def pending(self) -> float:
        """Points that are neither earned nor lost."""
        return self.max_points - self.at_stake


def disclose(report: Report, *, instructor: bool = False) -> list[Disclosed]:
    """The checks of a report; see `disclose_checks`."""
    return disclose_checks(report.checks, instructor=instructor)


def disclose_checks(checks: Sequence[CheckResult], *, instructor: bool = False) -> list[Disclosed]:
    """The checks in the order of the lab.

    Args:
        instructor: hidden checks with everything, for a page that students don't get.
    """
    seen: Counter[Kind] = Counter()
    shown = []
    for number, check in enumerate(checks, start=1):
        veiled = check.hidden and not instructor
        name, check_id = one_line(check.title), check.id
        if veiled:
            seen[check.kind] += 1
            name, check_id = f"Hidden {check.kind} check {seen[check.kind]}", f"hidden-{check.kind}-{seen[check.kind]}"
        shown.append(
            Disclosed(
                number=number,
                id=check_id,
                name=name,
                kind=check.kind,
                hidden=check.hidden,
                status=check.status,
                points=check.points,
                max_points=check.max_points,
                text=_veiled_text(check) if veiled else _text(check),
                duration_s=check.duration_s,
            )
        )
    return shown


def _text(check: CheckResult) -> str:
    if check.status is Status.SUSPECT:
        return f"{_held(check)}\n{_cleaned(check.message)}"
    parts = [_cleaned(check.message) or _ENDS[Status.PASS]]
    if check.diagnosis:
        parts.append(f"Diagnosis: {_cleaned(check.diagnosis.text)}")
    if check.status in UNDECIDED:
        parts.append(f"{count_points(check.max_points)} pending.")
    elif check.status is Status.PENDING:
        parts.append(_rest(check))
    return "\n".join(parts)


def _veiled_text(check: CheckResult) -> str:
    """No message: an exception's text, a shape or a count would tell of hidden inputs."""
    if check.status is Status.SUSPECT:
        return _held(check)
    if check.status is Status.ERROR:
        return f"The grader failed here, not you. {count_points(check.max_points)} pending."
    if check.status is Status.SKIPPED:
        # The reason is about the machine or the run, not about the check.
        return f"Not run: {one_line(check.message).rstrip('.')}. {count_points(check.max_points)} pending."
    end = _ENDS[check.status]
    phase = _PHASES.get(check.phase or "judge", "")
    if phase and check.status is not Status.PASS:
        end = f"{end.rstrip('.')} {phase}."
    if check.status is Status.PENDING:
        end = f"{end} {_rest(check)}"
    return f"{end}\nDiagnosis: {_cleaned(check.diagnosis.text)}" if check.diagnosis else end


def _rest(check: CheckResult) -> str:
    return f"{count_points(check.points)} earned, {count_points(check.max_points - check.points)} pending."


def _held(check: CheckResult) -> str:
    return f"Needs review by a person; {count_points(check.max_points)} held until then."


def _cleaned(text: str) -> str:
    return clean(text, max_lines=MAX_LINES, max_characters=MAX_CHARACTERS)


def headline(report: Report) -> str:
    """A line on the public checks; a hidden total would tell what is not published yet."""
    score = report.public_score
    hidden = any(check.hidden for check in report.checks)
    rest = " Hidden checks decide the rest." if hidden else ""
    missing = score.total - score.gradable
    pending = f" {count_points(missing)} could not be graded here and are pending." if missing > 1e-9 else ""
    shown = f"{score.points:g}/{score.gradable:g} points, {score.passed} of {score.checks} checks passed"
    return f"Public checks: {shown}.{pending}{rest}"

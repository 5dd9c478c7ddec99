"""How one test ended, and how the tests of a check make its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from grader.course import CheckSpec, Lab
from grader.report.model import CheckResult, Diagnosis, ErrorMap, Measured, Status

Phase = Literal["import", "compile", "call", "time", "judge"]


@dataclass(frozen=True)
class TestOutcome:
    """One test's verdict.

    Attributes:
        fraction: part of the points, 0 to 1, before the tests of the check are averaged.
        partial: the points were awarded in part; unlike a failure it leaves the other tests' parts standing.
        undecided: the submission is why the test couldn't run, so that what the others found can't pass the check.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    status: Status
    message: str = ""
    fraction: float = 0.0
    partial: bool = False
    undecided: bool = False
    diagnosis: Diagnosis | None = None
    error_map: ErrorMap | None = None
    phase: Phase | None = None
    measured: Measured = field(default_factory=dict)
    duration_s: float = 0.0

    @property
    def severity(self) -> int:
        """Rank when several stages or tests decide; a partial award is the mildest way to lose points."""
        return _PARTIAL if self.partial and self.status is Status.FAIL else _SEVERITY[self.status]


_PARTIAL = 3
_NOISY = 4
_SEVERITY = {
    Status.PASS: 0,
    Status.SKIPPED: 1,
    Status.PENDING: 2,
    Status.NOISY: _NOISY,
    Status.SUSPECT: 5,
    Status.FAIL: 6,
    Status.CONTRACT: 7,
    Status.TIMEOUT: 8,
    Status.OOM: 9,
    Status.CRASH: 10,
    # Last: while the grader itself is at fault nothing about this check is sure.
    Status.ERROR: 11,
}


def combine(check_id: str, spec: CheckSpec, outcomes: list[TestOutcome]) -> CheckResult:
    """The result of a check from its tests' outcomes: the worst decides, partial awards average.

    Of several that are as bad, the first speaks that has a diagnosis: inputs on which two mistakes look alike have
    none, and others tell them apart.

    Tests that couldn't run here are left out; when none could, the check is skipped. So it is, unless it fails, where
    a test couldn't run for the submission's sake.
    """
    if not outcomes:
        raise ValueError(f"check {check_id}: no outcome to combine")
    ran = [outcome for outcome in outcomes if outcome.status is not Status.SKIPPED]
    skipped = [outcome for outcome in outcomes if outcome.status is Status.SKIPPED]
    duration_s = sum(outcome.duration_s for outcome in outcomes)
    if not ran:
        reasons = dict.fromkeys(outcome.message for outcome in skipped)
        return result(check_id, spec, TestOutcome(Status.SKIPPED, "; ".join(reasons), duration_s=duration_s))
    worst = max(ran, key=lambda outcome: (outcome.severity, outcome.diagnosis is not None))
    undecided = next((outcome for outcome in skipped if outcome.undecided), None)
    if undecided is not None and worst.severity <= _NOISY:
        message = f"{undecided.message} ({sum(o.undecided for o in skipped)} of {len(outcomes)} cases.)"
        return result(check_id, spec, TestOutcome(Status.SKIPPED, message, duration_s=duration_s))
    keeps_points = worst.severity <= _NOISY
    fraction = sum(outcome.fraction for outcome in ran) / len(ran) if keeps_points else 0.0
    measured: Measured = {}
    for outcome in (worst, *ran):
        for name, value in outcome.measured.items():
            measured.setdefault(name, value)
    combined = TestOutcome(
        status=worst.status,
        message=_message(worst, ran, skipped),
        fraction=fraction,
        diagnosis=worst.diagnosis,
        error_map=worst.error_map,
        phase=worst.phase,
        measured=measured,
        duration_s=duration_s,
    )
    return result(check_id, spec, combined)


HELD = (
    "Needs review: what this check looks at is right by itself, and another check got other figures when it made them "
    "again, or couldn't have got them. The points are held, and a person looks at both."
)


def held_back(lab: Lab, results: list[CheckResult]) -> list[CheckResult]:
    """The results, with points that would rest on figures which another check found not to be there held for a person.

    Only points that aren't lost already: what failed stays as it is.
    """
    given = {found.diagnosis.id for found in results if found.diagnosis is not None}
    return [
        found.model_copy(update={"status": Status.SUSPECT, "points": 0.0, "message": HELD})
        if found.status in _HOLDABLE and given & set(lab.checks[found.id].withheld_by)
        else found
        for found in results
    ]


_HOLDABLE = frozenset({Status.PASS, Status.NOISY, Status.PENDING})


def _message(worst: TestOutcome, ran: list[TestOutcome], skipped: list[TestOutcome]) -> str:
    parts = [worst.message] if worst.message else []
    lost = sum(outcome.status is not Status.PASS for outcome in ran)
    if lost and len(ran) > 1:
        parts.append(f"({lost} of {len(ran)} cases.)")
    if skipped:
        parts.append(f"{len(skipped)} of {len(ran) + len(skipped)} cases could not run here: {skipped[0].message}")
    return " ".join(parts)


def result(check_id: str, spec: CheckSpec, outcome: TestOutcome) -> CheckResult:
    """`outcome` as the row of the report. A hidden check's error map would show where its inputs are hard."""
    return CheckResult(
        id=check_id,
        title=spec.title,
        kind=spec.kind,
        hidden=spec.hidden,
        status=outcome.status,
        points=spec.points if outcome.status is Status.PASS else round(spec.points * outcome.fraction, 6),
        max_points=spec.points,
        message=outcome.message,
        diagnosis=outcome.diagnosis,
        measured=outcome.measured,
        error_map=None if spec.hidden else outcome.error_map,
        phase=outcome.phase,
        duration_s=outcome.duration_s,
    )

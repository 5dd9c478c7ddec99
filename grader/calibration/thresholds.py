"""A lab's speed thresholds on one card: its reference graded there, its numbers put through the one written rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from grader.calibration import files
from grader.calibration.calibrate import card_here
from grader.course import Course, Lab
from grader.errors import InfrastructureError, UsageError
from grader.judge.plan import Progress
from grader.judge.speed.bands import BAND_NAMES, METRICS, Metric, from_reference
from grader.judge.speed.model import Interval
from grader.profiles import load_profile
from grader.report.model import CheckResult, Kind, Report, Scalar, Status
from grader.session import GradeRequest, grade
from grader.target import choose_target

MAX_HALF_WIDTH = 0.05
"""A reference whose interval is wider than this part of its value, to either side, is no yardstick."""

USABLE = frozenset({Status.PASS, Status.FAIL, Status.PENDING, Status.NOISY})
"""Statuses of a check whose measures count: what decides is how far an interval reaches, not where a band was."""


@dataclass(frozen=True)
class Reference:
    """What the reference reached in one check: metric → value with its interval."""

    check_id: str
    reached: Mapping[Metric, Interval]

    @property
    def numbers(self) -> dict[str, float]:
        """The thresholds that follow."""
        found: dict[str, float] = {}
        for metric, interval in self.reached.items():
            found |= from_reference(interval.value, metric)
        return found

    @property
    def text(self) -> str:
        shown = (f"{metric} {i.value:.3f} ({i.low:.3f} to {i.high:.3f})" for metric, i in self.reached.items())
        return ", ".join(shown)


@dataclass(frozen=True)
class Derived:
    """The thresholds of one lab on one card, and what they rest on."""

    lab_id: str
    profile: str
    references: tuple[Reference, ...]
    comment: str

    @property
    def numbers(self) -> dict[str, dict[str, float]]:
        return {reference.check_id: reference.numbers for reference in self.references}


def speed_checks(lab: Lab) -> list[str]:
    """Ids of the checks that are held to bands.

    Raises:
        UsageError: the lab has none.
    """
    ids = [
        check_id
        for check_id, spec in lab.checks.items()
        if spec.kind is Kind.SPEED and BAND_NAMES & spec.thresholds.keys()
    ]
    if not ids:
        raise UsageError(f"{lab.short_id} has no check of speed with bands, so it has no thresholds to measure.")
    return ids


def measure_thresholds(
    course: Course, lab_name: str, *, submission: Path | None, profile: str | None, progress: Progress
) -> Derived:
    """Grade the reference's speed on the GPU of this machine and derive its thresholds.

    Args:
        submission: in place of the lab's reference.

    Raises:
        UsageError: no GPU or no profile of it, no reference, or no such checks. InfrastructureError: nothing usable
            was measured.
    """
    lab = course.lab(lab_name)
    ids = speed_checks(lab)
    folder = submission or course.solution_dir(lab.id) / "reference"
    if submission is not None and not folder.is_dir():
        raise UsageError(f"--submission {submission}: there is no such folder.", hint="Check the path.")
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no reference to measure; this copy of the course has no solutions.",
            hint="Name a folder with --submission.",
        )
    card_here()
    target = choose_target(course, lab, "cuda", profile)
    if target.speed:
        raise UsageError(f"No thresholds can be measured: {target.speed}.")
    request = GradeRequest(
        course=course, lab_id=lab.id, submission=folder, device="cuda", profile=profile, checks=frozenset(ids)
    )
    return derive(lab, grade(request, progress=progress), ids)


def derive(lab: Lab, report: Report, ids: list[str]) -> Derived:
    """The thresholds that follow from a report on the reference.

    Raises:
        InfrastructureError: a check has no usable measure; says which and why.
    """
    by_id = {check.id: check for check in report.checks}
    references = tuple(_reference(lab, by_id[check_id]) for check_id in ids)
    day = datetime.now(UTC).date().isoformat()
    versions = ", ".join(f"{name} {report.versions[name]}" for name in _TOLD if report.versions.get(name))
    comment = f"measured by grade profile thresholds {lab.short_id} on {day} ({versions})"
    return Derived(lab.id, report.profile.name, references, comment)


_TOLD = ("torch", "triton", "driver")


def _reference(lab: Lab, check: CheckResult) -> Reference:
    if check.status not in USABLE:
        raise InfrastructureError(
            f"{lab.short_id}, {check.id}: the reference ended as {check.status.value}: {check.message}",
            hint="Nothing was written. Mend that, or measure again on a quiet machine.",
        )
    named = {name.partition("_")[2] for name in BAND_NAMES & lab.checks[check.id].thresholds.keys()}
    reached: dict[Metric, Interval] = {}
    for metric in METRICS:
        if metric in named:
            reached[metric] = _interval(lab, check, metric)
    return Reference(check.id, reached)


def _interval(lab: Lab, check: CheckResult, metric: Metric) -> Interval:
    measured: Scalar | list[Scalar] = check.measured.get(metric)
    numbers = (
        [float(value) for value in measured if isinstance(value, (int, float))] if isinstance(measured, list) else []
    )
    if len(numbers) != 3:
        raise InfrastructureError(
            f"{lab.short_id}, {check.id}: no {metric} was measured: {check.message or check.status.value}",
            hint="Nothing was written.",
        )
    interval = Interval(*numbers)
    half = max(interval.high - interval.value, interval.value - interval.low)
    if half > MAX_HALF_WIDTH * interval.value:
        raise InfrastructureError(
            f"{lab.short_id}, {check.id}: the {metric} {interval.value:.3f} spreads from {interval.low:.3f} to "
            f"{interval.high:.3f}, more than {MAX_HALF_WIDTH:.0%}.",
            hint="Nothing was written. Measure again on a quiet machine.",
        )
    return interval


def write_thresholds(course: Course, derived: Derived) -> Path:
    """Put them into the card's profile."""
    comments = {ref.check_id: f"{derived.comment}: {ref.text}" for ref in derived.references}
    path = files.update_thresholds(course.root, derived.profile, derived.lab_id, derived.numbers, comments)
    load_profile(course.root, derived.profile)
    return path

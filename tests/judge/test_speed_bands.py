"""Bands of speed: the written rule, where numbers come from, what an interval earns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.course import Lab
from grader.errors import CourseError, ExitCode
from grader.judge.outcomes import TestOutcome, combine
from grader.judge.speed.bands import Bands, bands_of, from_reference, is_provisional, judge_speed
from grader.judge.speed.model import Interval
from grader.profiles import HardwareProfile, load_profile
from grader.report.model import Status, tally
from grader.session import held_to

COURSE = Path(__file__).parent.parent.parent
BOTH = {"full_ratio": 0.9, "pass_ratio": 0.6, "full_fraction": 0.4, "pass_fraction": 0.2}


class Ended(Exception):
    """How a stand-in for the judge ended the test."""


class Recorder:
    """Notes what a verdict was, and with which part of the points."""

    def __init__(self, lab: Lab, profile: HardwareProfile, check_id: str = "speed") -> None:
        self.check_id, self.lab, self.profile = check_id, lab, profile
        self.thresholds: dict[str, float] = {}
        self.measured: dict[str, object] = {}
        self.awarded: list[float] = []

    def measure(self, name: str, value: object) -> None:
        self.measured[name] = value

    def award(self, fraction: float, message: str) -> None:
        self.awarded.append(fraction)

    def noisy(self, message: str, *, fraction: float = 0.0) -> None:
        raise Ended("noisy", fraction, message)

    def pending(self, message: str, *, fraction: float = 0.0) -> None:
        raise Ended("pending", fraction, message)

    def fail(self, message: str) -> None:
        raise Ended("fail", 0.0, message)


def lab_with(thresholds: dict[str, float]) -> Lab:
    return Lab.model_validate(
        {
            "format_version": 1,
            "id": "lab99_speed",
            "title": "Speed",
            "summary": "For tests.",
            "runtime": "triton",
            "files": {"edit": ["kernel.py"]},
            "checks": {"speed": {"title": "Fast", "kind": "speed", "points": 100, "thresholds": thresholds}},
        }
    )


def card(own: dict[str, float] | None = None) -> HardwareProfile:
    profile = load_profile(COURSE, "h200")
    return profile.model_copy(update={"thresholds": {"lab99_speed": {"speed": own}} if own else {}})


def verdict(own: dict[str, float] | None, low: float, high: float, metric: str = "ratio") -> tuple[Any, ...]:
    judge = Recorder(lab_with(BOTH), card(own))
    try:
        judge_speed(judge, {metric: Interval((low + high) / 2, low, high)}, "against a baseline")
    except Ended as ended:
        return ended.args[:2]
    return ("award", judge.awarded[0]) if judge.awarded else ("pass", 1.0)


def test_from_reference_is_the_written_rule() -> None:
    assert from_reference(1.25, "ratio") == {"full_ratio": 1.0, "pass_ratio": 0.625}
    assert from_reference(0.4567, "fraction") == {"full_fraction": 0.365, "pass_fraction": 0.228}
    with pytest.raises(ValueError, match="positive ratio"):
        from_reference(float("nan"), "ratio")


def test_bands_of_prefers_the_cards_own_ratio_then_the_labs_fraction() -> None:
    own = {"full_ratio": 1.1, "pass_ratio": 0.7, "full_fraction": 0.5, "pass_fraction": 0.3}
    assert bands_of(Recorder(lab_with(BOTH), card(own))) == Bands("ratio", 1.1, 0.7, provisional=False)
    assert bands_of(Recorder(lab_with(BOTH), card())) == Bands("fraction", 0.4, 0.2, provisional=True)
    only_ratio = {"full_ratio": 0.9, "pass_ratio": 0.6}
    assert bands_of(Recorder(lab_with(only_ratio), card())) == Bands("ratio", 0.9, 0.6, provisional=True)


@pytest.mark.parametrize("broken", [{"full_ratio": 1.0}, {"full_ratio": 0.5, "pass_ratio": 0.6}, {}])
def test_bands_of_broken_numbers_are_the_courses_fault(broken: dict[str, float]) -> None:
    with pytest.raises(CourseError, match="lab99"):
        bands_of(Recorder(lab_with(broken), card()))


@pytest.mark.parametrize(
    ("low", "high", "ended"),
    [
        (1.0, 1.2, ("pass", 1.0)),
        (1.1, 1.1, ("pass", 1.0)),
        (0.7, 0.95, ("award", 0.5)),
        (0.4, 0.49, ("fail", 0.0)),
        (0.9, 1.1, ("noisy", 0.5)),
        (0.4, 0.6, ("noisy", 0.0)),
    ],
)
def test_judge_speed_measured_bands_decide(low: float, high: float, ended: tuple[str, float]) -> None:
    assert verdict({"full_ratio": 1.0, "pass_ratio": 0.5}, low, high) == ended


@pytest.mark.parametrize(
    ("low", "high", "ended"),
    [
        (0.41, 0.43, ("pass", 1.0)),
        (0.25, 0.3, ("pending", 0.5)),
        (0.1, 0.12, ("pending", 0.0)),
        (0.39, 0.41, ("pending", 0.5)),
    ],
)
def test_judge_speed_provisional_bands_lose_nothing(low: float, high: float, ended: tuple[str, float]) -> None:
    assert verdict(None, low, high, "fraction") == ended


def test_judge_speed_a_metric_that_was_not_measured_is_the_courses_fault() -> None:
    with pytest.raises(CourseError, match="isn't measured"):
        verdict({"full_fraction": 0.4, "pass_fraction": 0.2}, 1.0, 1.1)


def test_is_provisional_only_of_bands_that_nobody_measured_on_a_gpu() -> None:
    def provisional(name: str, profile: HardwareProfile) -> bool:
        return is_provisional("lab99_speed", "speed", name, profile)

    assert provisional("full_ratio", card())
    assert not provisional("full_ratio", card({"full_ratio": 1.0, "pass_ratio": 0.5}))
    assert provisional("full_fraction", card({"full_ratio": 1.0, "pass_ratio": 0.5}))
    assert not provisional("tflops_rel", card())
    assert not provisional("full_ratio", load_profile(COURSE, "cpu"))


def test_held_to_says_which_bands_are_provisional() -> None:
    sources = {t.name: t.source for t in held_to(lab_with(BOTH), card({"full_ratio": 1.0, "pass_ratio": 0.5}))}
    assert sources == {
        "full_ratio": "hardware_profiles/h200.toml",
        "pass_ratio": "hardware_profiles/h200.toml",
        "full_fraction": "roofline (provisional)",
        "pass_fraction": "roofline (provisional)",
    }


def test_pending_check_keeps_what_it_earned_and_loses_nothing() -> None:
    spec = lab_with(BOTH).checks["speed"]
    result = combine("speed", spec, [TestOutcome(Status.PENDING, "short of it", 0.5)])
    assert (result.status, result.points) == (Status.PENDING, 50)
    total = tally([result])
    assert (total.points, total.gradable, total.total) == (50, 50, 100)


def test_pending_beside_a_failure_is_a_failure() -> None:
    spec = lab_with(BOTH).checks["speed"]
    outcomes = [TestOutcome(Status.PENDING, "short of it", 0.5), TestOutcome(Status.FAIL, "wrong")]
    assert (combine("speed", spec, outcomes).status, combine("speed", spec, outcomes).points) == (Status.FAIL, 0)


def test_every_labs_bands_can_be_read() -> None:
    from grader.course import Course

    course = Course(COURSE)
    profiles = [load_profile(COURSE, name) for name in ("h200", "l4")]
    for lab in map(course.lab, course.lab_ids()):
        for check_id, spec in lab.checks.items():
            if any(name.startswith(("full_", "pass_", "half_")) for name in spec.thresholds):
                for profile in profiles:
                    judge = Recorder(lab, profile, check_id)
                    assert bands_of(judge).full > 0


def test_exit_code_with_only_pending_points_is_ok() -> None:
    from grader.report.verdict import exit_code

    spec = lab_with(BOTH).checks["speed"]
    pending = combine("speed", spec, [TestOutcome(Status.PENDING, "short of it", 0.0)])
    report = SimpleNamespace(checks=[pending], score=tally([pending]))
    assert exit_code(report) is ExitCode.OK  # type: ignore[arg-type]

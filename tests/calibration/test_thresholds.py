"""Thresholds of a card from a report on the reference: simulated reports, no GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grader.calibration import files
from grader.calibration.thresholds import derive, measure_thresholds, speed_checks, write_thresholds
from grader.course import Course
from grader.errors import InfrastructureError, UsageError
from grader.judge.speed.bands import is_provisional
from grader.profiles import load_profile
from grader.report.model import CheckResult, Kind, Status

COURSE = Course(Path(__file__).parent.parent.parent)
LAB = COURSE.lab("lab06")
IDS = ["speed-vs-sdpa", "speed-roofline"]


def check(check_id: str, status: Status = Status.PASS, **measured: Any) -> CheckResult:
    points = 10.0 if status is Status.PASS else 0.0
    return CheckResult(
        id=check_id,
        title="t",
        kind=Kind.SPEED,
        hidden=True,
        status=status,
        points=points,
        max_points=10.0,
        message="" if status is Status.PASS else "told",
        measured=measured,
    )


def report(*checks: CheckResult) -> Any:
    versions = {"torch": "2.11.0", "triton": "3.6.0", "driver": "580.95", "python": "3.12"}
    return SimpleNamespace(checks=list(checks), versions=versions, profile=SimpleNamespace(name="h200"))


GOOD = report(
    check("speed-vs-sdpa", ratio=[1.25, 1.24, 1.26], fraction=[0.375, 0.37, 0.38]),
    check("speed-roofline", Status.NOISY, fraction=[0.45, 0.448, 0.452]),
)


def test_speed_checks_are_those_with_bands() -> None:
    assert speed_checks(LAB) == IDS
    with pytest.raises(UsageError, match="no check of speed"):
        speed_checks(COURSE.lab("lab02"))


def test_derive_puts_the_reference_through_the_rule() -> None:
    derived = derive(LAB, GOOD, IDS)
    assert derived.numbers == {
        "speed-vs-sdpa": {"full_ratio": 1.0, "pass_ratio": 0.625, "full_fraction": 0.3, "pass_fraction": 0.187},
        "speed-roofline": {"full_fraction": 0.36, "pass_fraction": 0.225},
    }
    assert "torch 2.11.0, triton 3.6.0, driver 580.95" in derived.comment


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (check("speed-vs-sdpa", Status.SUSPECT), "ended as suspect"),
        (check("speed-vs-sdpa", Status.SKIPPED), "ended as skipped"),
        (check("speed-vs-sdpa", ratio=[1.25, 1.1, 1.3], fraction=[0.375, 0.37, 0.38]), "spreads from 1.100 to 1.300"),
        (check("speed-vs-sdpa", ratio=[1.25, 1.24, 1.26]), "no fraction was measured"),
    ],
)
def test_derive_without_a_usable_measure_writes_nothing_and_says_why(first: CheckResult, told: str) -> None:
    with pytest.raises(InfrastructureError, match=told) as caught:
        derive(LAB, report(first, GOOD.checks[1]), IDS)
    assert "Nothing was written" in caught.value.hint


def copied(tmp_path: Path) -> Course:
    """The course's profiles, without the thresholds that were measured on their cards."""
    folder = tmp_path / "hardware_profiles"
    folder.mkdir()
    for path in (COURSE.root / "hardware_profiles").glob("*.toml"):
        (folder / path.name).write_text(path.read_text().partition("\n[thresholds.")[0] + "\n")
    return Course(tmp_path)


def test_write_thresholds_overrides_the_labs_and_keeps_the_files_text(tmp_path: Path) -> None:
    course = copied(tmp_path)
    path = course.root / "hardware_profiles" / "h200.toml"
    before = path.read_text()
    write_thresholds(course, derive(LAB, GOOD, IDS))
    text, profile = path.read_text(), load_profile(course.root, "h200")
    assert [line for line in before.splitlines() if line not in text.splitlines()] == []
    assert "[thresholds.lab06_fa2_forward.speed-vs-sdpa] # measured by grade profile thresholds lab06 on " in text
    assert profile.threshold(LAB.id, "speed-vs-sdpa", "full_ratio") == 1.0
    assert not is_provisional(LAB.id, "speed-vs-sdpa", "full_ratio", profile)


def test_write_thresholds_again_replaces_the_numbers_and_keeps_other_labs(tmp_path: Path) -> None:
    course = copied(tmp_path)
    write_thresholds(course, derive(LAB, GOOD, IDS))
    other = {"speed": {"full_ratio": 2.0, "pass_ratio": 1.0}}
    files.update_thresholds(course.root, "h200", "lab08_decode", other, {"speed": "measured elsewhere"})
    faster = check("speed-vs-sdpa", ratio=[2.5, 2.49, 2.51], fraction=[0.375, 0.37, 0.38])
    write_thresholds(course, derive(LAB, report(faster, GOOD.checks[1]), IDS))
    profile = load_profile(course.root, "h200")
    assert profile.thresholds[LAB.id]["speed-vs-sdpa"]["full_ratio"] == 2.0
    assert profile.thresholds["lab08_decode"] == other
    text = (course.root / "hardware_profiles" / "h200.toml").read_text()
    assert text.count("[thresholds.lab06_fa2_forward.speed-vs-sdpa]") == 1


def test_measure_thresholds_without_a_reference_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--submission .*none: there is no such folder"):
        measure_thresholds(
            COURSE, "lab06", submission=tmp_path / "none", profile=None, progress=lambda check_id, done: None
        )
    monkeypatch.setattr(Course, "solution_dir", lambda self, lab_id: tmp_path / "none")
    with pytest.raises(UsageError, match="no reference to measure"):
        measure_thresholds(COURSE, "lab06", submission=None, profile=None, progress=lambda check_id, done: None)


def test_measure_thresholds_grades_only_the_speed_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    target = SimpleNamespace(speed="", profile=load_profile(COURSE.root, "h200"))
    monkeypatch.setattr("grader.calibration.thresholds.card_here", lambda: None)
    monkeypatch.setattr("grader.calibration.thresholds.choose_target", lambda *_: target)
    monkeypatch.setattr("grader.calibration.thresholds.grade", lambda request, progress: asked.append(request) or GOOD)
    measure_thresholds(COURSE, "lab06", submission=None, profile=None, progress=lambda check_id, done: None)
    assert (asked[0].checks, asked[0].device) == (frozenset(IDS), "cuda")
    assert asked[0].submission.name == "reference"
    target.speed = "no profile fits this GPU"
    with pytest.raises(UsageError, match="no profile fits this GPU"):
        measure_thresholds(COURSE, "lab06", submission=None, profile=None, progress=lambda check_id, done: None)

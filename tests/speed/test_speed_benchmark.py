"""The benchmark of speed judging: references graded whole, and parts that are broken off or fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import race_bench, reference_grades, speed_on_gpu
from benchmarks.race_bench import REHEARSAL
from benchmarks.speed_on_gpu import Keep
from grader.course import Course
from grader.judge.outcomes import TestOutcome, result
from grader.judge.speed.oracles import AttentionShape
from grader.report.model import CheckResult, Report, Status

COURSE = Course.find(Path(__file__).parent)


def report(*changed: CheckResult, seconds: float = 50.0) -> Report:
    """lab06's report, every check passed but those given."""
    own = {check.id: check for check in changed}
    checks = [
        own.get(name) or result(name, spec, TestOutcome(Status.PASS))
        for name, spec in COURSE.lab("lab06").checks.items()
    ]
    return Report.model_construct(checks=checks, duration_s=seconds)


def test_summary_names_what_a_reference_lost_and_what_took_too_long() -> None:
    whole = reference_grades.summary(report(), on_gpu=True)
    assert (whole["points"], whole["gradable"], whole["unmet"]) == (100.0, 100.0, [])
    lab = COURSE.lab("lab06")
    strides = result("strides", lab.checks["strides"], TestOutcome(Status.FAIL, "wrong"))
    roofline = result("speed-roofline", lab.checks["speed-roofline"], TestOutcome(Status.SKIPPED, "no GPU"))
    races = TestOutcome(Status.PASS, measured={"a: device held_s": 9.0, "b: device held_s": 7.5, "b: ratio": 1.2})
    raced = result("speed-vs-sdpa", lab.checks["speed-vs-sdpa"], races)
    part = reference_grades.summary(report(strides, roofline, raced, seconds=61.0), on_gpu=True)
    assert part["unmet"] == ["strides: fail", "speed-roofline: not timed", "61 s", "the card held for 16.5 s"]
    assert part["gradable"] == 100.0 - lab.checks["speed-roofline"].points
    assert part["points"] == part["gradable"] - lab.checks["strides"].points
    assert reference_grades.summary(report(roofline, seconds=200.0), on_gpu=False)["unmet"] == []


def test_grades_of_labs_that_are_done_grades_only_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def graded(course: Course, lab: str, device: str) -> Report:
        asked.append(lab)
        return report()

    monkeypatch.setattr(reference_grades, "graded", graded)
    before = {"lab06": {"unmet": [], "points": 3}, "lab07": {"unmet": ["strides: fail"]}}
    kept: list[list[str]] = []
    found = reference_grades.grades(COURSE, "cuda", before, print, lambda labs: kept.append(list(labs)))
    assert asked == ["lab07", "lab08"]
    assert kept == [["lab06", "lab07"], ["lab06", "lab07", "lab08"]]
    assert list(found) == list(reference_grades.LABS)
    assert found["lab06"] == before["lab06"]
    assert found["lab07"]["unmet"] == []


class Stub:
    """Parts of the benchmark that note what they were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, output: Path) -> None:
        self.output, self.given = output, dict[str, Any]()
        self.lasts = True
        monkeypatch.setattr(speed_on_gpu.Bench, "here", classmethod(lambda cls, device: Bench()))
        parts = {"broken": self.broken, "good": self.good}
        monkeypatch.setattr(speed_on_gpu, "PARTS", parts)
        monkeypatch.setattr(sys, "argv", ["speed_on_gpu", f"--output={output}"])

    def broken(self, bench: Any, keep: Keep, repeats: int) -> dict[str, Any]:
        self.given["broken"] = dict(keep.before)
        if self.lasts:
            keep({"races": [1, 2]})
        raise RuntimeError("the card is gone")

    def good(self, bench: Any, keep: Keep, repeats: int) -> dict[str, Any]:
        self.given["good"] = dict(keep.before)
        return {"races": [3], "unmet": []}

    def run(self) -> dict[str, Any]:
        self.given.clear()
        assert speed_on_gpu.main() == 1
        return dict(json.loads(self.output.read_text())["parts"])


class Bench:
    shape = AttentionShape(1, 2, 2, 64, 64, 32, "float32")
    rules = REHEARSAL


def test_main_runs_the_parts_after_one_that_fails_and_takes_that_one_up_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = Stub(monkeypatch, tmp_path / "results.json")
    parts = stub.run()
    assert parts["good"]["done"]
    assert (parts["broken"]["races"], parts["broken"]["done"]) == ([1, 2], False)
    assert parts["broken"]["unmet"] == ["failed: RuntimeError: the card is gone"]
    assert "RuntimeError: the card is gone" in capsys.readouterr().err
    stub.lasts = False
    parts = stub.run()
    assert list(stub.given) == ["broken"]
    assert stub.given["broken"]["races"] == parts["broken"]["races"] == [1, 2]


def test_rehearsal_answers_a_launcher_that_asks_for_its_card() -> None:
    """Right answers of lab06 look their tiles up by the device's capability; without a card's profile they raise."""
    profile = race_bench.Bench.here("cpu").profile
    assert profile is not None
    assert profile.sm is not None


@pytest.mark.parametrize(
    ("device", "unmet"), [("cpu", []), ("cuda", ["1.0 lies outside of 1 intervals: ratios [1.9]"])]
)
def test_what_a_time_decides_is_expected_of_a_gpu_only(
    device: str, unmet: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU a neighbour's job alone moves a ratio to 1.9."""
    found = {"races": [{"ratio": 1.9, "low": 1.5, "high": 2.3}], "verdicts": ["ok"]}
    monkeypatch.setattr(speed_on_gpu, "repeated", lambda *_: found)
    bench: Any = SimpleNamespace(device=device)
    assert speed_on_gpu.part_itself(bench, Keep(print), 1)["unmet"] == unmet

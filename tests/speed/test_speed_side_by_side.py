"""Several labs graded at once on the GPUs at hand, and parts of the benchmark that are broken off or fail."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import race_bench, reference_grades, side_by_side, speed_on_gpu
from benchmarks.race_bench import REHEARSAL
from benchmarks.speed_on_gpu import Keep
from grader.course import Course
from grader.judge.speed.oracles import AttentionShape
from grader.profiles import Detection

COURSE = Course.find(Path(__file__).parent)

TAKES_ITS_TURN = """
import os, sys, time
from pathlib import Path
mine = Path(sys.argv[1]) / os.environ["CUDA_VISIBLE_DEVICES"]
try:
    mine.mkdir()
except FileExistsError:
    sys.exit("two at once on " + mine.name)
print("on " + mine.name)
time.sleep(0.2)
mine.rmdir()
"""


def test_run_gives_each_device_one_job_at_a_time_and_every_job_a_device(tmp_path: Path) -> None:
    said: list[str] = []
    jobs = {f"job {number}": ["-c", TAKES_ITS_TURN, str(tmp_path)] for number in range(4)}
    assert side_by_side.run(jobs, ["GPU-a", "GPU-b"], said.append, on_each=1) == dict.fromkeys(jobs, 0)
    assert sorted(line.partition(": ")[0] for line in said) == list(jobs)
    assert {line.partition(": ")[2] for line in said} <= {"on GPU-a", "on GPU-b"}


def test_run_with_a_job_that_fails_runs_the_others_and_tells_both(tmp_path: Path) -> None:
    said: list[str] = []
    jobs = {"broken": ["-c", "raise SystemExit('no checks at all')"], "good": ["-c", "print('graded')"]}
    assert side_by_side.run(jobs, [""], said.append, on_each=2) == {"broken": 1, "good": 0}
    assert sorted(said) == ["broken: no checks at all", "good: graded"]


def test_run_without_jobs_does_nothing() -> None:
    assert side_by_side.run({}, [], print, on_each=1) == {}


def test_run_without_a_device_says_so_and_does_not_wait() -> None:
    with pytest.raises(ValueError, match="no GPU"):
        side_by_side.run({"one": ["-c", ""]}, [], print, on_each=2)


@pytest.mark.parametrize("cores", [1, 16, 32, 512])
@pytest.mark.parametrize("name", reference_grades.LABS)
def test_dealt_has_every_check_that_is_not_timed_once(name: str, cores: int) -> None:
    lab = COURSE.lab(name)
    groups = reference_grades.dealt(lab, cores)
    assert all(groups)
    assert sorted([*itertools.chain(*groups), *reference_grades.timed(lab)]) == sorted(lab.checks)
    assert len(groups) == {1: 1, 16: 1, 32: 3}.get(cores, len(groups))


def graded(status: str, points: float, of: float) -> dict[str, Any]:
    return {"status": status, "points": points, "of": of}


def test_summary_names_what_a_reference_lost_and_what_was_not_graded() -> None:
    lab = COURSE.lab("lab06")
    found = {name: graded("pass", spec.points, spec.points) for name, spec in lab.checks.items()}
    whole = reference_grades.summary(lab, found, on_gpu=True)
    assert (whole["points"], whole["gradable"], whole["unmet"]) == (100.0, 100.0, [])
    found["strides"] = graded("fail", 0.0, lab.checks["strides"].points)
    found["speed-roofline"] = graded("skipped", 0.0, 5.0)
    del found["window"]
    part = reference_grades.summary(lab, found, on_gpu=True)
    assert part["unmet"] == ["strides: fail", "window: not graded", "speed-roofline: not timed"]
    assert part["gradable"] == 100.0 - lab.checks["window"].points - 5.0
    assert part["points"] == part["gradable"] - lab.checks["strides"].points


def test_grades_of_labs_that_are_done_grades_only_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    runs: list[tuple[set[str], int]] = []

    def run(jobs: Mapping[str, Sequence[str]], *_: Any, on_each: int) -> dict[str, int]:
        runs.append(({check for arguments in jobs.values() for check in arguments[3].split(",")}, on_each))
        for arguments in jobs.values():
            asked.append(list(arguments))
            Path(arguments[4]).write_text(json.dumps({name: graded("pass", 1, 1) for name in arguments[3].split(",")}))
        return dict.fromkeys(jobs, 0)

    monkeypatch.setattr(side_by_side, "run", run)
    monkeypatch.setattr(reference_grades, "detect", lambda: Detection(()))
    before = {"lab06": {"unmet": [], "points": 3}, "lab07": {"unmet": ["strides: fail"]}}
    kept: list[dict[str, Any]] = []
    found = reference_grades.grades(COURSE, "cuda", before, print, kept.append)
    assert list(found) == list(reference_grades.LABS)
    assert found["lab06"] == before["lab06"]
    assert found["lab07"]["unmet"] == found["lab08"]["unmet"] == []
    assert {arguments[2] for arguments in asked} == {"lab07", "lab08"}
    assert kept == [found]
    # The others first and side by side, then the timed ones by themselves.
    timed = {check for name in ("lab07", "lab08") for check in reference_grades.timed(COURSE.lab(name))}
    assert not runs[0][0] & timed
    assert runs[1] == (timed, 1)


def test_grades_broken_off_keeps_what_was_graded(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(jobs: Mapping[str, Sequence[str]], *_: Any, **__: Any) -> dict[str, int]:
        arguments = next(iter(jobs.values()))
        Path(arguments[4]).write_text(json.dumps({arguments[3].split(",")[0]: graded("pass", 1, 1)}))
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "run", run)
    kept: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        reference_grades.grades(COURSE, "cuda", {}, print, kept.append)
    assert [len(kept[0][name]["checks"]) for name in reference_grades.LABS] == [1, 0, 0]


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

"""lab08's speed checks on CPU tensors: the whole protocol runs, in the interpreter, and earns what the bands say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from speed_toys import QUICK

from grader.course import CheckSpec, Course
from grader.judge.decode import timing
from grader.judge.recorder import Judge, Verdict
from grader.judge.seeds import Seeds
from grader.judge.speed.decode import DecodeShape
from grader.profiles import load_profile
from grader.report.model import Kind, Status
from grader.sandbox.levels import choose_isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission

COURSE = Course.find(Path(__file__).parent)
LAB = COURSE.lab("lab08")
SMALL = DecodeShape(2, 4, 2, 64, 32, 16, "float16")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("races")]


@pytest.fixture(scope="module")
def reference() -> Iterator[Submission]:
    with stage(COURSE.solution_dir(LAB.id) / "reference", LAB, COURSE.starter_dir(LAB.id)) as staged:
        submission = Submission(staged, LAB, choose_isolation("auto"), target=load_profile(COURSE.root, "h100-sxm"))
        yield submission
        submission.close()


def judge_with(bands: dict[str, float]) -> Judge:
    """Of a speed check whose bands were measured on this card."""
    spec = CheckSpec(title="Speed", kind=Kind.SPEED, points=4, thresholds=bands)
    profile = load_profile(COURSE.root, "cpu").model_copy(update={"thresholds": {LAB.id: {"fast": bands}}})
    return Judge(
        check_id="fast",
        lab=LAB.model_copy(update={"checks": {**LAB.checks, "fast": spec}}),
        profile=profile,
        device="cpu",
        thresholds=bands,
        seeds=Seeds(b"k" * 16, "secret"),
        test="test_fast",
    )


def test_paging_is_timed_against_contiguous_and_earns_its_band(reference: Submission) -> None:
    judge = judge_with({"full_ratio": 0.01, "pass_ratio": 0.001})
    timing.judge_paging(judge, reference, SMALL, QUICK)
    value, low, high = judge.measured["ratio"]  # type: ignore[misc]
    assert 0 < low <= value <= high  # type: ignore[operator]
    assert not judge.awards
    strict = judge_with({"full_ratio": 1000.0, "pass_ratio": 900.0})
    with pytest.raises(Verdict) as verdict:
        timing.judge_paging(strict, reference, SMALL, QUICK)
    assert verdict.value.status is Status.FAIL


def test_bandwidth_is_timed_at_every_shape(reference: Submission) -> None:
    judge = judge_with({"full_fraction": 1e-9, "pass_fraction": 1e-10})
    timing.judge_bandwidth(judge, reference, (SMALL, DecodeShape(1, 4, 2, 128, 32, 16, "float16")), QUICK)
    assert judge.measured["fraction"][0] > 0  # type: ignore[index,operator]
    assert sum(name.endswith("yours median_ms") for name in judge.measured) == 2

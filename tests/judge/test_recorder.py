"""What a test may say to the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_course import LAB_ID, write_course

from grader.judge.recorder import Judge
from grader.judge.seeds import Seeds
from grader.profiles import load_profile


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    course = write_course(tmp_path)
    return Judge(
        check_id="small",
        lab=course.lab(LAB_ID),
        profile=load_profile(course.root, "cpu"),
        device="cpu",
        thresholds={"atol": 0.1},
        seeds=Seeds(b"k" * 16, "secret"),
        test="test_small",
    )


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        ([np.float64(1.5), "a", None], [1.5, "a", None]),
        (float("nan"), "nan"),
        (float("inf"), float("inf")),
        ("words", "words"),
    ],
)
def test_measure_keeps_plain_values(judge: Judge, value: Any, kept: Any) -> None:
    judge.measure("x", value)
    assert judge.measured == {"x": kept}
    assert type(judge.measured["x"]) is type(kept)


@pytest.mark.parametrize("value", [object(), {"a": 1}, [[1]], np.zeros((2, 2))])
def test_measure_refuses_what_a_report_cannot_hold(judge: Judge, value: Any) -> None:
    with pytest.raises(TypeError, match=r"measure\('x'\): expected a scalar"):
        judge.measure("x", value)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_award_refuses_a_fraction_outside_its_range(judge: Judge, fraction: float) -> None:
    with pytest.raises(ValueError, match="lies in 0 to 1"):
        judge.award(fraction, "part")


def test_rng_is_a_new_stream_each_call(judge: Judge) -> None:
    assert judge.rng().normal() != judge.rng().normal()

"""Numbers that a submission gives: what is none, what is too large for a float, and what is no number at all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from lab_judges import judge_of, verdict_of

from grader.course import Course
from grader.judge.answers import as_float, real_number, same, whole_number
from grader.report.model import Status

LAB = Course.find().lab("lab06")


@pytest.mark.parametrize("value", [None, True, "1", [1], 1j, np.ones(1)], ids=repr)
def test_what_is_no_number_breaks_the_contract(value: Any) -> None:
    for read in (real_number, whole_number):
        ended = verdict_of(LAB, "schedule-ctas", lambda judge, read=read: read(judge, value, "waves"))  # type: ignore[misc]
        assert ended.status is Status.CONTRACT


def test_numbers_of_any_size_are_floats() -> None:
    judge = judge_of(LAB, "schedule-ctas")
    assert real_number(judge, 10**400, "waves") == math.inf
    assert as_float(-(10**400)) == -math.inf
    assert whole_number(judge, np.int64(3), "waves") == 3
    assert real_number(judge, np.float32(0.5), "waves") == 0.5


@pytest.mark.parametrize("got", [math.nan, math.inf, -math.inf, 10**400, 0.5 + 1e-6])
def test_no_number_is_the_same_as_another(got: Any) -> None:
    assert not same(got, 0.5)
    assert not same((got,), (0.5,))

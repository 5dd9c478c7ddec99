"""What bounds one submission in a class: its overall time, the patience with a function, hidden tests kept shut."""

from __future__ import annotations

from pathlib import Path

import pytest
from batch_factory import options
from toy_course import LAB_ID, LAB_TOML, run_toy, write_course, write_submission

from grader.batch.conditions import look
from grader.course import Course
from grader.report.model import Status
from grader.sandbox.failures import TimedOut
from grader.session import GradeRequest, grade

LOOP = "def double(x):\n    while True:\n        pass\n"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path / "course")


def test_time_limit_used_up_ends_the_rest_as_timeouts(course: Course) -> None:
    clock = iter(range(1000))

    def slow(x: object) -> object:
        next(clock)
        raise TimedOut("No answer after 2 s (the limit).")

    results = run_toy(course, slow, time_limit_s=1e-9)
    assert {result.status for result in results.values()} == {Status.TIMEOUT}
    assert "used up before it" in results["long"].message
    assert next(clock) <= 1


def test_patience_function_that_hung_is_not_called_again(tmp_path: Path) -> None:
    course = write_course(tmp_path / "course", lab_toml=LAB_TOML.replace("call_s = 30.0", "call_s = 0.5"))
    submission = write_submission(tmp_path / "s", LOOP)
    report = grade(GradeRequest(course, LAB_ID, submission, device="cpu", patience=1))
    assert {check.status for check in report.checks} == {Status.TIMEOUT}
    told = [check.message for check in report.checks]
    assert sum("wasn't called" in message for message in told) == len(told) - 1


def test_look_at_process_level_keeps_hidden_tests_shut(course: Course) -> None:
    asked = options(course=str(course.root), device="cpu", isolation="process")
    assert look(asked, LAB_ID).public_only
    assert not look(asked.model_copy(update={"hidden_at_process": True}), LAB_ID).public_only
    sealed = look(asked.model_copy(update={"isolation": "auto"}), LAB_ID)
    assert sealed.public_only is (sealed.level == "process")

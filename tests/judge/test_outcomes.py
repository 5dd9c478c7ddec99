"""How the tests of a check make its result."""

from __future__ import annotations

from grader.course import CheckSpec
from grader.judge.outcomes import TestOutcome, combine
from grader.report.model import Diagnosis, Kind, Status

SPEC = CheckSpec(title="t", kind=Kind.CORRECTNESS, points=2)


def failed(message: str, mistake: str = "", status: Status = Status.FAIL) -> TestOutcome:
    return TestOutcome(status, message, diagnosis=Diagnosis(id=mistake, text=mistake) if mistake else None)


def test_combine_case_whose_mistake_is_known_speaks_for_the_others() -> None:
    combined = combine("c", SPEC, [failed("first"), failed("second", "mask"), failed("third", "mask")])
    assert combined.message == "second (3 of 3 cases.)"
    assert combined.diagnosis is not None


def test_combine_first_known_mistake_speaks() -> None:
    cases = [failed("first"), failed("second", "one"), failed("third", "two"), TestOutcome(Status.PASS)]
    assert combine("c", SPEC, cases).message == "second (3 of 4 cases.)"


def test_combine_worse_end_speaks_before_a_known_mistake() -> None:
    combined = combine("c", SPEC, [failed("wrong", "mask"), failed("crashed", status=Status.CRASH)])
    assert combined.status is Status.CRASH
    assert combined.message.startswith("crashed")

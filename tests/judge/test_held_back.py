"""Points that rest on figures which another check found not to be there wait for a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.outcomes import HELD, TestOutcome, held_back, result
from grader.report.exports.disclosure import disclose_checks
from grader.report.model import CheckResult, Diagnosis, Status

LAB = Course.find(Path(__file__).parent).lab("lab10")
RESTING = {"benchmark", "benchmark-arithmetic", "benchmark-possible", "plot", "readme-figures", "claims"}


def results(**other: TestOutcome) -> list[CheckResult]:
    """All checks passed but `other`, by id with _ for -."""
    told = {name.replace("_", "-"): outcome for name, outcome in other.items()}
    return [result(name, spec, told.get(name, TestOutcome(Status.PASS))) for name, spec in LAB.checks.items()]


def found(diagnosis: str, status: Status = Status.FAIL) -> TestOutcome:
    return TestOutcome(status, "It came out otherwise.", diagnosis=Diagnosis(id=diagnosis, text="Otherwise."))


@pytest.mark.parametrize(
    ("check", "diagnosis"),
    [
        ("benchmark_again", "not-reproduced"),
        ("correctness_report", "report-rows-alike"),
        ("benchmark_possible", "benchmark-impossible"),
    ],
)
def test_figures_that_are_not_there_hold_what_rests_on_the_table(check: str, diagnosis: str) -> None:
    held = held_back(LAB, results(**{check: found(diagnosis)}))
    failed = check.replace("_", "-")
    assert {one.id for one in held if one.status is Status.SUSPECT} == RESTING - {failed}
    assert all(one.points == 0 and one.message == HELD for one in held if one.status is Status.SUSPECT)
    assert {one.id for one in held if one.status is Status.PASS} == set(LAB.checks) - RESTING - {failed}
    assert next(one for one in held if one.id == failed).status is Status.FAIL


@pytest.mark.parametrize(
    "diagnosis", ["time-off", "regression-unnamed", "hidden-keys-visited", "report-not-reproduced"]
)
def test_honest_mistakes_hold_nothing(diagnosis: str) -> None:
    before = results(benchmark_again=found(diagnosis))
    assert held_back(LAB, before) == before


def test_what_is_lost_stays_lost_and_what_is_pending_is_held() -> None:
    pending = TestOutcome(Status.PENDING, "waits for its card")
    held = held_back(
        LAB, results(benchmark=pending, plot=found("plot-empty"), correctness_report=found("report-rows-alike"))
    )
    by_id = {one.id: one for one in held}
    assert by_id["benchmark"].status is Status.SUSPECT
    assert (by_id["plot"].status, by_id["plot"].diagnosis) == (
        Status.FAIL,
        Diagnosis(id="plot-empty", text="Otherwise."),
    )


def test_a_student_reads_of_a_review_and_no_accusation() -> None:
    shown = disclose_checks(held_back(LAB, results(benchmark_again=found("not-reproduced"))))
    text = next(one.text for one in shown if one.id == "claims")
    assert "Needs review by a person" in text
    for word in ("fabricat", "invent", "cheat", "fake", "dishonest"):
        assert word not in text.lower()

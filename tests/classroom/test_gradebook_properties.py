"""What holds of any class: bounds, no silent zero, and that a machine's failure never lowers a score."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from classroom.factory import MONDAY, NEEDS_GPU, graded, ungraded
from classroom.toy_class import a_course
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report.report_factory import ROWS

from grader.classroom.gradebook import Row, gradebook
from grader.classroom.records import Record
from grader.course import Course
from grader.grading import Grading, LatePolicy
from grader.report.model import Status

ENDS: list[dict[str, Any]] = [
    {},
    NEEDS_GPU,
    {"status": Status.FAIL, "message": "wrong", "points": 0.1},
    {"status": Status.FAIL, "message": "wrong"},
    {"status": Status.NOISY, "message": "straddles", "points": 3.3},
    {"status": Status.SUSPECT, "message": "too fast"},
    {"status": Status.ERROR, "message": "no result"},
    {"status": Status.PENDING, "message": "nobody measured this card", "points": 2.5},
]
checks = st.fixed_dictionaries({row.id.replace("-", "_"): st.sampled_from(ENDS) for row in ROWS})
hours = st.one_of(st.none(), st.integers(-50, 100))


def arrived(after: int | None) -> dict[str, Any]:
    return {"received_at": None if after is None else MONDAY + timedelta(hours=after)}


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    found: list[Record] = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        found.append(graded(attempt=number, checks=draw(checks), **arrived(draw(hours))))
    return found


policies = st.builds(
    Grading,
    deadlines=st.just({"lab06": MONDAY}),
    late=st.builds(
        LatePolicy,
        rate=st.sampled_from([0.0, 0.1, 0.5]),
        floor=st.sampled_from([0.0, 0.3]),
        refuse_after_hours=st.sampled_from([None, 48]),
    ),
    attempts=st.sampled_from([None, 1, 2]),
    keep=st.sampled_from(["best", "latest"]),
    ungradable=st.sampled_from(["pending", "excluded", "zero"]),
)
failures = st.sampled_from(["infrastructure", "refused"])
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return a_course(tmp_path_factory.mktemp("class") / "course")


def the_row(found: list[Record], course: Course, policy: Grading) -> Row:
    (row,) = gradebook(found, course, policy)
    return row


@quick
@given(found=records(), policy=policies)
def test_row_stays_within_its_bounds_and_is_final_only_when_nothing_is_open(
    course: Course, found: list[Record], policy: Grading
) -> None:
    row = the_row(found, course, policy)
    assert 0 <= row.raw <= row.gradable <= row.total == 100
    assert 0 <= row.so_far <= row.total
    if row.status == "too late":
        assert (row.final, row.pending) == (0, 0)
        return
    assert (row.final is None) == (row.pending > 0) == (row.status == "pending")
    assert row.final is None or row.final == row.so_far <= Decimal(100)


@quick
@given(found=records(), policy=policies, outcome=failures, number=st.integers(0, 2), after=hours)
def test_failed_submission_at_any_time_never_lowers_a_score(
    course: Course, found: list[Record], policy: Grading, outcome: str, number: int, after: int | None
) -> None:
    policy = policy.model_copy(update={"attempts": None})
    before = the_row(found, course, policy)
    failed = ungraded("ada", outcome, "no", attempt=number + 9, **arrived(after))
    now = the_row([*found, failed], course, policy.model_copy(update={"attempts": None}))
    assert (now.status, now.final, now.so_far, now.pending) == (
        before.status,
        before.final,
        before.so_far,
        before.pending,
    )


@quick
@given(found=records(), policy=policies, place=st.integers(0, 2), ends=checks)
def test_regrade_that_failed_never_lowers_a_score(
    course: Course, found: list[Record], policy: Grading, place: int, ends: dict[str, Any]
) -> None:
    good = found[place % len(found)]
    broken = ungraded(
        "ada",
        "infrastructure",
        "no disk",
        attempt=good.attempt,
        content_sha256=good.content_sha256,
        received_at=good.received_at,
        graded_at=MONDAY + timedelta(days=99),
    )
    before, now = the_row(found, course, policy), the_row([*found, broken], course, policy)
    assert (now.status, now.final, now.so_far) == (before.status, before.final, before.so_far)

"""What an attempt is worth where a card's thresholds wait for somebody to measure them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from report.report_factory import outcomes, report

from grader.classroom.points import count, items
from grader.report.model import Status

PENDING = {"status": Status.PENDING, "points": 5.0, "message": "0.250 of the roofline. Pending, not lost."}


@pytest.mark.parametrize("policy", ["pending", "excluded", "zero"])
def test_count_pending_speed_keeps_what_it_earned_and_loses_nothing(policy: str) -> None:
    found = items(report(outcomes(speed_sdpa=PENDING)), None, None)
    points = count(found, policy)  # type: ignore[arg-type]
    assert (points.raw, points.gradable, points.pending) == (Decimal(85), Decimal(85), Decimal(15))
    assert (points.score, points.total) == (Decimal(85), Decimal(100))

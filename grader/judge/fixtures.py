"""The fixtures that a lab's tests ask for; the engine of the run is behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from grader.judge.plugin import ENGINE
from grader.judge.recorder import Judge

if TYPE_CHECKING:
    from grader.sandbox.submission import Submission


@pytest.fixture(scope="session")
def submission(request: pytest.FixtureRequest) -> Iterator[Submission]:
    """The graded code behind its worker. Started by the first test that asks for it."""
    engine = request.config.stash[ENGINE]
    opened = engine.open_submission()
    yield opened
    engine.close_submission()


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """This test's inputs, thresholds and verdict."""
    return request.config.stash[ENGINE].new_judge(request.node)

"""The trusted side: binds tests to checks, runs them, compares answers and records the verdicts.

Test files of a lab import `check` from here; `submission` and `judge` reach them as fixtures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from grader.judge.recorder import Judge

if TYPE_CHECKING:
    from grader.sandbox.submission import Submission

TestT = TypeVar("TestT", bound=Callable[..., object])

__all__ = ["Judge", "Submission", "check"]


def check(check_id: str) -> Callable[[TestT], TestT]:
    """Bind a test to the row `[checks.<check_id>]` of its lab's `lab.toml`.

    Title, points, requirements and thresholds live in that row alone. Several tests may carry one id: the check
    passes when all of them do.
    """
    return cast("Callable[[TestT], TestT]", pytest.mark.check(check_id))


def __getattr__(name: str) -> object:
    # Test files name `Submission` in annotations; the sandbox is loaded only when one asks for the class itself.
    if name == "Submission":
        from grader.sandbox.submission import Submission

        return Submission
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

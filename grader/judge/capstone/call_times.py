"""Option E's benchmark again: calls of the pinned tree and of the patched one, timed in turns over one stand-in.

A host's milliseconds aren't held to another host's. What a patch saves of a call is, roughly: that it saves something,
and how much.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Protocol

from grader.judge.capstone.manifest import CapstoneShape, Step
from grader.sandbox.failures import ContractViolated

MODULE = "timed_path"
WINDOW_S = 0.02
TURNS, MOST_TURNS = 15, 45
SLACK, WIDE_SLACK = 1.1, 1.25
"""What medians of fifteen turns may differ by where nothing changed, on a quiet machine and on a busy one."""


class Calling(Protocol):
    """The part of a worker that is used here."""

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


def least(told: float) -> float:
    """The speed-up that must be seen where a table has `told`.

    Of a gain, half of it in the logarithm, less some slack: the other half is the machine's, as copies and allocations
    compare with Python otherwise on each. What is told as no gain must not be a loss of a fifth.
    """
    return math.sqrt(told) / SLACK if told > SLACK else told / WIDE_SLACK


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the median lies in 99 of 100 cases, by the ranks of ratios."""
    ordered, n = sorted(ratios), len(ratios)
    away = math.ceil(1.29 * math.sqrt(n))
    return ordered[max(0, n // 2 - away)], ordered[min(n - 1, (n - 1) // 2 + away)]


def reproduced(told: float, ratios: Sequence[float]) -> bool | None:
    """Whether turns show the speed-up of a table; None where they can't tell."""
    low, high = interval(ratios)
    if low >= least(told):
        return True
    return False if high < least(told) else None


def seen(before: Calling, after: Calling, shape: CapstoneShape, step: Step, told: float) -> tuple[bool | None, float]:
    """(`reproduced`, the median speed-up) of a shape; more turns where the first can't tell.

    Raises:
        WorkerFailure: a call failed.
    """
    sides = (before, after)
    for side in sides:
        side.call("open_call", shape.model_dump(), step, shape.visible.options(), module=MODULE)
    ratios: list[float] = []
    found: bool | None = None
    while found is None and len(ratios) < MOST_TURNS:
        for turn in range(TURNS):
            first, second = sides if turn % 2 == 0 else sides[::-1]
            one, other = _ms(first), _ms(second)
            ratios.append(one / other if turn % 2 == 0 else other / one)
        found = reproduced(told, ratios)
    return found, statistics.median(ratios)


def _ms(side: Calling) -> float:
    value = side.call("time_call", WINDOW_S, module=MODULE)
    if type(value) is not float or not 0 < value < math.inf:
        raise ContractViolated("A timed call gave no time.")
    return value

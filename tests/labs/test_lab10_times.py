"""What option E's table is held to when both trees are timed again: a gain told must be seen, in sign and size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grader.judge.capstone import call_times
from grader.judge.capstone.manifest import CapstoneShape
from grader.sandbox.failures import ContractViolated

SHAPE = CapstoneShape(
    name="s", batch=1, q_heads=2, kv_heads=2, seq_q=8, seq_k=8, head_dim=32, dtype="float16", layout="pairs"
)


class Side:
    """A worker whose calls take about `ms`, each window off by a share of its own; every tenth is disturbed."""

    def __init__(self, ms: float, rng: np.random.Generator, spread: float) -> None:
        self.ms, self.rng, self.spread = ms, rng, spread
        self.opened: list[tuple[Any, ...]] = []

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        if function == "open_call":
            self.opened.append(args)
            return None
        disturbed = 1.0 + (self.rng.random() < 0.1) * 2.0
        return self.ms * float(np.exp(self.rng.normal(0.0, self.spread))) * disturbed


def verdicts(told: float, real: float, spread: float = 0.08) -> set[bool | None]:
    """Of twenty runs."""
    rng = np.random.default_rng(3)
    return {
        call_times.seen(Side(real, rng, spread), Side(1.0, rng, spread), SHAPE, "training", told)[0] for _ in range(20)
    }


@pytest.mark.parametrize(
    ("told", "real"),
    [(1.0, 1.0), (1.06, 1.0), (0.9, 0.9), (1.45, 1.4), (2.16, 1.5), (2.16, 2.0), (3.0, 3.0), (1.2, 3.0)],
)
def test_a_gain_that_is_there_is_reproduced_on_another_machine(told: float, real: float) -> None:
    assert False not in verdicts(told, real)
    assert True in verdicts(told, real)


@pytest.mark.parametrize(("told", "real"), [(3.1, 1.0), (2.0, 1.0), (1.5, 1.0), (3.0, 1.2), (1.0, 0.6), (1.5, 0.7)])
def test_a_gain_that_is_invented_is_never_reproduced(told: float, real: float) -> None:
    assert True not in verdicts(told, real)
    assert False in verdicts(told, real)


def test_a_machine_that_spreads_too_much_decides_nothing() -> None:
    ratios = call_times.least(1.5) * np.exp(np.linspace(-0.8, 0.8, 45))
    assert call_times.reproduced(1.5, ratios.tolist()) is None
    assert call_times.reproduced(1.5, (1.4 * ratios).tolist()) is True
    assert call_times.reproduced(1.5, (ratios / 1.4).tolist()) is False


def test_both_sides_are_asked_for_the_shapes_layout_and_step() -> None:
    sides = [Side(1.0, np.random.default_rng(1), 0.0) for _ in range(2)]
    call_times.seen(*sides, SHAPE, "training", 1.0)
    for side in sides:
        ((shape, step, options),) = side.opened
        assert (shape["layout"], step, options) == ("pairs", "training", {"causal": False})


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf"), None, "1.0", 3])
def test_a_time_that_is_none_is_refused(value: object) -> None:
    class Strange:
        def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
            return value

    with pytest.raises(ContractViolated):
        call_times.seen(Strange(), Strange(), SHAPE, "forward", 1.0)

"""Times of kernels beside each other: rounds under the device's lock, ratios round by round, intervals, second looks.

The clock is the grader's, in a process that holds nothing of the submission but a cubin (`grader.worker.cuda_launch`),
so no claim has to be checked from outside. Each round times every case once, so that heat and clocks touch all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.judge.speed import environment
from grader.judge.speed.model import Interval, Rules
from grader.judge.speed.verdict import median_interval, widened
from grader.profiles import detect
from grader.sandbox.device_lock import device_lock

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

Array = NDArray[np.float64]
Rounds = dict[str, Array]
"""Case → its time in each round, in ms."""

RULES = Rules()


def measured(
    judge: Judge,
    labels: Sequence[str],
    take: Callable[[], Array],
    quantities: Callable[[Rounds], dict[str, Interval]],
    undecided: Callable[[dict[str, Interval]], bool],
) -> tuple[Rounds, dict[str, Interval]]:
    """Take rounds until the quantities decide, at most as often as the protocol looks again; all into the report.

    Args:
        take: one set of rounds, ms, a row a label.
        quantities: what the check is about, from all rounds so far.
        undecided: whether further rounds could tell more.

    Raises:
        what `judge.suspect` raises: an event gave no positive time. InfrastructureError: the device is held by others.
    """
    gpu = detect().gpu
    name = gpu.uuid if gpu is not None else "cuda"
    with device_lock(name):
        before = environment.sample(name)
        rounds, attempts = _positive(judge, labels, take()), 1
        found = quantities(rounds)
        while undecided(found) and attempts <= RULES.retries:
            more = _positive(judge, labels, take())
            rounds = {label: np.concatenate([times, more[label]]) for label, times in rounds.items()}
            found, attempts = quantities(rounds), attempts + 1
        state = environment.before_and_after(before, environment.sample(name))
    _report(judge, rounds, found, attempts)
    for label, value in state.items():
        judge.measure(label, value)
    return rounds, found


def _positive(judge: Judge, labels: Sequence[str], times: Array) -> Rounds:
    if times.ndim != 2 or len(times) != len(labels) or times.size == 0 or not (times > 0).all():
        judge.suspect("The events gave no positive time for every launch.")
    return dict(zip(labels, times, strict=True))


def _report(judge: Judge, rounds: Rounds, found: dict[str, Interval], attempts: int) -> None:
    for label, times in rounds.items():
        low, middle, high = np.percentile(times, [25, 50, 75])
        judge.measure(f"{label}: median_ms", round(float(middle), 5))
        judge.measure(f"{label}: iqr_ms", round(float(high - low), 5))
    judge.measure("rounds", len(next(iter(rounds.values()))))
    judge.measure("attempts", attempts)
    for label, interval in found.items():
        judge.measure(label, [round(value, 4) for value in (interval.value, interval.low, interval.high)])


def ratio(above: Array, below: Array) -> Interval:
    """Median of `above` over `below`, round by round, with its interval."""
    return widened(median_interval((above / below).tolist(), RULES.confidence), RULES.placement)


def best(rounds: Rounds, prefix: str) -> Array:
    """Times of the case with the smallest median among those whose label begins so."""
    fitting: list[Any] = [times for label, times in rounds.items() if label.startswith(prefix)]
    return min(fitting, key=np.median)

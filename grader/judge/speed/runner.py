"""One workload of a contestant: the calls a window holds, and the outputs that are to be checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from grader.errors import InfrastructureError
from grader.judge.speed.draws import Block, Draw, DrawnCall
from grader.judge.speed.model import Array, Contestant, Picks, Rules, Workload
from grader.judge.speed.verdict import Heat, WindowTimes
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.timed import OpenTimer, Warmed
from grader.worker.wire import ITEM_SIZES

SETTLING = 5
"""Windows at most to find out how many calls fill one."""


class WrongOutput(Exception):
    """A timed call's output isn't what the function should give, or not its own; the message is for the student."""


@contextmanager
def told(contestant: Contestant) -> Iterator[None]:
    """A failure of a trusted contestant is the machine's or ours, and told as such."""
    try:
        yield
    except WorkerFailure as failure:
        if not contestant.trusted:
            raise
        raise InfrastructureError(
            f"The baseline {contestant.name} can't be timed here: {failure.message}",
            hint="Nothing was lost: grade again, on a machine where it works.",
        ) from failure


@dataclass(frozen=True, eq=False)
class _Sample:
    drawn: DrawnCall
    picks: Picks
    taken: dict[int, Array]


class Runner:
    """One workload of a contestant, its timer open.

    Args:
        memory_bytes: what the inputs and outputs of one window may take on the device.

    Attributes:
        calls: in a window, once `settle` has found it.
        warmed: what the first calls told. tuned: what was chosen of each launch's candidates, as text.
    """

    warmed = Warmed(0.0)
    tuned: tuple[str, ...] = ()

    def __init__(
        self,
        contestant: Contestant,
        timer: OpenTimer,
        workload: Workload,
        block: Block,
        rng: np.random.Generator,
        rules: Rules,
        *,
        memory_bytes: float,
    ) -> None:
        self._contestant = contestant
        self.name, self.trusted = contestant.name, contestant.trusted
        self.calls = 1
        self.timer, self.workload = timer, workload
        self._block, self._rng, self._rules = block, rng, rules
        self._most = most_calls(workload, rules, memory_bytes)
        self._samples: list[_Sample] = []

    def settle(self) -> None:
        """Warm up, then find the number of calls that fills a window.

        Raises:
            WorkerFailure: a call raises, or takes too long.
        """
        draw = self._draw(self._rules.warmup)
        with told(self._contestant):
            self.warmed = self.timer.warm(draw.offsets, draw.signs)
        guess_s = self.warmed.call_s
        for _ in range(SETTLING):
            self.calls = calls_for(guess_s, self._rules.window_s, self._most)
            guess_s = self.window(-1, self.calls).call_s
            if self.calls <= 1.4 * calls_for(guess_s, self._rules.window_s, self._most) <= 2.0 * self.calls:
                break

    def window(self, round_number: int, calls: int) -> WindowTimes:
        """One timed window of that many calls."""
        draw = self._draw(calls)
        chosen = min(self._rules.verified, calls)

        def choose() -> list[tuple[int, Picks]]:
            numbers = self._rng.choice(calls, size=chosen, replace=False)
            return [(int(number), self.workload.oracle.choose(self._rng)) for number in numbers]

        with told(self._contestant):
            seen = self.timer.window(draw.offsets, draw.signs, choose)
        for number, picks, taken in seen.rows:
            self._samples.append(_Sample(draw.call(number), picks, taken))
        return WindowTimes(round_number, calls, seen.claimed_s, seen.outside_s)

    def check_guards(self) -> None:
        """Raises WorkerFailure if a timed call wrote outside of its tensors."""
        with told(self._contestant):
            self.timer.check()

    def _draw(self, calls: int) -> Draw:
        return Draw.make(self._rng, self._block, self.workload.inputs, calls)

    def heat(self, windows: list[WindowTimes]) -> Heat:
        """The windows of one attempt, sorted into those of n calls and of more."""
        single = tuple(window for window in windows if window.calls == self.calls)
        double = tuple(window for window in windows if window.calls > self.calls)
        return Heat(self.name, single, double, self.trusted)

    def check(self) -> None:
        """Hold a random part of the outputs read since the last time to the oracle; few of a trusted contestant's.

        Raises:
            WrongOutput: one is wrong. InfrastructureError: one of a trusted contestant is.
        """
        samples, self._samples = self._samples, []
        wanted = min(len(samples), self._rules.checked // (8 if self.trusted else 1))
        for place in self._rng.choice(len(samples), size=wanted, replace=False):
            sample = samples[int(place)]
            problem = self.workload.oracle.problem(sample.drawn, sample.picks, sample.taken)
            if problem and self.trusted:
                raise InfrastructureError(f"The baseline {self.name} is wrong at {self.workload.label}: {problem}.")
            if problem:
                raise WrongOutput(
                    f"A timed call of `{self.workload.function}` gave a wrong output ({self.workload.label}): "
                    f"{problem}. Each call has new values, and its own output must be complete when the device is idle."
                )


def calls_for(call_s: float, window_s: float, most: int) -> int:
    """Calls that fill a window, at least one."""
    return max(1, min(most, round(window_s / max(call_s, 1e-9))))


def most_calls(workload: Workload, rules: Rules, memory_bytes: float) -> int:
    """Calls of a single window, so that one of twice as many still fits."""
    inputs = sum(spec.size * ITEM_SIZES[spec.dtype] for spec in workload.inputs if spec.kind == "normal")
    each = max(inputs + 2.0 * workload.output_bytes, 1.0)  # a backward pass keeps the forward's outputs too
    return max(1, min(rules.max_calls, math.floor(rules.memory_part * memory_bytes / each)) // 2)

"""Simulated races: clocks with jitter, drift, hiccups and latency, and contestants that lie about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.judge.speed.model import Rules
from grader.judge.speed.verdict import Alone, Attempt, Heat, WindowTimes

Claim = Callable[[float, int], float]
"""(true seconds of a window, calls in it) → claimed seconds."""


def honest(seconds: float, calls: int) -> float:
    return seconds


@dataclass(frozen=True)
class Noise:
    """What a machine does to times.

    Attributes:
        jitter: standard deviation of a window's time, relative.
        drift: of the random walk from round to round, which both contestants share, relative.
        hiccup, hiccup_s: chance that a window is interrupted, and mean length of that.
        latency_s: two messages and a wake-up, seen from outside only: a fixed part, and as much again at random.
        late, late_s: chance that a message waits for the judge's process, and how long.
    """

    jitter: float = 0.003
    drift: float = 0.002
    hiccup: float = 0.01
    hiccup_s: float = 0.002
    latency_s: float = 0.00015
    late: float = 0.03
    late_s: float = 0.003


GPU = Noise()
HOT_GPU = Noise(jitter=0.01, drift=0.008)
LATE = Noise(jitter=0.05, drift=0.02, hiccup=0.10, hiccup_s=0.004, latency_s=0.0004, late=0.5, late_s=0.010)
LATER = Noise(jitter=0.05, drift=0.02, hiccup=0.10, hiccup_s=0.004, latency_s=0.0004, late=0.8, late_s=0.020)
BUSY_CPU = Noise(jitter=0.05, drift=0.02, hiccup=0.10, hiccup_s=0.004, latency_s=0.0004, late=0.15, late_s=0.004)


@dataclass(frozen=True)
class Runner:
    """A contestant: seconds a call, how it claims, and a factor on its time while the other one is timed too."""

    call_s: float = 1e-3
    claim: Claim = honest
    slowed: float = 1.0
    crowded: float = 1.0
    """Factor on a call's time beyond the first n of a window: more memory than fits a cache."""
    trusted: bool = False

    def calls(self, rules: Rules) -> int:
        return max(1, round(rules.window_s / self.call_s))


class Machine:
    """A device with a temperature of its own."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self._noise, self._rng, self._pace = noise, np.random.default_rng(seed), 1.0

    @staticmethod
    def _full(runner: Runner) -> int:
        return runner.calls(Rules())

    def next_round(self) -> None:
        self._pace *= 1.0 + self._noise.drift * self._rng.standard_normal()

    def window(self, runner: Runner, number: int, calls: int, *, beside: bool = True) -> WindowTimes:
        rng, noise = self._rng, self._noise
        first = min(calls, self._full(runner))
        seconds = (
            (first + (calls - first) * runner.crowded)
            * runner.call_s
            * self._pace
            * max(0.5, 1.0 + noise.jitter * rng.standard_normal())
        )
        seconds *= runner.slowed if beside else 1.0
        if rng.random() < noise.hiccup:
            seconds += rng.exponential(noise.hiccup_s)
        outside = seconds + noise.latency_s * (1.0 + rng.random())
        if rng.random() < noise.late:
            outside += rng.exponential(noise.late_s)
        return WindowTimes(number, calls, runner.claim(seconds, calls), outside)

    def alone(self, runner: Runner, rules: Rules) -> tuple[float, ...]:
        windows = [self.window(runner, -1, runner.calls(rules), beside=False) for _ in range(rules.alone)]
        return tuple(window.call_s for window in windows)

    def attempt(self, ours: Runner, theirs: Runner | None, rules: Rules) -> Attempt:
        seen: dict[str, list[WindowTimes]] = {"ours": [], "theirs": []}
        for number in range(rules.rounds):
            self.next_round()
            turns = [("ours", ours, 1)]
            if theirs is not None:
                turns += [("theirs", theirs, 1), ("theirs", theirs, 1)]
            turns.append(("ours", ours, 1))
            if number % rules.cross_every == 0:
                turns += [("ours", ours, 2)] + ([("theirs", theirs, 2)] if theirs is not None else [])
            for name, runner, times in turns:
                seen[name].append(self.window(runner, number, times * runner.calls(rules)))
        return Attempt(
            heat("yours", ours, seen["ours"], rules),
            None if theirs is None else heat("base", theirs, seen["theirs"], rules),
        )


def heat(name: str, runner: Runner, windows: list[WindowTimes], rules: Rules) -> Heat:
    calls = runner.calls(rules)
    return Heat(
        name,
        tuple(window for window in windows if window.calls == calls),
        tuple(window for window in windows if window.calls > calls),
        runner.trusted,
    )


def simulated(
    noise: Noise, seed: int, ours: Runner, theirs: Runner | None, rules: Rules, floor_s: float = 0.0
) -> tuple[list[Attempt], Alone]:
    """As many attempts as a race makes, and the baseline alone before and after."""
    from grader.judge.speed import verdict

    machine = Machine(noise, seed)
    before = machine.alone(theirs, rules) if theirs is not None else ()
    attempts: list[Attempt] = []
    for _ in range(1 + rules.retries):
        attempts.append(machine.attempt(ours, theirs, rules))
        found = verdict.findings(attempts[-1], rules, floor_s)
        if not all(map(verdict.passing, found)) or not found:
            break
    return attempts, Alone(before, machine.alone(theirs, rules) if theirs is not None else ())

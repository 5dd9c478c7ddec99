"""A race: windows of a submission and of a baseline, each in a worker of its own, taking turns on one device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.speed import environment, verdict
from grader.judge.speed.draws import Block
from grader.judge.speed.lock import device_lock
from grader.judge.speed.model import Contestant, Interval, Race, Rules, Workload
from grader.judge.speed.runner import Runner, WrongOutput
from grader.judge.speed.verdict import Alone, Attempt, WindowTimes
from grader.profiles import HardwareProfile, detect
from grader.report.model import Scalar

__all__ = ["Track", "WrongOutput", "race", "roofline_s"]

if TYPE_CHECKING:
    from grader.sandbox.submission import Submission

GIB, MIB = 1 << 30, 1 << 20
UNKNOWN_L2_MIB = 64
"""More than any card had whose profile the course lacks, up to 2022; a larger cache keeps some inputs warm for both."""


def race(
    ours: Contestant,
    theirs: Contestant | None,
    workload: Workload,
    *,
    profile: HardwareProfile | None,
    rng: np.random.Generator,
    rules: Rules | None = None,
    edges: Sequence[float] = (),
) -> Race:
    """Time `ours`, and `theirs` beside it, under the device's lock.

    Args:
        profile: of this device; gives the roofline, the L2 cache and the memory. None: no floor is known.
        rng: the judge's stream; inputs and the choice of outputs to check come from it.
        edges: thresholds of the ratio (of the fraction of the roofline, when alone): while one lies inside the
            interval the race goes on, up to `rules.retries` further attempts.

    Raises:
        WrongOutput: a timed call of ours gave a wrong output.
        WorkerFailure: ours failed otherwise. InfrastructureError: theirs did, or the device isn't to be had.
    """
    with Track(theirs, workload, ours.submission, profile=profile, rng=rng, rules=rules) as track:
        return track.race(ours, edges)


def roofline_s(workload: Workload, profile: HardwareProfile | None, device: str) -> float:
    """max(bytes / bandwidth, FLOPs / peak) in seconds; 0 where the profile isn't of this kind of device."""
    if profile is None or (profile.vendor == "nvidia") is not (device == "cuda"):
        return 0.0
    peak = next((tflops for dtype, tflops in profile.peak_tflops.items() if dtype == workload.dtype), math.inf)
    return max(workload.bytes / (profile.bandwidth_gbs * 1e9), workload.flops / (peak * 1e12))


class Track:
    """A device with its lock held and a baseline's worker open, for one race after another at one workload.

    Use it in a `with` statement.

    Args:
        theirs: None to time others by themselves.
        on: any submission of those that will race, for the device and the limits.
    """

    def __init__(
        self,
        theirs: Contestant | None,
        workload: Workload,
        on: Submission,
        *,
        profile: HardwareProfile | None,
        rng: np.random.Generator,
        rules: Rules | None = None,
    ) -> None:
        self._theirs, self._workload = theirs, workload
        self._rng, self._rules = rng, rules or Rules()
        gpu = detect().gpu if on.device == "cuda" else None
        self._gpu = gpu.uuid if gpu is not None else ""
        self._floor_s = roofline_s(workload, profile, on.device)
        self._flush_bytes = int(2 * (profile.l2_mib if profile is not None else UNKNOWN_L2_MIB) * MIB)
        host_bytes = float(on.lab.limits.memory_mib * MIB)
        self._memory_bytes = profile.memory_gib * GIB if profile is not None and on.device == "cuda" else host_bytes
        self._block = Block.draw(rng, workload)
        self._device = on.device
        self._stack = ExitStack()
        self._second: Runner | None = None

    def __enter__(self) -> Track:
        with ExitStack() as opening:
            opening.enter_context(device_lock(self._gpu or self._device))
            if self._theirs is not None:
                self._second = opening.enter_context(self._runner(self._theirs))
            self._stack = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def race(self, ours: Contestant, edges: Sequence[float] = ()) -> Race:
        """One race; see `race`.

        A baseline that was slower beside the submission is no evidence by itself: other jobs of the machine may have
        come and gone. It is looked at again, with a new worker of `ours`, and only what lasts is held against it.
        """
        for _ in range(verdict.LASTING):
            (attempts,), alone, state = self._look(ours, 1, edges)
            ran = self._result(attempts, alone, state)
            if not verdict.only_slowed(attempts, alone, self._rules, self._floor_s):
                return ran
        return replace(ran, reason=f"{ran.reason}, each of {verdict.LASTING} times")

    def repeat(self, ours: Contestant, count: int, edges: Sequence[float] = ()) -> list[Race]:
        """As many races with one worker of `ours`, each judged by its own windows."""
        series, alone, state = self._look(ours, count, edges)
        return [self._result(attempts, alone, state) for attempts in series]

    def _look(
        self, ours: Contestant, count: int, edges: Sequence[float]
    ) -> tuple[list[list[Attempt]], Alone, dict[str, Scalar]]:
        """Attempts of races with one worker of `ours`, the baseline alone before and after it, and the GPU's state."""
        before, alone_before = self._sample(), self._alone()
        with self._runner(ours) as first:
            series = [self._attempts(first, edges) for _ in range(count)]
        alone = Alone(alone_before, self._alone())
        return series, alone, environment.before_and_after(before, self._sample())

    def _attempts(self, first: Runner, edges: Sequence[float]) -> list[Attempt]:
        """Attempts until one settles it. Every attempt's outputs are checked before anything is made of its times."""
        attempts: list[Attempt] = []
        for _ in range(1 + self._rules.retries):
            attempts.append(self._attempt(first, self._second))
            first.check()
            if self._second is not None:
                self._second.check()
            if self._settled(attempts, edges):
                break
        return attempts

    def _runner(self, contestant: Contestant) -> Runner:
        return Runner(
            contestant,
            self._workload,
            self._block,
            self._rng,
            self._rules,
            memory_bytes=self._memory_bytes,
            flush_bytes=self._flush_bytes,
        )

    def _sample(self) -> dict[str, Scalar]:
        return environment.sample(self._gpu) if self._gpu else {}

    def _alone(self) -> tuple[float, ...]:
        """The baseline's seconds a call while no other worker runs; the first window isn't kept."""
        second = self._second
        if second is None:
            return ()
        times = [second.window(-1, second.calls).call_s for _ in range(self._rules.alone + 1)]
        return tuple(times[1:])

    def _attempt(self, first: Runner, second: Runner | None) -> Attempt:
        """All rounds once: A B B A, and now and then a window of twice the calls of each."""
        rules = self._rules
        ours: list[WindowTimes] = []
        theirs: list[WindowTimes] = []
        watched = int(self._rng.integers(rules.rounds))  # at any time, so that no call knows whether it's looked at
        for number in range(-rules.discarded, rules.rounds):
            if number == watched:
                first.watch()
            turns: list[tuple[Runner, list[WindowTimes], int]] = [(first, ours, 1)]
            if second is not None:
                turns += [(second, theirs, 1), (second, theirs, 1)]
            turns += [(first, ours, 1)]
            # In the rounds that aren't kept too, so that their memory is there when it counts.
            if number < 0 or number % rules.cross_every == 0:
                turns += [(first, ours, 2)] + ([(second, theirs, 2)] if second is not None else [])
            for runner, seen, times in turns:
                window = runner.window(number, times * runner.calls)
                if number >= 0:
                    seen.append(window)
        return Attempt(first.heat(ours), second.heat(theirs) if second is not None else None)

    def _settled(self, attempts: list[Attempt], edges: Sequence[float]) -> bool:
        """Whether another attempt could tell nothing new."""
        found = verdict.findings(attempts[-1], self._rules, self._floor_s)
        if found:
            return not all(map(verdict.passing, found))
        interval = self._interval(verdict.kept(attempts, self._rules, self._floor_s))
        return interval is None or not verdict.straddles(interval, edges)

    def _interval(self, attempts: Sequence[Attempt]) -> Interval | None:
        """What thresholds are compared with: the ratio, or alone the fraction of the roofline."""
        if self._theirs is not None:
            return verdict.ratio_of(attempts, self._rules)
        timed = verdict.timing([attempt.ours for attempt in attempts], self._rules)
        return verdict.fraction_of(timed, self._floor_s)

    def _result(self, attempts: list[Attempt], alone: Alone, state: dict[str, Scalar]) -> Race:
        kept = verdict.kept(attempts, self._rules, self._floor_s)
        ours = verdict.timing([attempt.ours for attempt in kept], self._rules)
        others = [attempt.theirs for attempt in kept if attempt.theirs is not None]
        ratio = verdict.ratio_of(kept, self._rules) or Interval(math.nan, math.nan, math.nan)
        told, reason = verdict.conclude(attempts, alone, self._rules, self._floor_s)
        return Race(
            label=self._workload.label,
            ours=ours,
            theirs=verdict.timing(others, self._rules) if others else None,
            ratio=ratio.value,
            low=ratio.low,
            high=ratio.high,
            fraction=verdict.fraction_of(ours, self._floor_s),
            roofline_s=self._floor_s,
            verdict=told,
            reason=reason,
            attempts=len(attempts),
            environment=state,
        )

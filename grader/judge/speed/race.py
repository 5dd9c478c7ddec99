"""A race: windows of a submission and of a baseline, each in a worker of its own, taking turns on one device."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from grader.judge.speed import environment, verdict
from grader.judge.speed.draws import Block
from grader.judge.speed.entrant import Entrant
from grader.judge.speed.model import Contestant, Interval, Race, Rules, Workload
from grader.judge.speed.runner import Runner, WrongOutput
from grader.judge.speed.verdict import Alone, Attempt, WindowTimes
from grader.profiles import HardwareProfile, detect
from grader.report.model import Scalar
from grader.sandbox.device_lock import device_lock

__all__ = ["Track", "WrongOutput", "race", "roofline_s"]

if TYPE_CHECKING:
    from grader.sandbox.submission import Submission

GIB, MIB = 1 << 30, 1 << 20
UNKNOWN_L2_MIB = 64
"""More than any card had whose profile the course lacks, up to 2022; a larger cache keeps some inputs warm for both."""


def race(
    ours: Contestant,
    theirs: Contestant | None,
    workloads: Sequence[Workload],
    *,
    profile: HardwareProfile | None,
    rng: np.random.Generator,
    rules: Rules | None = None,
    edges: Sequence[float] = (),
) -> list[Race]:
    """Time `ours`, and `theirs` beside it, at each workload.

    Args:
        profile: of this device; gives the roofline, the L2 cache and the memory. None: no floor is known.
        rng: the judge's stream; inputs and the choice of outputs to check come from it.
        edges: thresholds of the ratio (of the fraction of the roofline, when alone): while one lies inside the
            interval the race goes on, up to `rules.retries` further attempts.

    Raises:
        WrongOutput: a timed call of ours gave a wrong output.
        WorkerFailure: ours failed otherwise. InfrastructureError: theirs did, or the device isn't to be had.
    """
    with Track(theirs, workloads, ours.submission, profile=profile, rng=rng, rules=rules) as track:
        return track.race(ours, edges)


def roofline_s(workload: Workload, profile: HardwareProfile | None, device: str) -> float:
    """max(bytes / bandwidth, FLOPs / peak) in seconds; 0 where the profile isn't of this kind of device."""
    if profile is None or (profile.vendor == "nvidia") is not (device == "cuda"):
        return 0.0
    peak = next((tflops for dtype, tflops in profile.peak_tflops.items() if dtype == workload.dtype), math.inf)
    return max(workload.bytes / (profile.bandwidth_gbs * 1e9), workload.flops / (peak * 1e12))


@dataclass(frozen=True)
class _Look:
    """What was seen at one workload: the attempts of each race, and the baseline alone."""

    ours: Runner
    series: list[list[Attempt]]
    alone: Alone
    state: dict[str, Scalar] = field(default_factory=dict)


class Track:
    """A baseline's worker, open for one race after another at some workloads.

    The device's lock is held while windows are timed, and for nothing else. Use it in a `with` statement.

    Args:
        theirs: None to time others by themselves. It's opened in the background.
        on: any submission of those that will race, for the device and the limits.
    """

    def __init__(
        self,
        theirs: Contestant | None,
        workloads: Sequence[Workload],
        on: Submission,
        *,
        profile: HardwareProfile | None,
        rng: np.random.Generator,
        rules: Rules | None = None,
    ) -> None:
        self._theirs, self._workloads = theirs, list(workloads)
        self._rng, self._rules = rng, rules or Rules()
        gpu = detect().gpu if on.device == "cuda" else None
        self._gpu = gpu.uuid if gpu is not None else ""
        self._floors_s = [roofline_s(workload, profile, on.device) for workload in workloads]
        self._flush_bytes = int(2 * (profile.l2_mib if profile is not None else UNKNOWN_L2_MIB) * MIB)
        host_bytes = float(on.lab.limits.memory_mib * MIB)
        self._memory_bytes = profile.memory_gib * GIB if profile is not None and on.device == "cuda" else host_bytes
        self._block = Block.draw(rng, workloads)
        self._device = self._gpu or on.device
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="baseline")
        self._opening: Future[Entrant] | None = None

    def __enter__(self) -> Track:
        if self._theirs is not None:
            self._opening = self._pool.submit(self._entrant, self._theirs, self._child())
        return self

    def __exit__(self, *_: object) -> None:
        if self._opening is not None and self._opening.done() and self._opening.exception() is None:
            self._opening.result().__exit__()
        elif self._theirs is not None:
            self._theirs.submission.close()  # it waits for nobody any more
        self._pool.shutdown()

    def race(self, ours: Contestant, edges: Sequence[float] = ()) -> list[Race]:
        """One race a workload; see `race`.

        A baseline that was slower beside the submission is no evidence by itself: other jobs of the machine may have
        come and gone. It is looked at again, and only what lasts is held against the submission.
        """
        with self._entrant(ours, self._child()) as first:
            second = self._opening.result() if self._opening is not None else None
            races: dict[int, Race] = {}
            for look in range(1, verdict.LASTING + 1):
                left = [place for place in range(len(self._workloads)) if place not in races]
                for place, seen in self._looks(first, second, left, 1, edges).items():
                    ran = self._result(place, seen.series[0], seen)
                    if not verdict.only_slowed(seen.series[0], seen.alone, self._rules, self._floors_s[place]):
                        races[place] = ran
                    elif look == verdict.LASTING:
                        races[place] = replace(ran, reason=f"{ran.reason}, each of {look} times")
        return [races[place] for place in range(len(self._workloads))]

    def repeat(self, ours: Contestant, count: int, edges: Sequence[float] = ()) -> list[Race]:
        """As many races at the first workload, opened once, each judged by its own windows."""
        with self._entrant(ours, self._child()) as first:
            second = self._opening.result() if self._opening is not None else None
            seen = self._looks(first, second, [0], count, edges)[0]
        return [self._result(0, attempts, seen) for attempts in seen.series]

    def _child(self) -> np.random.Generator:
        """A stream for a contestant: they are opened side by side, and a grade must come out again as it was."""
        return np.random.default_rng(self._rng.integers(0, 1 << 63, size=4))

    def _entrant(self, contestant: Contestant, rng: np.random.Generator) -> Entrant:
        return Entrant(
            contestant,
            self._workloads,
            self._block,
            rng,
            self._rules,
            device=self._device,
            memory_bytes=self._memory_bytes,
            flush_bytes=self._flush_bytes,
        )

    def _looks(
        self, first: Entrant, second: Entrant | None, places: Sequence[int], count: int, edges: Sequence[float]
    ) -> dict[int, _Look]:
        """At each of the workloads: attempts of races, the baseline alone before and after them, and the GPU's state.

        Every output is checked before anything is made of the times, and once the device is free again.
        """
        found: dict[int, _Look] = {}
        before = self._sample()
        with device_lock(self._device):
            for place in places:
                began = time.monotonic()
                runners = first.runners[place], second.runners[place] if second is not None else None
                alone = self._alone(runners[1])
                series = [self._attempts(place, *runners, edges) for _ in range(count)]
                found[place] = _Look(runners[0], series, Alone(alone, self._alone(runners[1])))
                runners[0].check_guards()
                found[place].state["device held_s"] = round(time.monotonic() - began, 2)
        state = environment.before_and_after(before, self._sample())
        for place in places:
            for entrant in (first, second):
                if entrant is not None:
                    entrant.runners[place].check()
            found[place].state.update(state)
        return found

    def _attempts(self, place: int, first: Runner, second: Runner | None, edges: Sequence[float]) -> list[Attempt]:
        """Attempts until one settles it."""
        attempts: list[Attempt] = []
        for _ in range(1 + self._rules.retries):
            attempts.append(self._attempt(first, second))
            if self._settled(place, attempts, edges):
                break
        return attempts

    def _sample(self) -> dict[str, Scalar]:
        return environment.sample(self._gpu) if self._gpu else {}

    def _alone(self, second: Runner | None) -> tuple[float, ...]:
        """The baseline's seconds a call while nothing else runs; the first window isn't kept."""
        if second is None:
            return ()
        times = [second.window(-1, second.calls).call_s for _ in range(self._rules.alone + 1)]
        return tuple(times[1:])

    def _attempt(self, first: Runner, second: Runner | None) -> Attempt:
        """All rounds once: A B B A, and now and then a window of twice the calls of each."""
        rules = self._rules
        ours: list[WindowTimes] = []
        theirs: list[WindowTimes] = []
        for number in range(-rules.discarded, rules.rounds):
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

    def _settled(self, place: int, attempts: list[Attempt], edges: Sequence[float]) -> bool:
        """Whether another attempt could tell nothing new."""
        floor_s = self._floors_s[place]
        found = verdict.findings(attempts[-1], self._rules, floor_s)
        if found:
            return not all(map(verdict.passing, found))
        interval = self._interval(verdict.kept(attempts, self._rules, floor_s), floor_s)
        return interval is None or not verdict.straddles(interval, edges)

    def _interval(self, attempts: Sequence[Attempt], floor_s: float) -> Interval | None:
        """What thresholds are compared with: the ratio, or alone the fraction of the roofline."""
        if self._theirs is not None:
            return verdict.ratio_of(attempts, self._rules)
        timed = verdict.timing([attempt.ours for attempt in attempts], self._rules)
        return verdict.fraction_of(timed, floor_s)

    def _result(self, place: int, attempts: list[Attempt], seen: _Look) -> Race:
        floor_s = self._floors_s[place]
        kept = verdict.kept(attempts, self._rules, floor_s)
        ours = verdict.timing([attempt.ours for attempt in kept], self._rules)
        others = [attempt.theirs for attempt in kept if attempt.theirs is not None]
        ratio = verdict.ratio_of(kept, self._rules) or Interval(math.nan, math.nan, math.nan)
        said, reason = verdict.conclude(attempts, seen.alone, self._rules, floor_s)
        work = seen.ours.warmed
        return Race(
            label=self._workloads[place].label,
            ours=replace(ours, launches=work.launches, operations=work.operations, tuned=seen.ours.tuned),
            theirs=verdict.timing(others, self._rules) if others else None,
            ratio=ratio.value,
            low=ratio.low,
            high=ratio.high,
            fraction=verdict.fraction_of(ours, floor_s),
            roofline_s=floor_s,
            verdict=said,
            reason=reason,
            attempts=len(attempts),
            environment=seen.state,
        )

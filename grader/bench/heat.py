"""One shape: every kernel's outputs tested, then windows of those that are right, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from grader.bench.lanes import Lane
from grader.bench.plans import Point
from grader.judge.speed import verdict
from grader.judge.speed.draws import Block
from grader.judge.speed.entrant import Entrant
from grader.judge.speed.model import Rules, Timing
from grader.judge.speed.runner import Runner, WrongOutput
from grader.judge.speed.verdict import Attempt, WindowTimes
from grader.sandbox.failures import WorkerFailure


@dataclass
class Outcome:
    """How one kernel fared at one shape.

    Attributes:
        timing: None where an output was wrong or a call failed.
        wrong: what is wrong with an output. failed: why no output came. Both empty for a row with a time.
        doubts: what speaks against the time, phrases.
    """

    lane: Lane
    point: Point
    timing: Timing | None = None
    wrong: str = ""
    failed: str = ""
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Track:
    """What all kernels at a shape are timed with.

    Attributes:
        device: name of its lock, which is held. memory_bytes: of the device. flush_bytes: written before a window.
        floor_s: seconds that a workload takes at least on this device, 0 where that isn't known.
    """

    rules: Rules
    device: str
    memory_bytes: float
    flush_bytes: int
    floor_s: Callable[[Point], float]


class _Runs:
    """A kernel that is being timed."""

    def __init__(self, outcome: Outcome, runner: Runner) -> None:
        self.outcome, self._runner = outcome, runner
        self._windows: list[WindowTimes] = []

    @property
    def alive(self) -> bool:
        return not (self.outcome.wrong or self.outcome.failed)

    def test(self) -> None:
        """Hold all outputs that were read since the last time to the oracle."""
        try:
            self._runner.check()
        except WrongOutput as error:
            self.outcome.wrong = str(error)

    def window(self, number: int) -> None:
        try:
            seen = self._runner.window(number, self._runner.calls)
        except WorkerFailure as failure:
            self.outcome.failed = failure.message
            return
        if number >= 0:
            self._windows.append(seen)

    def finish(self, track: Track) -> None:
        """The times, once the outputs of the timed calls are found right too."""
        try:
            self._runner.check_guards()
        except WorkerFailure as failure:
            self.outcome.failed = failure.message
            return
        self.test()
        if not self.alive or not self._windows:
            return
        heat = self._runner.heat(self._windows)
        self.outcome.timing = verdict.timing([heat], track.rules)
        found = verdict.findings(Attempt(heat, None), track.rules, track.floor_s(self.outcome.point))
        self.outcome.doubts = [finding.text for finding in found]


def run_shape(
    entries: Sequence[tuple[Lane, Point]], track: Track, rng: np.random.Generator, tell: Callable[[str], None]
) -> list[Outcome]:
    """Test and time kernels at one shape.

    Args:
        tell: told which kernel is being tested, and when the timing begins.
    """
    outcomes = [Outcome(lane, point) for lane, point in entries]
    if not outcomes:
        return []
    block = Block.draw(rng, [outcomes[0].point.workload])
    running: list[_Runs] = []
    with ExitStack() as stack:
        for outcome in outcomes:
            tell(f"testing {outcome.lane.entry.name}")
            try:
                (runner,) = stack.enter_context(_entrant(outcome, block, track, rng)).runners
            except WorkerFailure as failure:
                outcome.failed = failure.message
                continue
            runs = _Runs(outcome, runner)
            runs.test()
            if runs.alive:
                running.append(runs)
        if running:
            tell(f"timing {', '.join(runs.outcome.lane.entry.name for runs in running)}")
        for number in range(-track.rules.discarded, track.rules.rounds):
            # There and back, so that no kernel always runs on the card that another has just heated.
            for runs in [*running, *reversed(running)]:
                if runs.alive:
                    runs.window(number)
        for runs in running:
            if runs.alive:
                runs.finish(track)
    return outcomes


def _entrant(outcome: Outcome, block: Block, track: Track, rng: np.random.Generator) -> Entrant:
    return Entrant(
        outcome.lane.contestant,
        [outcome.point.workload],
        block,
        rng,
        track.rules,
        device=track.device,
        memory_bytes=track.memory_bytes,
        flush_bytes=track.flush_bytes,
    )

"""One contestant in a race: its worker, the calls a window holds, and the outputs that are to be checked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from grader.errors import InfrastructureError
from grader.judge.speed.draws import Block, Draw, DrawnCall, open_request
from grader.judge.speed.model import Array, Contestant, Picks, Rules, Workload
from grader.judge.speed.verdict import Heat, WindowTimes
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.timed import TimedWorker
from grader.worker.wire import ITEM_SIZES

SETTLING = 5
"""Windows at most to find out how many calls fill one."""

RARELY = 0.9
"""Part of the windows in which a thread must not be seen at work: a compiler's pool may fold up in one of them."""


class WrongOutput(Exception):
    """A timed call's output isn't what the function should give, or not its own; the message is for the student."""


@dataclass(frozen=True, eq=False)
class _Sample:
    drawn: DrawnCall
    picks: Picks
    taken: dict[int, Array]


class Runner:
    """A contestant with an open worker. Use it in a `with` statement.

    Args:
        memory_bytes: what the inputs and outputs of one window may take on the device.
        flush_bytes: written before each window, at least twice the L2 cache.

    Raises:
        WorkerFailure: the submission can't be imported, raises, takes too long.
        InfrastructureError: a trusted contestant did.
    """

    def __init__(
        self,
        contestant: Contestant,
        workload: Workload,
        block: Block,
        rng: np.random.Generator,
        rules: Rules,
        *,
        memory_bytes: float,
        flush_bytes: int,
    ) -> None:
        self.name, self.trusted = contestant.name, contestant.trusted
        self._kernels = contestant.kernels
        self.calls = 1
        self._workload, self._block, self._rng, self._rules = workload, block, rng, rules
        self._most = most_calls(workload, rules, memory_bytes)
        self._threads: list[int] = []
        self._samples: list[_Sample] = []
        function = contestant.function or workload.function
        module = contestant.module or workload.module
        with self._told():
            self._worker: TimedWorker = contestant.submission.timed(function, module)
            try:
                self._worker.open(
                    open_request(
                        workload,
                        block,
                        flush_bytes=flush_bytes,
                        module=module or contestant.submission.module,
                        function=function,
                        kwargs=workload.kwargs if contestant.kwargs is None else contestant.kwargs,
                    )
                )
                self._settle()
            except BaseException:
                self._worker.close()
                raise

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its worker."""
        self._worker.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A failure of a trusted contestant is the machine's or ours, and told as such."""
        try:
            yield
        except WorkerFailure as failure:
            if not self.trusted:
                raise
            raise InfrastructureError(
                f"The baseline {self.name} can't be timed here ({self._workload.label}): {failure.message}",
                hint="Nothing was lost: grade again, on a machine where it works.",
            ) from failure

    def _settle(self) -> None:
        """Warm up, then find the number of calls that fills a window."""
        draw = self._draw(self._rules.warmup)
        guess_s = self._worker.warm(draw.offsets, draw.signs)
        for _ in range(SETTLING):
            self.calls = calls_for(guess_s, self._rules.window_s, self._most)
            guess_s = self.window(-1, self.calls).call_s
            if self.calls <= 1.4 * calls_for(guess_s, self._rules.window_s, self._most) <= 2.0 * self.calls:
                break

    def watch(self) -> None:
        """See to it that calls do their work in Triton kernels, where that is asked of the contestant.

        As many as in a window: one by itself could be told from those that follow another.

        Raises:
            WrongOutput: one launches none, or a library does the work. WorkerFailure: the call failed.
        """
        if not self._kernels:
            return
        draw = self._draw(self.calls)
        with self._told():
            launches, used = self._worker.watch(draw.offsets, draw.signs)
        told = f"`{self._workload.function}` {{}} at a shape that is timed ({self._workload.label}); what is timed "
        told += "must be the work of your own kernels."
        if used:
            raise WrongOutput(told.format(f"calls {', '.join(used)}"))
        if not launches:
            raise WrongOutput(told.format("launches no Triton kernel"))

    def window(self, round_number: int, calls: int) -> WindowTimes:
        """One timed window of that many calls."""
        draw = self._draw(calls)
        chosen = min(self._rules.verified, calls)

        def choose() -> list[tuple[int, Picks]]:
            numbers = self._rng.choice(calls, size=chosen, replace=False)
            return [(int(number), self._workload.oracle.choose(self._rng)) for number in numbers]

        with self._told():
            seen = self._worker.window(draw.offsets, draw.signs, choose)
        if round_number >= 0:
            self._threads.append(seen.threads)
        for number, picks, taken in seen.rows:
            self._samples.append(_Sample(draw.call(number), picks, taken))
        # The calls whose backward pass is timed are made before the window: there contestants may differ.
        before_s = 0.0 if self._workload.mode == "backward" else seen.before_s
        return WindowTimes(round_number, calls, seen.claimed_s, seen.outside_s, before_s + seen.after_s)

    def _draw(self, calls: int) -> Draw:
        return Draw.make(self._rng, self._block, self._workload.inputs, calls)

    def heat(self, windows: list[WindowTimes]) -> Heat:
        """The windows of one attempt, sorted into those of n calls and of more."""
        single = tuple(window for window in windows if window.calls == self.calls)
        double = tuple(window for window in windows if window.calls > self.calls)
        counts, self._threads = sorted(self._threads), []
        threads = counts[int(RARELY * len(counts))] if counts else 0
        return Heat(self.name, single, double, threads, self.trusted)

    def check(self) -> None:
        """Hold a random part of the outputs read since the last time to the oracle; few of a trusted contestant's.

        Raises:
            WrongOutput: one is wrong. InfrastructureError: one of a trusted contestant is.
        """
        samples, self._samples = self._samples, []
        wanted = min(len(samples), self._rules.checked // (8 if self.trusted else 1))
        for place in self._rng.choice(len(samples), size=wanted, replace=False):
            sample = samples[int(place)]
            problem = self._workload.oracle.problem(sample.drawn, sample.picks, sample.taken)
            if problem and self.trusted:
                raise InfrastructureError(f"The baseline {self.name} is wrong at {self._workload.label}: {problem}.")
            if problem:
                raise WrongOutput(
                    f"A timed call of `{self._workload.function}` gave a wrong output ({self._workload.label}): "
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

"""A worker in which one function is timed: windows of calls, seen by its own clock and by the judge's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grader.sandbox.client import WorkerClient
from grader.sandbox.failures import ContractViolated
from grader.sandbox.hosting import Hosted, Hosts

Array = NDArray[Any]
Picks = dict[int, Array]
"""Output number → indices (n, axes) along its first axes."""


@dataclass(frozen=True, eq=False)
class TimedWindow:
    """One window.

    Attributes:
        calls: made in it.
        claimed_s, outside_s: by the worker's clock around the calls, and by the judge's around those and two messages.
        before_s, after_s: by the judge's clock, from the draw's leaving to the window's begin, and from the telling of
            the rows that are wanted to their arrival.
        threads: Python threads of the submission that did something in it.
        rows: for each call that was picked: its number, what was picked of it, and those rows by output number.
    """

    calls: int
    claimed_s: float
    outside_s: float
    before_s: float
    after_s: float
    threads: int
    rows: list[tuple[int, Picks, dict[int, Array]]]


class _Gate:
    """What the worker calls when a window begins and when it's over."""

    def __init__(self, choose: Callable[[], list[tuple[int, Picks]]]) -> None:
        self._choose = choose
        self.started = self.ended = self.answered = 0.0
        self.claimed_ns = self.threads = -1
        self.picks: list[tuple[int, Picks]] = []

    def go(self) -> bool:
        self.started = time.perf_counter()
        return True

    def done(self, claimed_ns: int, threads: int) -> list[Any]:
        self.ended = time.perf_counter()
        self.claimed_ns, self.threads = claimed_ns, threads
        self.picks = self._choose()
        wanted = [[call, [[output, rows] for output, rows in picks.items()]] for call, picks in self.picks]
        self.answered = time.perf_counter()
        return wanted


class TimedWorker:
    """Talks to a worker that imported the submission and has done nothing else yet.

    Args:
        client: that worker's; closed with this. timeout_s: limit on a window. warm_s: limit on the first calls.
        name: of the function, for messages.
    """

    def __init__(self, client: WorkerClient, name: str, *, timeout_s: float, warm_s: float) -> None:
        self._client, self._name = client, name
        self._timeout_s, self._warm_s = timeout_s, warm_s

    def __enter__(self) -> TimedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self._client.close()

    def open(self, body: dict[str, Any]) -> None:
        """Bind function and inputs; see `grader.worker.timing.open_timer`.

        Raises:
            WorkerFailure: the function isn't there, or memory ran out.
        """
        self._client.request("time_open", body, timeout_s=self._warm_s, doing=f"preparing to time `{self._name}`")

    def warm(self, offsets: Array, signs: Array) -> float:
        """One untimed call of each draw; seconds that the last one took.

        Raises:
            WorkerFailure: it raised, or took too long.
        """
        took = self._client.request(
            "time_warm",
            {"offsets": offsets, "signs": signs},
            timeout_s=self._warm_s,
            doing=f"calling `{self._name}` for the first time",
            phase="compile",
        )
        if type(took) is not int or took < 0:
            raise ContractViolated(f"The first calls of `{self._name}` were not answered with a time.")
        return took * 1e-9

    def watch(self, offsets: Array, signs: Array) -> tuple[int, list[str]]:
        """Untimed calls: the fewest Triton launches of one, and library operations that could do a kernel's work.

        Raises:
            WorkerFailure: it raised, took too long, or answered out of form.
        """
        found = self._client.request(
            "time_watch",
            {"offsets": offsets, "signs": signs},
            timeout_s=self._timeout_s,
            doing=f"calling `{self._name}`",
        )
        if type(found) is list and len(found) == 2 and type(found[0]) is int and type(found[1]) is list:
            launches, names = found
            if all(type(name) is str for name in names):
                return launches, names
        raise ContractViolated(f"A watched call of `{self._name}` was answered out of form.")

    def window(self, offsets: Array, signs: Array, choose: Callable[[], list[tuple[int, Picks]]]) -> TimedWindow:
        """One timed window.

        Args:
            offsets, signs: the draw, revealed with this request; see `grader.worker.timing.Timer.window`.
            choose: says after the window which rows of which calls to read.

        Raises:
            WorkerFailure: it raised, took too long, or answered out of form.
        """
        hosts = Hosts()
        gate = _Gate(choose)
        body = {"offsets": offsets, "signs": signs, "gate": hosts.replace(Hosted(gate, ("go", "done")))}
        sent = time.perf_counter()
        rows = self._client.request(
            "time_window", body, timeout_s=self._timeout_s, doing=f"timing `{self._name}`", hosts=hosts
        )
        arrived = time.perf_counter()
        broken = ContractViolated(f"A timed window of `{self._name}` was answered out of form.")
        if not (gate.started and gate.ended > gate.started):
            raise broken
        if type(gate.claimed_ns) is not int or type(gate.threads) is not int or gate.claimed_ns <= 0:
            raise broken
        if type(rows) is not list or len(rows) != len(gate.picks):
            raise broken
        taken = []
        for (call, picks), found in zip(gate.picks, rows, strict=True):
            if type(found) is not list or len(found) != len(picks):
                raise broken
            for array, indices in zip(found, picks.values(), strict=True):
                if not isinstance(array, np.ndarray) or array.shape[:1] != indices.shape[:1]:
                    raise broken
            taken.append((call, picks, dict(zip(picks, found, strict=True))))
        return TimedWindow(
            len(offsets),
            gate.claimed_ns * 1e-9,
            gate.ended - gate.started,
            gate.started - sent,
            arrived - gate.answered,
            gate.threads,
            taken,
        )

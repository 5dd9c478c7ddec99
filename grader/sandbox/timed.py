"""A worker in which calls are timed: windows of them, seen by its own clock and by the judge's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grader.sandbox.client import WorkerClient
from grader.sandbox.failures import ContractViolated, Phase, WorkerFailure
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
        rows: for each call that was picked: its number, what was picked of it, and those rows by output number.
    """

    calls: int
    claimed_s: float
    outside_s: float
    rows: list[tuple[int, Picks, dict[int, Array]]]


@dataclass(frozen=True)
class Warmed:
    """What the first calls told.

    Attributes:
        call_s: seconds that the last of them took.
        launches, operations: kernel launches and device operations (launches, copies, fills, arithmetic) of one call;
            None of a function, whose calls nobody looks into.
    """

    call_s: float
    launches: int | None = None
    operations: int | None = None


class _Gate:
    """What the worker calls when a window begins and when it's over."""

    def __init__(self, choose: Callable[[], list[tuple[int, Picks]]]) -> None:
        self._choose = choose
        self.started = self.ended = 0.0
        self.claimed_ns = -1
        self.picks: list[tuple[int, Picks]] = []

    def go(self) -> bool:
        self.started = time.perf_counter()
        return True

    def done(self, claimed_ns: int) -> list[Any]:
        self.ended = time.perf_counter()
        self.claimed_ns = claimed_ns
        self.picks = self._choose()
        return [[call, [[output, rows] for output, rows in picks.items()]] for call, picks in self.picks]


class TimedWorker:
    """Talks to a worker in which timers can be opened, several at a time; leaving its `with` block ends it.

    Args:
        client: that worker's. lent: it's somebody else's: leaving the block only closes the timers.
        name: of what is timed, for messages. timeout_s: limit on a window. warm_s: limit on the first calls.
    """

    def __init__(self, client: WorkerClient, name: str, *, timeout_s: float, warm_s: float, lent: bool = False) -> None:
        self._client, self._name, self._lent = client, name, lent
        self._timeout_s, self._warm_s = timeout_s, warm_s
        self._number = 0

    def __enter__(self) -> TimedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._lent:
            self._client.close()
        elif not self._client.closed:
            with contextlib.suppress(WorkerFailure):
                self._client.request("time_end", {}, timeout_s=self._timeout_s, doing="freeing memory")

    def begin(self, block: Array, flush_bytes: int) -> None:
        """Send the normal numbers that inputs are made of, for all timers; see `grader.worker.timing.open_memory`.

        Raises:
            WorkerFailure: memory ran out.
        """
        body = {"block": block, "flush_bytes": flush_bytes}
        self._client.request("time_begin", body, timeout_s=self._warm_s, doing=f"preparing to time `{self._name}`")

    def open(self, body: dict[str, Any]) -> OpenTimer:
        """Bind what is timed and its inputs; see `grader.worker.timing` and `grader.worker.execute.timing`.

        Raises:
            WorkerFailure: the function isn't there, a kernel can't be compiled, or memory ran out.
        """
        self._number += 1
        body = {**body, "timer": self._number}
        doing = f"preparing to time `{self._name}`"
        choices = self._client.request("time_open", body, timeout_s=self._warm_s, doing=doing, phase="compile")
        if type(choices) is not int:
            raise ContractViolated(f"Opening a timer of `{self._name}` was not answered with a number.")
        return OpenTimer(self, self._number, choices)

    def ask(self, kind: str, body: dict[str, Any], *, warm: bool = False, hosts: Hosts | None = None) -> Any:
        """One request about a timer, under the limit of a window or, with `warm`, of the first calls."""
        doing = f"calling `{self._name}` for the first time" if warm else f"timing `{self._name}`"
        timeout_s = self._warm_s if warm else self._timeout_s
        phase: Phase = "compile" if warm else "call"
        return self._client.request(kind, body, timeout_s=timeout_s, doing=doing, phase=phase, hosts=hosts)

    @property
    def closed(self) -> bool:
        return self._client.closed

    @property
    def name(self) -> str:
        return self._name


class OpenTimer:
    """One timer of a worker: calls on inputs of one workload.

    Attributes:
        choices: how many of a call's launches have candidates to choose among.
    """

    def __init__(self, worker: TimedWorker, number: int, choices: int) -> None:
        self._worker, self._number = worker, number
        self.choices = choices

    def close(self) -> None:
        """Let its inputs and outputs go; the worker stays."""
        if not self._worker.closed:
            with contextlib.suppress(WorkerFailure):
                self._worker.ask("time_close", {"timer": self._number})

    def check(self) -> None:
        """Look for what any window so far wrote outside of its tensors.

        Raises:
            WorkerFailure: there's some.
        """
        self._worker.ask("time_check", {"timer": self._number})

    def compiled(self) -> None:
        """Wait for its kernels, which need no device to be compiled.

        Raises:
            WorkerFailure: it took too long.
        """
        self._worker.ask("time_compiled", {"timer": self._number}, warm=True)

    def tune(self) -> list[str]:
        """Time the candidates of each launch that has some, and take the fastest of each; what it is, as text.

        Raises:
            WorkerFailure: none of them runs, or it took too long.
        """
        return [str(text) for text in self._worker.ask("time_tune", {"timer": self._number}, warm=True)]

    def warm(self, offsets: Array, signs: Array) -> Warmed:
        """One untimed call of each draw.

        Raises:
            WorkerFailure: it raised, or took too long.
        """
        said = self._worker.ask("time_warm", {"timer": self._number, "offsets": offsets, "signs": signs}, warm=True)
        if type(said) is list and len(said) == 3 and type(said[0]) is int and said[0] >= 0:
            return Warmed(said[0] * 1e-9, *said[1:])
        raise ContractViolated(f"The first calls of `{self._worker.name}` were not answered with a time.")

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
        rows = self._worker.ask("time_window", {**body, "timer": self._number}, hosts=hosts)
        broken = ContractViolated(f"A timed window of `{self._worker.name}` was answered out of form.")
        if not (gate.started and gate.ended > gate.started):
            raise broken
        if type(gate.claimed_ns) is not int or gate.claimed_ns <= 0:
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
        return TimedWindow(len(offsets), gate.claimed_ns * 1e-9, gate.ended - gate.started, taken)

"""The timers of one worker: what the judge's requests whose names begin with `time_` ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from .timing import ArrayMemory, Call, FunctionCall, Memory, Timer, specs_of


class Timers:
    """The timers of one worker, by the numbers that the judge gives them; a method a request, `time_` before its name.

    Args:
        function: what a request names by module and function.
    """

    def __init__(self, runtime: str, device: str, function: Callable[[dict[str, Any]], Callable[..., Any]]) -> None:
        self._runtime, self._device, self._function = runtime, device, function
        self._memory: Memory | None = None
        self._open: dict[int, Any] = {}

    def begin(self, block: Any, flush_bytes: int) -> None:
        """Lay out the memory of all timers; those that are open end."""
        self.end()
        if self._runtime == "numpy":
            self._memory = ArrayMemory(block, flush_bytes)
        else:
            kind = import_module(f"{__package__}.timing_torch").TensorMemory
            self._memory = kind(block, flush_bytes, self._device)

    def open(self, timer: int, **body: Any) -> int:
        """A timer of a function (module, function, kwargs) or of a tape (see `execute.timing`).

        Args:
            body: besides, inputs (tables as `Spec`), mode and graph.

        Returns:
            how many launches of a call have candidates to choose among.
        """
        assert self._memory is not None
        if "tape" in body:
            opened = import_module(f"{__package__}.execute.timing").open_tape(body, self._memory)
            self._open[timer] = opened
            return int(opened.choices)
        function = partial(self._function(body), **body["kwargs"])
        specs, memory, backward = specs_of(body), self._memory, body["mode"] == "backward"
        shared = {spec.name: memory.fixed(spec) for spec in specs if spec.kind == "fixed"}

        def make() -> Call:
            return FunctionCall(function, specs, shared, memory, backward=backward)

        self._open[timer] = Timer(make, specs, memory, graph=body["graph"])
        return 0

    def compiled(self, timer: int) -> None:
        """Wait until what was begun to be compiled when it was opened is there."""
        self._open[timer].compiled()

    def tune(self, timer: int) -> list[str]:
        return list(self._open[timer].tune())

    def warm(self, timer: int, offsets: Any, signs: Any) -> list[int | None]:
        took = self._open[timer].warm(offsets, signs)
        return [took, *self._open[timer].work()]

    def window(self, timer: int, offsets: Any, signs: Any, gate: Any) -> list[Any]:
        return list(self._open[timer].window(offsets, signs, gate))

    def check(self, timer: int) -> None:
        self._open[timer].check()

    def close(self, timer: int) -> None:
        opened = self._open.pop(timer, None)
        if opened is not None:
            opened.close()

    def end(self) -> None:
        """Close all, and let their memory go."""
        for number in list(self._open):
            self.close(number)
        self._memory = None

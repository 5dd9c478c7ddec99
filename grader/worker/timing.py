"""Timed windows: a function called with fresh values at addresses of their own, and how long that took.

A window's inputs are made from one block of normal numbers by a draw that arrives with the window's request, so nobody
knows them before. The judge takes the time from outside between two calls of a hosted object: ``go`` when everything is
in place, ``done`` with the claimed time once the whole device is idle. Its answer to ``done`` says which rows of which
outputs it wants to see, and those are read at once.

Everything used in a window is bound before a submission is imported. A submission lives in the same process, so a
claim is only as good as the judge's view from outside; this module sees to it that an honest claim is exact.
"""

from __future__ import annotations

import _thread
import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from .calls import RaisedError
from .guards import ContractError, array_extent

_clock, _count_threads = time.perf_counter_ns, _thread._count
_open, _read, _close, _this_thread = os.open, os.read, os.close, _thread.get_native_id
_registered: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
_ndarray, _full, _multiply, _float32 = np.ndarray, np.full, np.multiply, np.float32
_partial = partial
_collect, _disable, _enable = gc.collect, gc.disable, gc.enable

IDLE_PART = 0.02
"""Of a window's time, which a thread that only waits may spend on a core: a pool of a compiler wakes now and then."""
MODES = ("call", "backward", "forward_backward")
_Values = tuple[Any, ...]
_Arguments = tuple[_Values, _Values, _Values]
Pick = tuple[int, list[tuple[int, Any]]]
"""Number of a call in its window, and (output, indices along its first axes) pairs."""


@dataclass(frozen=True, eq=False)
class Spec:
    """One input; see `InputSpec` in `grader/judge/speed/model.py`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    scale: float
    shift: float
    value: Any
    requires_grad: bool
    cotangent: bool


class Memory(Protocol):
    """Where inputs and outputs live: of NumPy here, of torch (CPU or CUDA) in `timing_torch`."""

    def empty(self, spec: Spec) -> Any: ...
    def fixed(self, spec: Spec) -> Any: ...
    def fill(self, target: Any, spec: Spec, offset: int, signs: Any) -> None: ...
    def put(self, target: Any, value: Any) -> None: ...
    def settle(self) -> None: ...
    def release(self) -> None: ...
    def wait(self) -> None: ...
    def extent(self, output: Any, path: str) -> tuple[int, int]: ...
    def rows(self, output: Any, indices: Any) -> Any: ...
    def backward(self, outputs: Any, cotangents: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any: ...
    def replay(self, calls: Callable[[], list[Any]]) -> tuple[Callable[[], None], list[Any]] | None: ...


class ArrayMemory:
    """Arrays of NumPy.

    Args:
        block: float32 normals, whose length is the period with which an input larger than it repeats.
        flush_bytes: size of the buffer that's written before a window, so that no input lies in a cache.
    """

    def __init__(self, block: Any, flush_bytes: int) -> None:
        self._period = len(block)
        self._twice = np.concatenate([block, block])
        self._buffer = _full(max(flush_bytes // 4, 1), 0.0, _float32)
        self._turn = 0.0

    def empty(self, spec: Spec) -> Any:
        return np.empty(spec.shape, spec.dtype)

    def fixed(self, spec: Spec) -> Any:
        return np.array(spec.value)

    def put(self, target: Any, value: Any) -> None:
        target[...] = value

    def fill(self, target: Any, spec: Spec, offset: int, signs: Any) -> None:
        for part, piece in pieces(target.reshape(-1, spec.shape[-1]), self._twice, self._period, offset):
            values = _multiply(piece, signs)
            if spec.scale != 1.0:
                values *= _float32(spec.scale)
            if spec.shift != 0.0:
                values += _float32(spec.shift)
            part[...] = values

    def settle(self) -> None:
        self._turn += 1.0
        self._buffer.fill(self._turn)

    def release(self) -> None:
        """Nothing is kept that could be given back."""

    def wait(self) -> None:
        """Nothing to wait for: NumPy returns when it's done."""

    def extent(self, output: Any, path: str) -> tuple[int, int]:
        if type(output) is not _ndarray:
            raise ContractError(f"{path} is a {type(output).__name__}; expected exactly numpy.ndarray.")
        return array_extent(output)

    def rows(self, output: Any, indices: Any) -> Any:
        return np.array(output[tuple(indices.T)])

    def backward(self, outputs: Any, cotangents: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any:
        raise ContractError("A backward pass needs torch.")

    def replay(self, calls: Callable[[], list[Any]]) -> tuple[Callable[[], None], list[Any]] | None:
        return None


def pieces(rows: Any, twice: Any, period: int, offset: int) -> list[tuple[Any, Any]]:
    """(rows of the target, the block's numbers for them), each no longer than the period.

    Element f of an input is number (offset + f) mod period of the block.

    Args:
        rows: the target as (rows, last axis).
        twice: the block, twice in a row, so that no piece wraps.
    """
    width = rows.shape[1]
    step = max(period // width, 1)
    parts = []
    for first in range(0, rows.shape[0], step):
        part = rows[first : first + step]
        start = (offset + first * width) % period
        parts.append((part, twice[start : start + part.shape[0] * width].reshape(part.shape)))
    return parts


def thread_times() -> dict[int, int]:
    """Native id → nanoseconds on a core so far, of the threads that Python's registry knows, but for this one."""
    found = {}
    for thread in list(_registered.values()):
        number = vars(thread).get("_native_id")
        if type(number) is int and number != _this_thread():
            try:
                file = _open(f"/proc/self/task/{number}/schedstat", os.O_RDONLY)
            except OSError:  # it has ended, or nothing is told here
                continue
            try:
                spent = int((_read(file, 100).split() or [b"0"])[0])
            finally:
                _close(file)
            if spent > 0:  # else the system doesn't count
                found[number] = spent
    return found


def busy_threads(count: int, before: dict[int, int], after: dict[int, int], took: int) -> int:
    """How many of `count` Python threads did something in a window of `took` nanoseconds, or can't show otherwise."""
    idle = sum(now - before.get(number, 0) <= IDLE_PART * took for number, now in after.items())
    return max(0, count - idle)


class Timer:
    """One function and its inputs, ready for windows of any number of calls.

    Args:
        function: the submission's.
        specs: in the order of the parameters, cotangents among them.
        mode: see `MODES`. graph: replay the calls from a CUDA graph where there is one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        specs: list[Spec],
        kwargs: dict[str, Any],
        memory: Memory,
        *,
        mode: str,
        graph: bool,
        threads: int,
    ) -> None:
        self._function, self._specs, self._kwargs = function, specs, kwargs
        self._memory, self._mode, self._graph = memory, mode, graph
        self._threads = threads
        self._shared = {spec.name: memory.fixed(spec) for spec in specs if spec.kind == "fixed"}
        self._slots: list[_Values] = []
        self._graphs: dict[int, tuple[Callable[[], None], list[Any]]] = {}
        self._outputs: list[Any] = []
        self._wait = memory.wait
        # A collection in the middle of a window would count as the submission's time.
        _disable()

    def close(self) -> None:
        """Let the memory go."""
        self._outputs, self._slots, self._graphs = [], [], {}
        _enable()
        _collect()
        self._memory.release()

    def warm(self, offsets: Any, signs: Any) -> int:
        """One call of each draw, untimed: compilers and allocators do what they do once.

        Returns:
            nanoseconds that the last call took, for a first guess.
        """
        took = 0
        for row in range(len(offsets)):
            run = self._ready(offsets[row : row + 1], signs[row : row + 1])
            self._memory.settle()
            self._wait()
            start = _clock()
            self._outputs = run()
            self._wait()
            took = _clock() - start
        return took

    def window(self, offsets: Any, signs: Any, gate: Any) -> list[Any]:
        """One timed window of as many calls as the draw has rows.

        Args:
            offsets: int64 (calls, inputs); signs: uint8 (calls, inputs, longest last axis), 0 or 1.
            gate: hosted object; `go()`, and `done(nanoseconds, busy threads)` → picks.

        Returns:
            the rows that were asked for: a list a pick of arrays in the order of its pairs.

        Raises:
            RaisedError: the function raised. ContractError: an output isn't an array of its own.
        """
        self._outputs = []
        run = self._ready(offsets, signs, graph=self._graph)
        wait = self._wait
        self._memory.settle()
        wait()
        before = thread_times()
        gate.go()
        start = _clock()
        outputs = run()
        wait()
        took = _clock() - start
        count = _count_threads()
        busy = min(busy_threads(count, before, thread_times() if count else {}, took), max(0, count - self._threads))
        picks: list[Pick] = gate.done(took, busy)
        self._outputs = [_listed(output) for output in outputs]
        self._check_own_memory()
        return [[self._rows(call, output, indices) for output, indices in wanted] for call, wanted in picks]

    def watch(self, offsets: Any, signs: Any, tracing: Any, noting_calls: Any) -> list[Any]:
        """Untimed calls, as many as a window has, looked at: the first of them may be other than those that follow.

        Args:
            tracing: of `traffic`, noting_calls: of `foreign_calls`; given here, as only Triton's runtime has them.

        Returns:
            the fewest kernel launches of a call, and the names of the library operations that could stand in for a
            kernel in any.
        """
        self._outputs = []
        launches: list[int] = []
        foreign: list[str] = []

        def counted(step: Callable[[], Any]) -> Any:
            before = len(trace.records)
            output = step()
            launches.append(len(trace.records) - before)
            return output

        run = self._ready(offsets, signs, each=counted)
        with tracing({}, count_bytes=False) as trace, noting_calls(foreign):
            self._outputs = run()
            self._wait()
        return [min(launches), [*trace.library_ops, *foreign]]

    def _ready(
        self, offsets: Any, signs: Any, *, graph: bool = False, each: Callable[[Callable[[], Any]], Any] | None = None
    ) -> Callable[[], list[Any]]:
        """What the window does, with its values in place; `each` makes its calls, where given.

        Cotangents come last: a call that is made before the window, for its backward pass, must not find them.
        """
        count = len(offsets)
        self._prepare(offsets, signs, cotangents=False)
        run = self._replaying(count) if graph else self._run(count, each)
        self._prepare(offsets, signs, cotangents=True)
        return run

    def _prepare(self, offsets: Any, signs: Any, *, cotangents: bool) -> None:
        """Fresh values in the first slots, as many as the draw has rows; the shared inputs as they were sent."""
        normal = [
            (place, spec)
            for place, spec in enumerate(self._specs)
            if spec.kind == "normal" and spec.cotangent is cotangents
        ]
        while len(self._slots) < len(offsets):
            self._slots.append(
                tuple(
                    self._shared[spec.name] if spec.kind == "fixed" else self._memory.empty(spec)
                    for spec in self._specs
                )
            )
        for spec in self._specs:
            if spec.kind == "fixed":
                self._memory.put(self._shared[spec.name], spec.value)
        for row in range(len(offsets)):
            for place, spec in normal:
                pattern = 1.0 - 2.0 * signs[row, place, : spec.shape[-1]].astype(_float32)
                self._memory.fill(self._slots[row][place], spec, int(offsets[row, place]), pattern)

    def _run(self, count: int, each: Callable[[Callable[[], Any]], Any] | None = None) -> Callable[[], list[Any]]:
        """What a window does: a function of no arguments that gives the results of the first `count` slots' calls."""
        steps = self._steps([self._arguments(slot) for slot in self._slots[:count]])

        def run() -> list[Any]:
            try:
                return [step() for step in steps] if each is None else list(map(each, steps))
            except BaseException as error:
                raise RaisedError from error

        return run

    def _steps(self, arguments: list[_Arguments]) -> list[Callable[[], Any]]:
        function, kwargs, backward = self._function, self._kwargs, self._memory.backward
        if self._mode == "call":
            return [_partial(function, *args, **kwargs) for args, _, _ in arguments]
        if self._mode == "backward":
            try:
                made = [function(*args, **kwargs) for args, _, _ in arguments]
            except BaseException as error:
                raise RaisedError from error
            return [
                _partial(backward, outputs, cotangents, leaves)
                for outputs, (_, cotangents, leaves) in zip(made, arguments, strict=True)
            ]

        def both(args: _Values, cotangents: _Values, leaves: _Values) -> Any:
            return backward(function(*args, **kwargs), cotangents, leaves)

        return [_partial(both, *values) for values in arguments]

    def _arguments(self, slot: _Values) -> _Arguments:
        """(arguments, cotangents, inputs whose gradients are wanted) of a slot."""
        pairs = list(zip(self._specs, slot, strict=True))
        return (
            tuple(value for spec, value in pairs if not spec.cotangent),
            tuple(value for spec, value in pairs if spec.cotangent),
            tuple(value for spec, value in pairs if spec.requires_grad),
        )

    def _replaying(self, count: int) -> Callable[[], list[Any]]:
        """As `_run`, from a graph of those calls, captured once; the calls themselves where there are no graphs."""
        if count not in self._graphs:
            captured = self._memory.replay(self._run(count))
            if captured is None:
                return self._run(count)
            self._graphs[count] = captured
        replay, outputs = self._graphs[count]

        def run() -> list[Any]:
            replay()
            return outputs

        return run

    def _check_own_memory(self) -> None:
        """Raises ContractError unless every output of every call has memory of its own."""
        spans = sorted(
            (*self._memory.extent(output, f"result {place} of a timed call"), call)
            for call, outputs in enumerate(self._outputs)
            for place, output in enumerate(outputs)
        )
        end, owner = 0, -1
        for start, stop, call in spans:
            if stop > start and start < end and call != owner:
                raise ContractError("Two timed calls returned the same memory; each call must return new arrays.")
            if stop > end:
                end, owner = stop, call

    def _rows(self, call: int, output: int, indices: Any) -> Any:
        found = self._outputs[call]
        if output >= len(found):
            raise ContractError(f"A timed call returned {len(found)} results; expected at least {output + 1}.")
        shape, wanted = tuple(found[output].shape), indices.max(axis=0)
        # Looked at before it's read: a GPU ends the whole process over an index out of range.
        if len(shape) < len(wanted) or any(index >= size for index, size in zip(wanted, shape, strict=False)):
            raise ContractError(f"Result {output} of a timed call has shape {shape}, which it shouldn't have.")
        return self._memory.rows(found[output], indices)


def _listed(result: Any) -> list[Any]:
    return list(result) if type(result) in (tuple, list) else [result]


def open_timer(function: Callable[..., Any], body: dict[str, Any], *, runtime: str, device: str, threads: int) -> Timer:
    """A timer of the request `time_open`.

    Args:
        body: inputs (tables as `Spec`), kwargs, block (float32), flush_bytes, mode, graph.
        threads: of Python that ran before the submission was imported.
    """
    specs = [Spec(**{**item, "shape": tuple(item["shape"])}) for item in body["inputs"]]
    memory: Memory
    if runtime == "numpy":
        memory = ArrayMemory(body["block"], body["flush_bytes"])
    else:
        torch_memory = import_module(f"{__package__}.timing_torch").TensorMemory
        memory = torch_memory(body["block"], body["flush_bytes"], device)
    return Timer(function, specs, body["kwargs"], memory, mode=body["mode"], graph=body["graph"], threads=threads)

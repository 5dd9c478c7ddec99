"""Timed windows: calls with fresh values at addresses of their own, and how long they took.

A window's inputs are made from one block of normal numbers by a draw that arrives with the window's request, so nobody
knows them before. The judge takes the time from outside between two calls of a hosted object: ``go`` when everything is
in place, ``done`` with the claimed time once the whole device is idle. Its answer to ``done`` says which rows of which
outputs it wants to see, and those are read at once.

On a GPU a window is one CUDA graph of all its calls, so that launching them from Python isn't what is timed. What is
called is a function here (a baseline's, or what a lab runs as it is) and a recorded tape in `execute.timing`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from .calls import RaisedError
from .guards import ContractError, array_extent

clock = time.perf_counter_ns
_ndarray, _multiply, _float32 = np.ndarray, np.multiply, np.float32

GRAPHS = 2
"""Captured windows that are kept: those of n and of 2n calls."""
Pick = tuple[int, list[tuple[int, Any]]]
"""Number of a call in its window, and (output, indices along its first axes) pairs."""
Run = Callable[[], None]


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
    def patterns(self, signs: Any) -> Any: ...
    def fill(self, target: Any, spec: Spec, offset: int, pattern: Any) -> None: ...
    def put(self, target: Any, value: Any) -> None: ...
    def settle(self) -> None: ...
    def release(self) -> None: ...
    def wait(self) -> None: ...
    def extent(self, output: Any, path: str) -> tuple[int, int]: ...
    def rows(self, output: Any, indices: Any) -> Any: ...
    def backward(self, outputs: Any, cotangents: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any: ...
    def captured(self, parts: Sequence[Run]) -> list[Run] | None: ...


class Call(Protocol):
    """One call of a window, on inputs of its own.

    Attributes:
        inputs: in the order of the specs; those that are fixed may be the same memory for all calls.
        outputs: of `timed`, once it has run.
    """

    inputs: list[Any]
    outputs: list[Any]

    def before(self) -> None:
        """What comes before the window, e.g. the forward pass of a timed backward pass."""

    def timed(self) -> None:
        """What the window times."""

    def spilled(self) -> str:
        """What was written outside of its tensors, as a sentence; empty when nothing was."""


class ArrayMemory:
    """Arrays of NumPy.

    Args:
        block: float32 normals, whose length is the period with which an input larger than it repeats.
        flush_bytes: size of the buffer that's written before a window, so that no input lies in a cache.
    """

    def __init__(self, block: Any, flush_bytes: int) -> None:
        self._period = len(block)
        self._twice = np.concatenate([block, block])
        self._buffer = np.full(max(flush_bytes // 4, 1), 0.0, _float32)
        self._turn = 0.0

    def empty(self, spec: Spec) -> Any:
        return np.empty(spec.shape, spec.dtype)

    def fixed(self, spec: Spec) -> Any:
        return np.array(spec.value)

    def put(self, target: Any, value: Any) -> None:
        target[...] = value

    def patterns(self, signs: Any) -> Any:
        return as_factors(signs)

    def fill(self, target: Any, spec: Spec, offset: int, pattern: Any) -> None:
        for part, piece in pieces(target.reshape(-1, spec.shape[-1]), self._twice, self._period, offset):
            values = _multiply(piece, pattern)
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

    def captured(self, parts: Sequence[Run]) -> list[Run] | None:
        return None


def as_factors(signs: Any) -> Any:
    """1 and -1 in float32 for signs of 0 and 1."""
    return 1.0 - 2.0 * signs.astype(_float32)


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


class FunctionCall:
    """A call of a Python function; see `Call`.

    Args:
        shared: the fixed inputs, by name.
    """

    def __init__(
        self, function: Callable[..., Any], specs: list[Spec], shared: dict[str, Any], memory: Memory, *, backward: bool
    ) -> None:
        self.inputs = [shared[spec.name] if spec.kind == "fixed" else memory.empty(spec) for spec in specs]
        self.outputs: list[Any] = []
        pairs = list(zip(specs, self.inputs, strict=True))
        self._call = partial(function, *(value for spec, value in pairs if not spec.cotangent))
        self._cotangents = tuple(value for spec, value in pairs if spec.cotangent)
        self._leaves = tuple(value for spec, value in pairs if spec.requires_grad)
        self._memory, self._backward = memory, backward
        self._made: Any = None

    def before(self) -> None:
        if self._backward:
            self._made = self._told(self._call)

    def timed(self) -> None:
        if self._backward:
            backward = partial(self._memory.backward, self._made, self._cotangents, self._leaves)
            self.outputs = _listed(self._told(backward))
        else:
            self.outputs = _listed(self._told(self._call))

    def spilled(self) -> str:
        return ""  # a baseline is the project's own, and what runs as it is is judged elsewhere

    @staticmethod
    def _told(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:
            raise RaisedError from error


class Timer:
    """Calls on inputs of their own, ready for windows of any number of them.

    Args:
        make: a call on inputs of its own.
        specs: in the order of the parameters, cotangents among them.
        graph: replay a window's calls from a CUDA graph where there is one.
    """

    def __init__(self, make: Callable[[], Call], specs: list[Spec], memory: Memory, *, graph: bool) -> None:
        self._make, self._specs, self._memory, self._graph = make, specs, memory, graph
        self._calls: list[Call] = []
        self._captured: dict[int, tuple[Run, Run, list[list[Any]]]] = {}

    def close(self) -> None:
        """Let the memory go."""
        self._captured, self._calls = {}, []
        gc.collect()
        self._memory.release()

    def compiled(self) -> None:
        """A function's kernels are compiled by its first call."""

    def warm(self, offsets: Any, signs: Any) -> int:
        """One call of each draw, untimed: compilers and allocators do what they do once.

        Returns:
            nanoseconds that the last call took, for a first guess.
        """
        took = 0
        for row in range(len(offsets)):
            run, _ = self._ready(offsets[row : row + 1], signs[row : row + 1], graph=False)
            self._memory.settle()
            self._memory.wait()
            start = clock()
            run()
            self._memory.wait()
            took = clock() - start
        return took

    def work(self) -> tuple[int | None, int | None]:
        """Kernel launches and device operations of one call; None where they aren't known."""
        return None, None

    def window(self, offsets: Any, signs: Any, gate: Any) -> list[Any]:
        """One timed window of as many calls as the draw has rows.

        Args:
            offsets: int64 (calls, inputs); signs: uint8 (calls, inputs, longest last axis), 0 or 1.
            gate: hosted object; `go()`, and `done(nanoseconds)` → picks.

        Returns:
            the rows that were asked for: a list a pick of arrays in the order of its pairs.

        Raises:
            RaisedError: the function raised. ContractError: an output isn't an array of its own.
        """
        run, outputs = self._ready(offsets, signs, graph=self._graph)
        wait = self._memory.wait
        self._memory.settle()
        wait()
        # A collection in the middle of a window would count as its time.
        gc.disable()
        try:
            gate.go()
            start = clock()
            run()
            wait()
            took = clock() - start
        finally:
            gc.enable()
        picks: list[Pick] = gate.done(took)
        found = outputs()
        self._check_own_memory(found)
        return [[self._rows(found[call], output, indices) for output, indices in wanted] for call, wanted in picks]

    def check(self) -> None:
        """Raises ContractError where a call of any window wrote outside of its tensors."""
        for call in self._calls:
            said = call.spilled()
            if said:
                raise ContractError(said)

    def _ready(self, offsets: Any, signs: Any, *, graph: bool) -> tuple[Run, Callable[[], list[list[Any]]]]:
        """What the window does, with its values in place, and what tells the outputs of its calls afterwards.

        Cotangents come last: what runs before the window, for its backward pass, must not find them.
        """
        count = len(offsets)
        patterns = self._memory.patterns(signs)
        self._prepare(offsets, patterns, cotangents=False)
        calls = self._calls[:count]
        before: Run = partial(_each, [call.before for call in calls])
        timed: Run = partial(_each, [call.timed for call in calls])
        outputs: Callable[[], list[list[Any]]] = lambda: [call.outputs for call in calls]  # noqa: E731
        if graph and self._graphs(count, before, timed, outputs):
            before, timed, kept = self._captured[count]
            outputs = lambda: kept  # noqa: E731
        before()
        self._prepare(offsets, patterns, cotangents=True)
        return timed, outputs

    def _graphs(self, count: int, before: Run, timed: Run, outputs: Callable[[], list[list[Any]]]) -> bool:
        """Capture a window of so many calls where that wasn't done; whether there are graphs here."""
        if count not in self._captured:
            # Compilers and allocators do what they do once, which no capture may hold.
            before()
            timed()
            while len(self._captured) >= GRAPHS:
                del self._captured[next(iter(self._captured))]
            replays = self._memory.captured([before, timed])
            if replays is None:
                return False
            self._captured[count] = (replays[0], replays[1], outputs())
        return True

    def _prepare(self, offsets: Any, patterns: Any, *, cotangents: bool) -> None:
        """Fresh values in the first slots, as many as the draw has rows; the shared inputs as they were sent."""
        while len(self._calls) < len(offsets):
            self._calls.append(self._make())
        for place, spec in enumerate(self._specs):
            if spec.cotangent is not cotangents:
                continue
            if spec.kind == "fixed":
                self._memory.put(self._calls[0].inputs[place], spec.value)
                continue
            for row, call in enumerate(self._calls[: len(offsets)]):
                pattern = patterns[row, place, : spec.shape[-1]]
                self._memory.fill(call.inputs[place], spec, int(offsets[row, place]), pattern)

    def _check_own_memory(self, outputs: list[list[Any]]) -> None:
        """Raises ContractError unless every output of every call has memory of its own."""
        spans = sorted(
            (*self._memory.extent(output, f"result {place} of a timed call"), call)
            for call, found in enumerate(outputs)
            for place, output in enumerate(found)
        )
        end, owner = 0, -1
        for start, stop, call in spans:
            if stop > start and start < end and call != owner:
                raise ContractError("Two timed calls returned the same memory; each call must return new arrays.")
            if stop > end:
                end, owner = stop, call

    def _rows(self, found: list[Any], output: int, indices: Any) -> Any:
        if output >= len(found):
            raise ContractError(f"A timed call returned {len(found)} results; expected at least {output + 1}.")
        shape, wanted = tuple(found[output].shape), indices.max(axis=0)
        # Looked at before it's read: a GPU ends the whole process over an index out of range.
        if len(shape) < len(wanted) or any(index >= size for index, size in zip(wanted, shape, strict=False)):
            raise ContractError(f"Result {output} of a timed call has shape {shape}, which it shouldn't have.")
        return self._memory.rows(found[output], indices)


def _each(parts: Sequence[Run]) -> None:
    for part in parts:
        part()


def _listed(result: Any) -> list[Any]:
    return list(result) if type(result) in (tuple, list) else [result]


def specs_of(body: dict[str, Any]) -> list[Spec]:
    """The inputs of the request `time_open`."""
    return [Spec(**{**item, "shape": tuple(item["shape"])}) for item in body["inputs"]]

"""Runs a tape's launches: in the interpreter, counted and checked access by access, or compiled on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from ..tape import JSON
from ..traffic_model import LaunchRecord, Traffic
from .counting import Counter, watched
from .interpret import Grid, Programs
from .kernels import CannotLower, Kernels, interpreting
from .memory import Memory
from .sampling import Sampler


@dataclass(frozen=True)
class Launch:
    """One launch with its real arguments.

    Attributes:
        step: as the tape has it. args: by parameter, compile-time ones left out.
        tensors: what the kernel is given, those in tuples and behind descriptors too.
        read_later: tensors that later steps of the tape take.
    """

    step: JSON
    args: dict[str, Any]
    grid: Grid
    tensors: list[torch.Tensor]
    read_later: list[torch.Tensor]


class Runner(Protocol):
    """How launches are run."""

    def ready(self) -> AbstractContextManager[None]: ...
    def launch(self, launch: Launch, memory: Memory) -> None: ...
    def traffic(
        self, memory: Memory, results: Sequence[Any], gradients: dict[str, Any], operations: dict[str, int]
    ) -> Traffic: ...


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Tensors among launch arguments: bare, in tuples, behind tensor descriptors and reinterpreted ones."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, (TensorDescriptor, TensorWrapper)):
            yield value.base


class Interpreted:
    """Runs launches in this process.

    Args:
        traced: count what is stored by element, for a report.
        backwards: run each launch's programs from the last to the first, and add up by atomics in yet another order,
            which hangs on no number that a program drew from a counter.
        sampler: runs some of them only; None runs all.
    """

    def __init__(
        self, kernels: Kernels, traced: bool = False, backwards: bool = False, sampler: Sampler | None = None
    ) -> None:
        self.sampler = sampler
        self._kernels = kernels
        self._backwards = backwards
        self._counter = Counter(exact=traced)

    def ready(self) -> AbstractContextManager[None]:
        return interpreting()

    def launch(self, launch: Launch, memory: Memory) -> None:
        step = launch.step
        lowered = self._kernels.lowered(self._kernels.describe(step, launch.args))
        constexprs = {name: self._kernels.value(value, interpreted=True) for name, value in step["constexprs"].items()}
        programs = Programs(self._kernels.interpreted(step["entry"]), launch.args, launch.grid, lowered)
        launched = self._counter.open(
            step["kernel"], launch.grid, constexprs, launch.tensors, memory, self._kernels.place
        )
        if self.sampler is not None:
            products = self.sampler.products
            # A second run makes of each program what the first did, which knew what was complete.
            shadow = None if products is not None and products.again else self.sampler.shadow
            with watched(launched, shadow, products), programs.ready():
                self.sampler.run(programs, launched, lambda: self._consumed(launch, memory))
            return
        numbers = range(len(programs))
        with watched(launched, late=self._backwards), programs.ready():
            for number in reversed(numbers) if self._backwards else numbers:
                launched.run(partial(programs.run, number, launched.bounds))
        launched.record.programs = len(programs)

    def _consumed(self, launch: Launch, memory: Memory) -> bool:
        """Whether a later step takes what this launch wrote so far."""
        assert self.sampler is not None
        storages = [memory.of(tensor) for tensor in launch.read_later]
        return any(self.sampler.shadow.writes(storage) for storage in storages if storage is not None)

    def traffic(
        self, memory: Memory, results: Sequence[Any], gradients: dict[str, Any], operations: dict[str, int]
    ) -> Traffic:
        return self._counter.finish(memory, results, gradients, operations)


class DeviceFault(Exception):
    """A kernel ended with a fault of the GPU; nothing more runs in this process."""


class Compiled:
    """Launches compiled kernels on this process's GPU, each of which was lowered first, within limits."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._records: list[LaunchRecord] = []
        self._lowered: set[int] = set()

    def ready(self) -> AbstractContextManager[None]:
        return nullcontext()

    def launch(self, launch: Launch, memory: Memory) -> None:
        step = launch.step
        if id(step) not in self._lowered:
            self._kernels.lower(self._kernels.describe(step, launch.args))
            self._lowered.add(id(step))
        constexprs = {name: self._kernels.value(value, interpreted=False) for name, value in step["constexprs"].items()}
        options = {name: value for name, value in step["options"].items() if value is not None}
        try:
            self._kernels.compiled(step["entry"])[launch.grid](**launch.args, **constexprs, **options)
        except OutOfResources as problem:
            raise CannotLower(f"{step['where']}: {step['kernel']} takes more than the GPU has: {problem}") from problem
        except RuntimeError as problem:
            raise DeviceFault(f"{step['where']}: {step['kernel']} can't be launched: {problem}") from problem
        self._records.append(LaunchRecord(step["kernel"], launch.grid))

    def traffic(
        self, memory: Memory, results: Sequence[Any], gradients: dict[str, Any], operations: dict[str, int]
    ) -> Traffic:
        return Traffic(launches=len(self._records), records=self._records, operations=dict(operations))

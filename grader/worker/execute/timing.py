"""Times a tape: its device work on inputs of its own for every call of a window.

What a launcher's Python costs isn't device work: allocations and the launcher's own numbers are made once, before
anything is timed, in guarded memory that is poisoned before each window. Launches, and operations that compute or copy,
are repeated in every call. A recorded gradient call is timed from the first step that uses a cotangent.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ..calls import Arguments
from ..guards import ContractError
from ..rules import Checker, Forbidden
from ..tape import JSON, validate
from ..tensors import GuardedTensor
from ..timing import Run, Spec, Timer, clock, specs_of
from ..timing_torch import TensorMemory
from ..wire import Leaf
from .ahead import Ahead
from .describing import descriptions
from .kernels import CannotLower, Kernels
from .launching import Compiled, DeviceFault, Interpreted, Runner
from .memory import Memory, Storage
from .operations import Operations
from .run import Options, Replay

TUNED = 5
"""Calls by which a candidate is timed, the median of them."""


class SlotMemory(Memory):
    """Memory of a tape that is repeated: what it allocates is made in the first round and used again in each later one.

    What operations compute lies where torch puts it, which on a GPU is the captured graph's own memory.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._made: list[torch.Tensor] = []
        self._turn = 0
        self._own: dict[int, Storage] = {}
        self._given: dict[int, Storage] = {}
        self._inputs_alive: list[Any] = []

    def restart(self) -> None:
        """Begin another round: forget what operations made in the last one, and poison what was allocated."""
        if not self._given:  # only the inputs are there yet
            self._given, self._inputs_alive = dict(self._storages), list(self._alive)
        self._storages, self._alive = self._given | self._own, list(self._inputs_alive)
        self._bytes = self._turn = 0
        for storage in self._own.values():
            if storage.buffer is not None:
                storage.buffer[storage.lead : storage.lead + storage.size].fill_(storage.fill)

    def allocate(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, where: str = ""
    ) -> torch.Tensor:
        if self._turn == len(self._made):
            made = super().allocate(shape, strides, dtype, where)
            self._made.append(made)
            storage = self.of(made)
            if storage is not None:
                self._own[storage.start] = storage
        found = self._made[self._turn]
        self._turn += 1
        if (tuple(found.shape), tuple(found.stride()), found.dtype) != (tuple(shape), tuple(strides), dtype):
            raise ContractError(f"{where}: the launcher allocates other tensors each time.")
        return found

    def adopt(self, result: torch.Tensor, where: str = "") -> torch.Tensor:
        if result.numel() == 0 or self.of(result) is not None:
            return result
        held = result.untyped_storage()
        self._reserve(held.nbytes(), where)
        self._register(Storage(held.data_ptr(), held.nbytes(), result.element_size(), where=where), result)
        return result


class SlotReplay(Replay):
    """A tape on one slot's inputs, repeated in two parts.

    Args:
        chosen: of each choice, by its place among the tape's, the number of a candidate; for all slots alike.
    """

    memory: SlotMemory

    def __init__(
        self,
        tape: JSON,
        arguments: Arguments,
        rules: dict[str, Any],
        options: Options,
        device: str,
        runner: Runner,
        chosen: dict[int, int],
    ) -> None:
        super().__init__(tape, arguments, rules, options, device, runner)
        self.memory = SlotMemory(device)
        self.launches = 0
        self._chosen = chosen
        self._choice = 0
        self._constants: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def restart(self) -> None:
        """Begin a round: poison what the tape allocates and bind the inputs."""
        self.memory.restart()
        for used, kept in self._constants.values():
            used.copy_(kept)
        self.operations = Operations(self.memory, Checker(mutable=self._options.mutable, **self._rules))
        for number, (name, tensor) in self._inputs.items():
            self.operations.checker.bind(name, tensor)
            self.operations.tensors[number] = tensor
        self.launches = self._choice = 0

    def part(self, steps: Sequence[JSON]) -> None:
        """Repeat these steps."""
        with torch.no_grad(), self._runner.ready():
            self._steps(steps)

    def _steps(self, steps: Sequence[JSON]) -> None:
        for step in steps:
            self.launches += step["do"] == "launch"
            if step["do"] == "constant":
                self._constant(step)
            else:
                super()._steps([step])

    def _constant(self, step: JSON) -> None:
        """The launcher's own numbers, which no capture takes from the host: what moves them to the card is a step."""
        number = step["out"][0]
        if number not in self._constants:
            self.operations.constant(step)
            made = self.operations.tensors[number]
            self._constants[number] = made, made.clone()
        self.operations.tensors[number] = self.memory.adopt(self._constants[number][0], step["where"])

    def _choose(self, candidates: Sequence[JSON]) -> None:
        number, self._choice = self._choice, self._choice + 1
        self._steps(candidates[self._chosen.get(number, 0)]["steps"])


class TapeCall:
    """One call of a window; see `timing.Call`.

    Args:
        guards: of the inputs, in the order of the specs. first: place of the first step that is timed.
        leaves: the inputs whose gradients are the outputs, by the tape's names; none for the call's own results.
        from_kernel: an output must come from a kernel.

    Attributes:
        work: kernel launches and device operations of what is timed.
    """

    def __init__(
        self,
        replay: SlotReplay,
        guards: list[Any],
        tape: JSON,
        first: int,
        leaves: list[str],
        *,
        from_kernel: bool,
    ) -> None:
        self.inputs: list[Any] = [guard.own for guard in guards]
        self.outputs: list[Any] = []
        self.work = (0, 0)
        self._replay, self._guards, self._leaves, self._from_kernel = replay, guards, leaves, from_kernel
        self._before, self._timed = tape["steps"][:first], tape["steps"][first:]

    def before(self) -> None:
        self._replay.restart()
        self._replay.part(self._before)

    def timed(self) -> None:
        replay = self._replay
        launches, operations = replay.launches, sum(replay.operations.counts.values())
        replay.part(self._timed)
        launches = replay.launches - launches
        self.work = (launches, launches + sum(replay.operations.counts.values()) - operations)
        gradients = replay.gradients()
        made = [gradients.get(name) for name in self._leaves] if self._leaves else replay.result()
        if self._leaves and any(found is None for found in made):
            raise ContractError("The recorded call has no gradient by one of its inputs.")
        self.outputs = [item for item in tree_leaves(made) if isinstance(item, torch.Tensor)]
        checker = replay.operations.checker
        try:
            checker.finish(self.outputs)
        except Forbidden as problem:
            raise ContractError(str(problem)) from problem
        if self._from_kernel and not any(map(checker.from_kernel, self.outputs)):
            raise ContractError("No result of the call comes from a Triton kernel.")

    def spilled(self) -> str:
        try:
            for guard in self._guards:
                guard.check_surroundings()
            self._replay.memory.check_guards()
        except ContractError as problem:
            return str(problem)
        return ""


class TapeTimer(Timer):
    """A timer of a tape.

    Attributes:
        choices: how many launches have candidates to choose among.
    """

    def __init__(
        self,
        make: Callable[[], TapeCall],
        specs: list[Spec],
        memory: TensorMemory,
        tape: JSON,
        chosen: dict[int, int],
        ahead: Ahead | None,
    ) -> None:
        super().__init__(make, specs, memory, graph=True)
        self._ahead = ahead
        self._new_call, self._tensors, self._chosen = make, memory, chosen
        self._candidates = [step["candidates"] for step in tape["steps"] if step["do"] == "choice"]
        self.choices = len(self._candidates)

    def work(self) -> tuple[int | None, int | None]:
        call = self._calls[0]
        assert isinstance(call, TapeCall)
        return call.work

    def compiled(self) -> None:
        if self._ahead is not None:
            self._ahead.wait()

    def warm(self, offsets: Any, signs: Any) -> int:
        with _telling_faults():
            return super().warm(offsets, signs)

    def window(self, offsets: Any, signs: Any, gate: Any) -> list[Any]:
        with _telling_faults():
            return super().window(offsets, signs, gate)

    def tune(self) -> list[str]:
        """Time each candidate of each choice, and take the fastest.

        Returns:
            what was chosen, as text.

        Raises:
            CannotLower: none of a launch's candidates runs.
        """
        told = []
        for place, candidates in enumerate(self._candidates):
            times: dict[int, float] = {}
            last: CannotLower | None = None
            for number in range(len(candidates)):
                self._chosen[place] = number
                try:
                    with _telling_faults():
                        times[number] = self._candidate_s()
                except CannotLower as problem:
                    last = problem
            if not times:
                raise last or CannotLower("a launch without candidates")
            self._chosen[place] = min(times, key=lambda number: times[number])
            told.append(str(candidates[self._chosen[place]]["text"]))
        return told

    def _candidate_s(self) -> float:
        """Seconds of one call as things are chosen now."""
        call = self._new_call()
        for spec, value in zip(self._specs, call.inputs, strict=True):
            if spec.kind == "fixed":
                self._tensors.put(value, spec.value)
            else:
                factors = self._tensors.patterns(np.zeros(spec.shape[-1], np.uint8))
                self._tensors.fill(value, spec, 0, factors)
        call.before()
        call.timed()  # compiles
        parts: list[Run] = [call.before, call.timed]
        before, timed = self._tensors.captured(parts) or parts
        times = []
        for _ in range(TUNED):
            before()
            self._tensors.settle()
            self._tensors.wait()
            start = clock()
            timed()
            self._tensors.wait()
            times.append((clock() - start) * 1e-9)
        return statistics.median(times)


@contextlib.contextmanager
def _telling_faults() -> Iterator[None]:
    """A fault of the GPU is the kernels'."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        reason = str(problem).splitlines()[0]
        raise DeviceFault(f"A kernel ended with a fault of the GPU ({reason}). Check masks and offsets.") from problem


def open_tape(body: dict[str, Any], memory: TensorMemory) -> TapeTimer:
    """A timer of the request `time_open`.

    Args:
        body: tape, rules (the function's table of lab.toml), names (of the tape's inputs, in the order of the specs
            that are arguments), inputs, mode, and mutable (inputs that the call may change).

    Raises:
        InvalidTape, ContractError, CannotRebuild, CannotLower: see `run.Executor.run`.
    """
    tape, specs = body["tape"], specs_of(body)
    validate(tape)
    rules = {name: body["rules"][name] for name in ("allow", "scale", "rope", "known")}
    from_kernel = bool(body["rules"]["kernel"])
    names = iter(body["names"])
    named = {spec.name: f"cotangents[{n}]" for n, spec in enumerate(spec for spec in specs if spec.cotangent)}
    named |= {spec.name: next(names) for spec in specs if not spec.cotangent}
    kernels = Kernels(tape["functions"], Path(tempfile.mkdtemp(prefix="timed-")))
    runner: Runner = Compiled(kernels) if memory.device == "cuda" else Interpreted(kernels)
    options = Options(mutable=tuple(body["mutable"]))
    chosen: dict[int, int] = {}
    shared = _fixed(specs, memory.device)
    backward = body["mode"] == "backward"
    first = _first_timed(tape) if backward else 0
    leaves = [named[spec.name] for spec in specs if spec.requires_grad and backward]

    def slot(shared: dict[str, GuardedTensor], device: str) -> Arguments:
        arguments = Arguments(_no_reference)
        guards = [shared.get(spec.name) or _guard(spec, device) for spec in specs]
        for spec, guard in zip(specs, guards, strict=True):
            guard.name = named[spec.name]
            guard.mutable = spec.name in options.mutable
        arguments.guarded.extend(guards)
        return arguments

    def make() -> TapeCall:
        arguments = slot(shared, memory.device)
        replay = SlotReplay(tape, arguments, rules, options, memory.device, runner, chosen)
        replay.prepare()
        return TapeCall(replay, arguments.guarded, tape, first, leaves, from_kernel=from_kernel)

    ahead = None
    if memory.device == "cuda":
        ahead = Ahead(kernels, descriptions(tape, slot(_fixed(specs, "cpu"), "cpu"), rules, "cpu", kernels))
    return TapeTimer(make, specs, memory, tape, chosen, ahead)


def _fixed(specs: list[Spec], device: str) -> dict[str, GuardedTensor]:
    """Inputs that are the same for all calls, by name."""
    return {spec.name: _guard(spec, device) for spec in specs if spec.kind == "fixed"}


def _guard(spec: Spec, device: str) -> GuardedTensor:
    """An input in a guarded buffer, its values to be filled in."""
    raw = np.zeros(0, np.uint8)
    if spec.kind == "fixed":
        raw = np.ascontiguousarray(spec.value).reshape(-1).view(np.uint8)
    return GuardedTensor(Leaf("tensor", spec.dtype, spec.shape, raw, spec.shape, device=device))


def _no_reference(reference: Any) -> Any:
    raise ContractError(f"A timed call takes tensors and numbers, not {reference!r}.")


def _first_timed(tape: JSON) -> int:
    """Place of the first step that uses a cotangent, or is a launch of the backward pass."""
    cotangents = {number for number in tape["cotangents"] if number is not None}
    for place, step in enumerate(tape["steps"]):
        if any(each.get("phase") == "backward" for each in _launches(step)) or cotangents & set(_tensors(step)):
            return place
    return len(tape["steps"])


def _launches(step: JSON) -> Iterator[JSON]:
    if step["do"] == "launch":
        yield step
    for candidate in step.get("candidates", ()):
        for each in candidate["steps"]:
            yield from _launches(each)


def _tensors(value: Any) -> Iterator[int]:
    """Numbers of the tensors that a step is given."""
    if type(value) is dict:
        if type(value.get("t")) is int:
            yield value["t"]
        for item in value.values():
            yield from _tensors(item)
    elif type(value) is list:
        for item in value:
            yield from _tensors(item)

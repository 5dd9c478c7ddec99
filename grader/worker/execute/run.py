"""Repeats a tape on real inputs: binds them, replays operations, runs the kernels, reads the results back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch.utils._pytree import tree_leaves

from .. import interpreter_fixes
from ..calls import Arguments, ResultLeaves
from ..codec import Encoder
from ..gpu_target import Target
from ..guards import ContractError
from ..plain import shown
from ..rules import Checker, Forbidden
from ..stand_in_driver import StandInDriver
from ..tape import JSON, validate
from ..tensors import GuardedTensor, synchronize
from ..wire import MAX_BYTES, Bytes, Json, Record, UnsendableError
from . import language
from .kernels import CannotLower, Kernels
from .launching import Compiled, DeviceFault, Interpreted, Launch, Runner, tensors_in
from .memory import Memory
from .operations import Operations
from .products import Products
from .sampling import Sampler, Shadow

MAX_KERNELS = 64
"""Different sets of kernels that stay rebuilt."""


@dataclass(frozen=True)
class Options:
    """What a run is asked for beside the results.

    Attributes:
        trace: report bytes and products, by tensor.
        mutable: parameters that the call may change; their values come back.
        reversed: run the programs of every launch from the last to the first, and add up by atomics in another order
            than that in which additions come.
        sample: {"seed": int, "budget_s": float, "hidden": [parameter]} to run only some of the programs where all would
            take longer; hidden: then run those again on their products, with wrong values for these inputs; the results
            are the second run's, and what is final of them the first one's.
        candidate: which of an autotuner's configurations to launch; None takes the first that compiles.
        turn: how many configurations are put behind the others before that: runs don't all meet the same one.
    """

    trace: bool = False
    mutable: tuple[str, ...] = ()
    reversed: bool = False
    sample: dict[str, Any] | None = None
    candidate: int | None = None
    turn: int = 0


class Replay:
    """A tape bound to inputs: `prepare` once, then `replay` its device work, once or many times.

    Args:
        tape: validated.
        rules: keywords of `Checker`: allow, scale, rope, known.
        runner: runs launches; raises CannotLower where a kernel doesn't compile.
        guarded: False leaves operations' results where torch puts them (see `Memory`).
    """

    def __init__(
        self,
        tape: JSON,
        arguments: Arguments,
        rules: dict[str, Any],
        options: Options,
        device: str,
        runner: Runner,
        *,
        guarded: bool = True,
    ) -> None:
        self.memory = Memory(device, guarded=guarded)
        self.shadow: Shadow | None = None
        """Follows what isn't complete, in a sampled run."""
        self.operations = Operations(self.memory, Checker(mutable=options.mutable, **rules))
        self._tape = tape
        self._arguments = arguments
        self._rules = rules
        self._options = options
        self._runner = runner
        self._inputs: dict[int, tuple[str, torch.Tensor]] = {}

    def prepare(self) -> None:
        """Put the inputs in place.

        Raises:
            ContractError: the tape names a tensor that the call doesn't have.
        """
        guards = {guard.name: guard for guard in self._arguments.guarded}
        cotangents = enumerate(self._tape.get("cotangents") or [])
        wanted = {**self._tape["inputs"]} | {f"cotangents[{i}]": number for i, number in cotangents}
        for name, number in wanted.items():
            guard = guards.get(name)
            if number is None:
                continue
            if not isinstance(guard, GuardedTensor):
                raise ContractError(f"The recorded call has a tensor `{name}`; this call has none of that name.")
            self._inputs[number] = (name, self.memory.add_input(guard))

    def replay(self) -> None:
        """Repeat every step.

        Raises:
            ContractError: a step does what a launcher may not. And what running a launch raises.
        """
        self.operations = Operations(self.memory, Checker(mutable=self._options.mutable, **self._rules), self.shadow)
        for number, (name, tensor) in self._inputs.items():
            self.operations.checker.bind(name, tensor)
            self.operations.tensors[number] = tensor
        with torch.no_grad():
            self._steps(self._tape["steps"])

    def _steps(self, steps: Sequence[JSON]) -> None:
        for step in steps:
            if step["do"] == "op":
                self.operations.perform(step)
            elif step["do"] == "constant":
                self.operations.constant(step)
            elif step["do"] == "choice":
                self._choose(step["candidates"])
            else:
                args = {name: self.operations.value(value) for name, value in step["args"].items()}
                tensors = list(tensors_in(args.values()))
                later = [self.operations.tensors[number] for number in self._read_after(step)]
                self._runner.launch(Launch(step, args, tuple(step["grid"]), tensors, later), self.memory)
                self.operations.checker.launched(tensors)

    def _read_after(self, step: JSON) -> list[int]:
        """Numbers of known tensors that later steps take; none where nobody asks."""
        if self._options.sample is None:
            return []
        steps = self._tape["steps"]
        position = next(i for i, item in enumerate(steps) if item is step or step in _inner(item))
        found: set[int] = set()
        for item in steps[position + 1 :]:
            found |= _references(item)
        return [number for number in found if number in self.operations.tensors]

    def _choose(self, candidates: Sequence[JSON]) -> None:
        """Run the candidate that was asked for, else the first that compiles."""
        if self._options.candidate is not None:
            candidates = [candidates[self._options.candidate % len(candidates)]]
        else:
            first = self._options.turn % len(candidates)
            candidates = [*candidates[first:], *candidates[:first]]
        for candidate in candidates[:-1]:
            try:
                return self._steps(candidate["steps"])
            except CannotLower:
                continue
        return self._steps(candidates[-1]["steps"])

    def value(self, tree: Any) -> Any:
        """What a result's tree means."""
        if type(tree) is list:
            return [self.value(item) for item in tree]
        if type(tree) is dict and "tuple" in tree:
            return tuple(self.value(item) for item in tree["tuple"])
        if type(tree) is dict and "record" in tree:
            return Record(tree["record"], {name: self.value(item) for name, item in tree["fields"].items()})
        return self.operations.value(tree)

    def result(self) -> Any:
        return self.value(self._tape["result"])

    def mutable(self) -> list[tuple[str, torch.Tensor]]:
        """Inputs that the call may change, by name."""
        parts = self._options.mutable
        return [(name, tensor) for name, tensor in self._inputs.values() if name.partition("[")[0] in parts]

    def gradients(self) -> dict[str, Any]:
        """Gradients by input; None where the call has none."""
        found = self._tape.get("gradients") or {}
        return {name: None if number is None else self.operations.tensors[number] for name, number in found.items()}


def _inner(step: JSON) -> list[JSON]:
    """Steps of a choice's candidates."""
    return [inner for candidate in step.get("candidates", ()) for inner in candidate["steps"]]


def _references(value: Any) -> set[int]:
    """Numbers of all tensors that a step takes."""
    if type(value) is list:
        return set().union(*map(_references, value))
    if type(value) is dict:
        return {value["t"]} if set(value) == {"t"} else set().union(*map(_references, value.values()))
    return set()


def _device_scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Where a kernel keeps the descriptors that it makes; torch's allocations are aligned more than any asks for."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


class Executor:
    """Runs tapes; nothing of one is left for the next.

    Args:
        target: the card that kernels are compiled for. device: "cpu" interprets them, "cuda" launches them.
        folder: where sources of kernels go.
    """

    def __init__(self, target: Target, device: str, folder: Path) -> None:
        self.target = target
        self.device = device
        self._folder = folder
        self._kernels: dict[str, Kernels] = {}
        if device == "cpu":
            triton.runtime.driver.set_active(StandInDriver(target, "cpu"))
            interpreter_fixes.apply()
            language.apply()
        else:
            triton.set_allocator(_device_scratch)

    def run(
        self, tape: JSON, arguments: Arguments, rules: dict[str, Any], options: Options
    ) -> tuple[Json, list[Bytes]]:
        """Run a tape once and check what it did.

        Args:
            arguments: the call's, named by parameter.
            rules: the function's table of lab.toml: allow, scale, rope, known, kernel.

        Returns:
            the reply as written by an encoder: value, mutated, and what the options ask for.

        Raises:
            InvalidTape, ContractError: the tape or what it does breaks a rule. CannotRebuild, CannotLower: a kernel
            isn't one, or doesn't compile. OutOfBounds: it leaves its tensors. CannotInterpret: a GPU would run it.
            DeviceFault: it failed on the GPU.
        """
        validate(tape)
        rules = dict(rules)
        from_kernel = rules.pop("kernel", True)
        kernels = self.kernels_of(tape["functions"])
        products = _products(options) if self.device == "cpu" else None
        first = None
        if products is not None:
            replay, runner = self._replay(tape, arguments, rules, options, kernels, products)
            first = _sampled(replay, runner)
            products.again = True
        replay, runner = self._replay(tape, arguments, rules, options, kernels, products)
        try:
            synchronize(self.device)
        except RuntimeError as problem:
            reason = str(problem).splitlines()[0]
            raise DeviceFault(
                f"A kernel ended with a fault of the GPU ({reason}). Check masks and offsets."
            ) from problem
        reply = _reply(replay, arguments, options, runner, self.device, first)
        if from_kernel:
            _require_kernel(replay, arguments)
        return reply

    def _replay(
        self,
        tape: JSON,
        arguments: Arguments,
        rules: dict[str, Any],
        options: Options,
        kernels: Kernels,
        products: Products | None,
    ) -> tuple[Replay, Runner]:
        """A tape's steps, repeated on the inputs as they are."""
        sampler = _sampler(tape, options, products) if self.device == "cpu" else None
        runner: Runner = Compiled(kernels)
        if self.device == "cpu":
            runner = Interpreted(kernels, options.trace, options.reversed, sampler)
        replay = Replay(tape, arguments, rules, options, self.device, runner)
        if sampler is not None:
            replay.shadow = sampler.shadow
        replay.prepare()
        with runner.ready():
            replay.replay()
        return replay, runner

    def kernels_of(self, functions: list[JSON]) -> Kernels:
        """Kernels of this very content, rebuilt once: a submission's tapes mostly have the same."""
        content = json.dumps(functions, sort_keys=True)
        if content not in self._kernels:
            if len(self._kernels) >= MAX_KERNELS:
                self._kernels.clear()
            self._kernels[content] = Kernels(functions, self._folder)
        return self._kernels[content]


def _products(options: Options) -> Products | None:
    hidden = (options.sample or {}).get("hidden")
    return Products(frozenset(hidden), int(options.sample["seed"])) if options.sample and hidden else None


def _sampler(tape: JSON, options: Options, products: Products | None) -> Sampler | None:
    if options.sample is None:
        return None
    launches = sum(step["do"] in ("launch", "choice") for step in tape["steps"])
    return Sampler(int(options.sample["seed"]), float(options.sample["budget_s"]), launches, products)


def _sampled(replay: Replay, runner: Runner) -> dict[str, Any] | None:
    """Which elements of the results are final: None where all are, else a mask; and what ran of each launch."""
    sampler = runner.sampler if isinstance(runner, Interpreted) else None
    if sampler is None:
        return None
    value, gradients = replay.result(), replay.gradients()
    results = _listed(value)

    def final(item: Any) -> Any:
        mask = sampler.shadow.mask(item, replay.memory) if isinstance(item, torch.Tensor) else None
        return None if mask is None else (~mask).numpy()

    return {
        "final": [final(item) for item in results],
        "final_gradients": {name: final(item) for name, item in gradients.items()},
        "final_mutated": {name: final(tensor) for name, tensor in replay.mutable()},
        "launches": sampler.ran,
    }


def _require_kernel(replay: Replay, arguments: Arguments) -> None:
    """Raises ContractError where a result of floats, or an input that the call is to change, is no kernel's work."""
    results = [("a result", item) for item in tree_leaves(_plain(replay.result())) if isinstance(item, torch.Tensor)]
    if not all(guard.value_bytes for guard in arguments.guarded):
        return  # Of an empty input there may be nothing to compute.
    for name, item in (*results, *replay.mutable()):
        if item.numel() and item.is_floating_point() and not replay.operations.checker.from_kernel(item):
            raise ContractError(f"No Triton kernel wrote {name} of the call.")


def _check_gradients(gradients: dict[str, Any], arguments: Arguments) -> None:
    """Raises ContractError where a tape has other gradients than the call asks for."""
    tensors = [guard for guard in arguments.guarded if isinstance(guard, GuardedTensor)]
    asked = any(guard.name.startswith("cotangents[") for guard in tensors)
    shapes = {guard.name: guard.leaf.shape for guard in tensors if asked and guard.leaf.requires_grad}
    if gradients.keys() != shapes.keys():
        wanted = ", ".join(shapes) or "none"
        raise ContractError(f"The recorded call has gradients by {shown(list(gradients))}; expected {wanted}.")
    for name, made in gradients.items():
        if made is not None and tuple(made.shape) != tuple(shapes[name]):
            raise ContractError(f"The gradient by {name} has shape {tuple(made.shape)}; expected {shapes[name]}.")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Record) else value


def _listed(value: Any) -> list[Any]:
    """A call's results in order."""
    return list(value) if isinstance(value, (tuple, list, Record)) else [value]


def _reply(
    replay: Replay,
    arguments: Arguments,
    options: Options,
    runner: Runner,
    device: str,
    first: dict[str, Any] | None,
) -> tuple[Json, list[Bytes]]:
    """Results, written down before anything overwrites them, and the checks of what the run may not change.

    Args:
        first: what the first of two runs was sampled of; None after one.
    """
    value, gradients = replay.result(), replay.gradients()
    _check_gradients(gradients, arguments)
    made = [item for item in tree_leaves([_plain(value), gradients]) if isinstance(item, torch.Tensor)]
    try:
        replay.operations.checker.finish(made)
        encoder = Encoder(ResultLeaves(arguments.guarded, MAX_BYTES[device], with_torch=True), records=True)
        written = encoder.encode(value, "the result")
    except (Forbidden, UnsendableError) as problem:
        raise ContractError(str(problem)) from problem
    for guard in arguments.guarded:
        guard.check_values()
    results = _listed(value)
    reply: dict[str, Any] = {
        "mutated": {guard.name: guard.current() for guard in arguments.guarded if guard.mutable},
    }
    if gradients:
        reply["gradients"] = gradients
    sampled = first or _sampled(replay, runner)
    if sampled is not None:
        reply["sample"] = sampled
    if options.trace:
        reply["traffic"] = runner.traffic(replay.memory, results, gradients, replay.operations.counts).to_wire()
    rest = [encoder.encode(item, key) for key, item in reply.items()]
    for guard in arguments.guarded:
        guard.check_surroundings()
    replay.memory.check_guards()
    return {"~": "dict", "k": ["value", *reply], "v": [written, *rest]}, encoder.buffers

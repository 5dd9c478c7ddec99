"""Records one call of a launcher: data-free arguments in, a tape out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..gpu_target import Target
from ..kernel_closure import Closure
from ..rules import Checker, Forbidden
from ..tape import MAX_INPUTS, MAX_TENSORS, VERSION
from .cuda import stand_in_cuda
from .dispatch import Recorder
from .functions import plain_functions
from .gradients import gradients
from .history import History
from .launcher import Launcher, recording_launches
from .operations import plain_triton
from .results import ResultWriter
from .tensors import Description, data_free, twin_of
from .values import JSON, Encoder, Refused, Step, Value


@contextmanager
def watching(history: History, target: Target) -> Iterator[Launcher]:
    """In the block torch makes data-free tensors on the target's GPU, and what is done with them is remembered.

    A submission is imported in it, so that its calls can make anew what its modules keep; `run` enters it by itself.
    """
    recorder = Recorder(history)
    launcher = Launcher(history, recorder)
    with ExitStack() as stack:
        stack.enter_context(stand_in_cuda(target, history))
        stack.enter_context(data_free(history))
        stack.enter_context(plain_triton())
        stack.enter_context(plain_functions(history))
        stack.enter_context(recording_launches(launcher))
        stack.enter_context(recorder)
        yield launcher


def run(
    function: Callable[..., Any],
    args: list[Any] | tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    target: Target,
    bound: dict[str, Any],
    cotangents: list[Any],
    rules: dict[str, Any],
    history: History,
) -> JSON:
    """Call a launcher on data-free tensors and return what it does as a tape.

    Args:
        args, kwargs: as the submission takes them, with a `Description` in place of each tensor.
        target: see `gpu_target`.
        bound: parameter → argument, by the same objects.
        cotangents: descriptions of what the results are multiplied with, None where a result isn't; empty if no
            gradients are asked for.
        rules: what the launcher may do, as `rules.Checker` takes it (allow, scale, rope, mutable, known).
        history: of this worker; the submission was imported while `watching` it.

    Raises:
        Refused: the launcher does what can't be recorded or isn't allowed. ContractError: its result is of a kind that
        can't be judged. Whatever else the launcher raises passes through.
    """
    with watching(history, target) as launcher, history.new_call() as steps:
        call = _Call(launcher, history, rules)
        twins = call.arguments(bound)
        given = [call.cotangent(item, number) for number, item in enumerate(cotangents)]
        launcher.closure = call.closure
        value = function(*_replaced(args, twins), **_replaced(kwargs, twins))
        encoder = Encoder(history.value_of, "")
        writer = ResultWriter(encoder, launcher.recorder.twin_of_numbers)
        result = writer.write(value)
        found: dict[str, torch.Tensor | None] = {}
        if cotangents:
            history.phase = "backward"
            results = list(value) if type(value) in (tuple, list) else [value]
            found = gradients(results, given, call.inputs, history)
        call.finish([*writer.tensors, *(item for item in found.values() if item is not None)])
        by_input = {name: None if item is None else encoder.tensor(item) for name, item in found.items()}
        return _Writer().tape(
            {
                "version": VERSION,
                "functions": call.closure.functions,
                "inputs": {name: history.value_of(item) for name, item in call.inputs.items()},
                "cotangents": [None if item is None else history.value_of(item) for item in given],
                "steps": [*history.before(_uses(steps, encoder.inputs)), *steps],
                "result": result,
                "gradients": by_input,
                "notes": history.notes,
            }
        )


class _Call:
    """One call's arguments and checks."""

    def __init__(self, launcher: Launcher, history: History, rules: dict[str, Any]) -> None:
        self._history = history
        self._mutable = frozenset(rules.get("mutable", ()))
        self.closure = Closure()
        self.checker = launcher.recorder.checker = Checker(**rules)
        self.inputs: dict[str, torch.Tensor] = {}

    def arguments(self, bound: dict[str, Any]) -> dict[int, torch.Tensor]:
        """Make a twin of every description among the arguments, by the description's identity."""
        twins: dict[int, torch.Tensor] = {}
        pending = list(reversed(bound.items()))
        while pending:
            name, value = pending.pop()
            if isinstance(value, Description) and id(value) not in twins:
                twins[id(value)] = self.inputs[name] = self._twin(value, name)
            elif type(value) in (list, tuple):
                pending.extend((f"{name}[{i}]", item) for i, item in reversed(list(enumerate(value))))
            elif type(value) is dict:
                pending.extend((f"{name}[{key!r}]", item) for key, item in reversed(value.items()))
        if len(twins) > MAX_INPUTS:
            raise Refused("", f"{len(twins)} tensors as arguments; at most {MAX_INPUTS}.")
        return twins

    def cotangent(self, item: Description | None, number: int) -> torch.Tensor | None:
        return None if item is None else self._twin(item, f"cotangents[{number}]")

    def _twin(self, item: Description, name: str) -> torch.Tensor:
        twin = twin_of(item, name, self._history, protected=name.partition("[")[0] not in self._mutable)
        self.checker.bind(name, twin)
        return twin

    def finish(self, results: list[torch.Tensor]) -> None:
        try:
            self.checker.finish(results)
        except Forbidden as problem:
            raise Refused("", str(problem)) from None


def _replaced(value: Any, twins: dict[int, torch.Tensor]) -> Any:
    """The arguments with their twins in place."""
    if isinstance(value, Description):
        return twins[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, twins) for item in value)
    if type(value) is dict:
        return {key: _replaced(item, twins) for key, item in value.items()}
    return value


def _uses(steps: list[Step], others: list[Value]) -> list[Value]:
    return [*(value for step in steps for value in step.inputs), *others]


class _Writer:
    """Numbers the tensors of a tape in order of their appearance."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._next = 0

    def tape(self, parts: JSON) -> JSON:
        """The tape with a number in place of each value."""
        inputs = {name: self._define(value) for name, value in parts["inputs"].items()}
        cotangents = [None if value is None else self._define(value) for value in parts["cotangents"]]
        steps = [self._step(step) for step in parts["steps"]]
        by_input = {
            name: None if value is None else self._written(value, "")["t"] for name, value in parts["gradients"].items()
        }
        result = self._written(parts["result"], "")
        return {
            **parts,
            "inputs": inputs,
            "cotangents": cotangents,
            "steps": steps,
            "result": result,
            "gradients": by_input,
        }

    def _define(self, value: Value) -> int:
        if self._next >= MAX_TENSORS:
            raise Refused(value.step.where, f"this call makes more than {MAX_TENSORS} tensors.")
        number = self._numbers[id(value)] = self._next
        self._next += 1
        return number

    def _step(self, step: Step) -> JSON:
        content = step.content
        if content["do"] == "choice":
            candidates = []
            for candidate in content["candidates"]:
                before = dict(self._numbers)
                candidates.append({**candidate, "steps": [self._step(inner) for inner in candidate["steps"]]})
                self._numbers = before  # What a candidate makes is its own.
            return {**content, "candidates": candidates}
        written: JSON = self._written(content, step.where)
        if content["do"] != "launch":
            written["out"] = [None if out is None else self._define(out) for out in step.outs]
        return written

    def _written(self, value: Any, where: str) -> Any:
        if isinstance(value, Value):
            number = self._numbers.get(id(value))
            if number is None:
                raise Refused(where, "a tensor that the pre_hook of one configuration made is used outside of it.")
            return {"t": number}
        if type(value) is list:
            return [self._written(item, where) for item in value]
        if type(value) is dict:
            return {key: self._written(item, where) for key, item in value.items()}
        return value

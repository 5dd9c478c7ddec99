"""Operations of forged tapes: whatever arguments one has, it's done, or refused as the tape's fault."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from running import leaf

from grader.worker.calls import Arguments
from grader.worker.execute.memory import Memory
from grader.worker.execute.operations import Operations
from grader.worker.guards import ContractError
from grader.worker.operators import ALLOCATIONS, ARITHMETIC, MATRICES, MOVES, VIEWS, operator
from grader.worker.plain import InvalidTape
from grader.worker.rules import CLASSES, Checker
from grader.worker.tape import validate
from grader.worker.tensors import DTYPE_NAMES

TABLES = sorted(ALLOCATIONS | ARITHMETIC | MATRICES | MOVES | VIEWS)
INPUTS = {
    "q": torch.arange(24.0).reshape(2, 3, 4),
    "half": torch.arange(12, dtype=torch.float16).reshape(3, 4),
    "lens": torch.tensor([2, 0, 1]),
    "mask": torch.tensor([True, False, True, True]),
    "row": torch.arange(4.0).expand(3, 4),
    "point": torch.tensor(2.5),
    "none": torch.empty(0, 4),
    "wide": torch.arange(4.0).to(torch.complex64),
    "cache": torch.arange(12.0).reshape(3, 4),
}
WILD: list[Any] = [None, True, -1, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, float("nan"), float("inf"), "meta", [], [[]]]
WILD += [{"tuple": [1, 2]}, {"dtype": "int8"}, {"device": "meta"}, {"layout": "strided"}]


class Fuzz:
    """Operations of random arguments on one call's inputs, and on what the operations before them made."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._arguments = Arguments(lambda reference: None)
        values = {name: self._arguments.leaf(leaf(tensor)) for name, tensor in INPUTS.items()}
        self._arguments.name(values, ("cache",))
        memory = Memory("cpu")
        checker = Checker(CLASSES, scale=["q"], rope=["row", "lens"], mutable=["cache"], known=["lens"])
        self.operations = Operations(memory, checker)
        for number, guard in enumerate(self._arguments.guarded):
            tensor = memory.add_input(guard)
            checker.bind(guard.name, tensor)
            self.operations.tensors[number] = tensor
        for _ in range(3):  # what kernels wrote
            made = memory.allocate((3, 4), (4, 1), torch.float32).fill_(0.5)
            self.operations.tensors[len(self.operations.tensors)] = made
            checker.launched([made])

    def step(self) -> dict[str, Any]:
        """A random call of an operation, with mostly fitting arguments."""
        name = self._rng.choice(TABLES)
        packet, _, overload = name.partition(".")
        in_place = getattr(torch.ops.aten, f"{packet}_", None)
        if self._rng.random() < 0.3 and overload in getattr(in_place, "overloads", list)():
            name = f"{packet}_.{overload}"
        func = operator(f"aten.{name}")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in func._schema.arguments:
            if argument.has_default_value() and self._rng.random() < 0.6:
                continue
            value = self._value(str(argument.real_type))
            by_position = not argument.kwarg_only and len(args) == func._schema.arguments.index(argument)
            if by_position and self._rng.random() < 0.8:
                args.append(value)
            elif self._rng.random() < 0.97:
                kwargs[argument.name] = value
        outs = [len(self.operations.tensors) + n for n in range(self._rng.choice((1, 1, 1, 1, 2, 3)))]
        step = {"do": "op", "name": f"aten.{name}", "args": args, "kwargs": kwargs, "out": outs}
        return {**step, "where": "launcher.py:1"}

    def _value(self, kind: str) -> Any:
        rng = self._rng
        if rng.random() < 0.04:
            return rng.choice(WILD)
        if kind.startswith("Optional["):
            return None if rng.random() < 0.5 else self._value(kind[9:-1])
        if kind.startswith("List["):
            return [self._value(kind[5:-1]) for _ in range(rng.randrange(4))]
        if kind == "Tensor":
            return {"t": rng.choice(sorted(self.operations.tensors))}
        if kind in ("int", "SymInt"):
            return rng.choice((0, 0, 1, 1, 2, 3, 4, -1, -2, 7))
        plain: dict[str, Any] = {
            "bool": rng.random() < 0.5,
            "number": rng.choice((0, 2, 3, 0.5, True)),
            "float": 0.5,
            "str": rng.choice(("floor", "trunc", "left")),
            "ScalarType": {"dtype": rng.choice(sorted(DTYPE_NAMES.values()))},
            "Device": {"device": "cuda:0"},
            "Layout": {"layout": "strided"},
        }
        return plain.get(kind, {"memory_format": rng.choice(("contiguous_format", "preserve_format", "channels_last"))})

    def perform(self, step: dict[str, Any]) -> bool:
        """Whether a step is done; False where the tape is at fault."""
        tape = {"version": 1, "functions": [], "inputs": {}, "result": None, "steps": [step]}
        tape["inputs"] = {f"x{number}": number for number in self.operations.tensors}
        try:
            validate(tape)
            self.operations.perform(step)
        except (ContractError, InvalidTape):
            return False
        return True

    def check(self) -> None:
        """The inputs are as they were, and every tensor lies where it's known."""
        for guard in self._arguments.guarded:
            guard.check_values()
        for tensor in self.operations.tensors.values():
            assert tensor.numel() == 0 or self.operations.memory.of(tensor) is not None

    def finish(self) -> None:
        """Nothing around a tensor changed."""
        for guard in self._arguments.guarded:
            guard.check_surroundings()
        self.operations.memory.check_guards()


def fuzzed(seed: int, steps: int) -> int:
    """How many of the steps are done."""
    fuzz, done = Fuzz(seed), 0
    for _ in range(steps):
        step = fuzz.step()
        try:
            done += fuzz.perform(step)
            fuzz.check()
        except Exception as problem:
            raise AssertionError(f"seed {seed}: {step}") from problem
    fuzz.finish()
    return done


@pytest.mark.parametrize("seed", range(6))
def test_perform_any_arguments_are_done_or_the_tapes_fault(seed: int) -> None:
    assert fuzzed(seed, 200) > 5


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_operations_that_make_something_new_and_add_nothing_up_in_place(name: str) -> None:
    schema = operator(f"aten.{name}")._schema
    assert not schema.is_mutable
    added = {"index_put.default": {"accumulate"}}.get(name, set())
    assert {item.name for item in schema.arguments} & {"reduce", "accumulate", "generator"} == added


@pytest.mark.slow
def test_perform_any_arguments_of_a_minute_are_done_or_the_tapes_fault() -> None:
    seed, stop = 1000, time.monotonic() + 60
    while time.monotonic() < stop:
        fuzzed(seed, 150)
        seed += 1

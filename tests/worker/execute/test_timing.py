"""The executor's side of a timed tape, without a judge: what is made once, what is repeated, what is compiled ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from running import Tape, executor

from grader.worker.calls import Arguments
from grader.worker.execute.ahead import Ahead
from grader.worker.execute.describing import descriptions
from grader.worker.execute.kernels import Kernels
from grader.worker.execute.timing import TapeTimer, open_tape
from grader.worker.guards import ContractError
from grader.worker.tape import JSON
from grader.worker.tensors import GuardedTensor
from grader.worker.timing_torch import TensorMemory
from grader.worker.wire import Leaf

SIZE = 64
RULES = {"allow": ["moves", "scale"], "scale": ["x"], "rope": [], "known": [], "kernel": True}


@triton.jit
def scaled(x, factor, o, SIZE: tl.constexpr, SHIFT: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(o + SHIFT + i, tl.load(x + i) * tl.load(factor))


def tape_of(*, shift: int = 0) -> JSON:
    """x times a constant that the launcher overwrites once it was used."""
    tape = Tape()
    x, factor, o = tape.input("x"), tape.constant("float32", 3.0), tape.empty(SIZE)
    tape.launch(scaled, [1], x, factor, o, SIZE=SIZE, SHIFT=shift)
    tape.op("fill_.Scalar", factor, 5.0)
    return tape.returning(o)


@pytest.fixture(autouse=True)
def _ready() -> None:
    executor()


def opened(tape: JSON, mode: str = "call", inputs: tuple[str, ...] = ("x",)) -> TapeTimer:
    specs = [
        {"name": name, "shape": [SIZE], "dtype": "float32", "kind": "normal", "scale": 1.0, "shift": 0.0, "value": None}
        | {"requires_grad": name == "x" and mode == "backward", "cotangent": name == "do"}
        for name in inputs
    ]
    body = {"tape": tape, "rules": RULES, "names": ["x"], "inputs": specs, "mode": mode, "mutable": []}
    block = np.random.default_rng(0).standard_normal(1009, dtype=np.float32)
    return open_tape(body, TensorMemory(block, 64, "cpu"))


class Gate:
    """Asks for the whole output of every call."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def go(self) -> bool:
        return True

    def done(self, took: int) -> list[Any]:
        return [[call, [[0, np.arange(SIZE)[:, None]]]] for call in range(self._calls)]


def draw(calls: int, inputs: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 1009, (calls, inputs)), rng.integers(0, 2, (calls, inputs, SIZE), dtype=np.uint8)


def expected(offset: int, signs: Any) -> Any:
    block = np.random.default_rng(0).standard_normal(1009, dtype=np.float32)
    return np.concatenate([block, block])[offset : offset + SIZE] * (1.0 - 2.0 * signs)


def test_window_gives_each_call_its_own_values_and_the_launchers_numbers_anew() -> None:
    timer = opened(tape_of())
    for _ in range(2):
        offsets, signs = draw(3)
        rows = timer.window(offsets, signs, Gate(3))
        for call in range(3):
            np.testing.assert_allclose(rows[call][0], 3.0 * expected(offsets[call, 0], signs[call, 0]), rtol=1e-6)
    timer.check()
    assert timer.work() == (1, 2)  # the launch, and the fill after it


def test_check_finds_what_a_call_wrote_next_to_its_tensors() -> None:
    timer = opened(tape_of(shift=8))
    with pytest.raises(Exception, match="scaled"):  # the interpreter refuses it before it's made
        timer.window(*draw(1), Gate(1))
    timer = opened(tape_of())
    timer.window(*draw(2), Gate(2))
    storage = next(each for each in timer._calls[1]._replay.memory if each.buffer is not None)  # type: ignore[attr-defined]
    storage.buffer[storage.lead - 1] = 0
    with pytest.raises(ContractError, match="memory next to it changed"):
        timer.check()


def test_backward_pass_begins_with_the_first_use_of_a_cotangent() -> None:
    tape = Tape()
    x, do, factor = tape.input("x"), tape.cotangent(), tape.constant("float32", 2.0)
    o, dx = tape.empty(SIZE), tape.empty(SIZE)
    tape.launch(scaled, [1], x, factor, o, SIZE=SIZE, SHIFT=0)
    tape.launch(scaled, [1], do, factor, dx, SIZE=SIZE, SHIFT=0)
    timer = opened(tape.returning(o, gradients={"x": dx}), "backward", ("x", "do"))
    offsets, signs = draw(2, 2)
    rows = timer.window(offsets, signs, Gate(2))
    np.testing.assert_allclose(rows[1][0], 2.0 * expected(offsets[1, 1], signs[1, 1]), rtol=1e-6)
    assert timer.work() == (1, 1)


def test_tune_takes_a_candidate_that_runs_for_all_calls() -> None:
    tape = Tape()
    x, factor, o = tape.input("x"), tape.constant("float32", 2.0), tape.empty(SIZE)
    broken = tape.launching(scaled, [1], x, factor, o, SIZE=48, SHIFT=0)  # tl.arange takes powers of two
    tape.choice(broken, tape.launching(scaled, [1], x, factor, o, SIZE=SIZE, SHIFT=0))
    timer = opened(tape.returning(o))
    assert timer.choices == 1
    assert timer.tune() == ["candidate 1"]
    offsets, signs = draw(2)
    rows = timer.window(offsets, signs, Gate(2))
    np.testing.assert_allclose(rows[0][0], 2.0 * expected(offsets[0, 0], signs[0, 0]), rtol=1e-6)


def test_ahead_compiles_every_candidate_into_tritons_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    tape = Tape()
    x, factor, o = tape.input("x"), tape.constant("float32", 2.0), tape.empty(SIZE)
    tape.choice(*(tape.launching(scaled, [1], x, factor, o, SIZE=size, SHIFT=0) for size in (16, 32, 48)))
    made = tape.returning(o)
    kernels = Kernels(made["functions"], tmp_path)
    arguments = Arguments(lambda reference: None)
    guard = GuardedTensor(Leaf("tensor", "float32", (SIZE,), np.zeros(0, np.uint8), (SIZE,)))
    guard.name = "x"
    arguments.guarded.append(guard)
    rules = {name: RULES[name] for name in ("allow", "scale", "rope", "known")}
    found = descriptions(made, arguments, rules, "cpu", kernels)
    assert Ahead(kernels, found).wait() == 2  # of three: one isn't a power of two
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) == 2
    assert torch.isnan(guard.own).all()

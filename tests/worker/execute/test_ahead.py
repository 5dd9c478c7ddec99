"""What is compiled before the GPU is asked for is what the launch then finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from running import RULES, Tape, executor, leaf

from grader.worker.calls import Arguments
from grader.worker.execute.ahead import Ahead
from grader.worker.execute.describing import descriptions
from grader.worker.execute.run import Options
from grader.worker.stand_in_driver import StandInDriver


@triton.jit
def scaled_copy(x, o, n, factor, BLOCK: tl.constexpr, ONE: tl.constexpr = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n, other=0.0) * factor, mask=i < n)


@triton.jit
def never_lowers(x, o, n, BLOCK: tl.constexpr):
    tl.store(o + tl.arange(0, 3), 0.0)


@pytest.fixture
def hits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """Whether each compile of this process found its kernel in the cache."""
    found: list[bool] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **told: found.append(told["cache_hit"]))
    return found


def described(tape: Tape, returned: Any) -> tuple[Any, list[Any], Any]:
    """The kernels of a tape on x (64, 64), what its launches would compile, and its last step."""
    whole = tape.returning(returned)
    arguments = Arguments(lambda ref: None)
    arguments.name({"x": arguments.leaf(leaf(torch.zeros(64, 64)))}, ())
    kernels = executor().kernels_of(whole["functions"])
    return kernels, descriptions(whole, arguments, RULES, "cpu", kernels, Options()), whole["steps"][-1]


@pytest.mark.parametrize("n", [4096, 4095, 1])
def test_launch_finds_what_was_compiled_ahead(n: int, hits: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    parent, asked = os.getpid(), StandInDriver.get_current_target

    def ask_the_gpu(self: StandInDriver) -> Any:
        assert os.getpid() == parent, "CUDA can't be used in a forked process"
        return asked(self)

    monkeypatch.setattr(StandInDriver, "get_current_target", ask_the_gpu)
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64, 64)
    tape.launch(scaled_copy, [16], x, o, n, 2.0, BLOCK=256)
    kernels, launches, step = described(tape, o)
    assert Ahead(kernels, launches).wait() == 1
    kernels.compiled(step["entry"]).warmup(torch.zeros(64, 64), torch.zeros(64, 64), n, 2.0, BLOCK=256, grid=(16,))
    assert hits == [True]


def test_what_does_not_lower_is_left_to_its_launch() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64, 64)
    tape.launch(never_lowers, [1], x, o, 1, BLOCK=256)
    kernels, launches, _ = described(tape, o)
    assert len(launches) == 1
    assert Ahead(kernels, launches).wait() == 0

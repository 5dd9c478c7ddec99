"""Sampled runs: some programs within a budget of time, and which elements of the results are final nevertheless."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from running import Tape, run

from grader.worker.execute import sampling

X = torch.arange(4096.0).reshape(64, 64)


@triton.jit
def double_rows(x, o, ROWS: tl.constexpr):
    i = tl.program_id(0) * ROWS * 64 + tl.arange(0, ROWS * 64)
    tl.store(o + i, tl.load(x + i) * 2)


@triton.jit
def partial_sums(x, parts, splits, SPLIT_LAST: tl.constexpr):
    """One program: the sum of one part of one row of x."""
    program = tl.program_id(0)
    if SPLIT_LAST:
        row, part = program // splits, program % splits
    else:
        row, part = program % 64, program // 64
    j = part * 16 + tl.arange(0, 16)
    tl.store(parts + row * splits + part, tl.sum(tl.load(x + row * 64 + j), 0))


@triton.jit
def merged(parts, o, splits):
    row = tl.program_id(0)
    total = 0.0
    for part in range(splits):
        total += tl.load(parts + row * splits + part)
    tl.store(o + row, total)


@triton.jit
def add_rows(x, o):
    row = tl.program_id(0)
    tl.atomic_add(o + tl.arange(0, 64), tl.load(x + row * 64 + tl.arange(0, 64)))


@triton.jit
def double_rows_of_the_first(x, o, programs):
    row = tl.program_id(0)
    if row < programs:
        tl.store(o + row * 64 + tl.arange(0, 64), tl.load(x + row * 64 + tl.arange(0, 64)) * 2)


@triton.jit
def product_and_sum(x, o, s):
    """o: x times itself by tl.dot, on top of ones; s: the sum of x, without a product."""
    i = tl.arange(0, 64)
    block = tl.load(x + i[:, None] * 64 + i[None, :])
    tl.store(o + i[:, None] * 64 + i[None, :], tl.dot(block, block, acc=tl.full((64, 64), 1.0, tl.float32)))
    tl.store(s + i, tl.sum(block, 1))


class Clock:
    """Time passes by `step` seconds at each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes between two programs."""
    monkeypatch.setattr(sampling, "time", Clock(1.0))


def sampled(tape: Any, seconds: float = 7.5, seed: int = 3, **more: Any) -> dict[str, Any]:
    return run(tape, {"x": X}, sample={"seed": seed, "budget_s": seconds}, **more)


def final(reply: dict[str, Any], position: int = 0) -> Any:
    return reply["sample"]["final"][position]


def doubled() -> Any:
    tape = Tape()
    o = tape.empty(64, 64)
    tape.launch(double_rows, [64], tape.input("x"), o, ROWS=1)
    return tape.returning(o)


def test_sampling_budget_that_suffices_runs_all() -> None:
    reply = sampled(doubled(), 60.0)
    assert torch.equal(reply["value"], 2 * X)
    assert final(reply) is None
    assert reply["sample"]["launches"] == [
        {"kernel": "double_rows", "programs": 64, "ran": 64, "idle": 0, "atomics": False, "core_flops": 0}
    ]


@pytest.mark.parametrize("copied", [False, True])
def test_sampling_hidden_input_shows_in_products_alone(copied: bool) -> None:
    tape = Tape()
    x, o, s = tape.input("x"), tape.empty(64, 64), tape.empty(64)
    tape.launch(product_and_sum, [1], tape.op("clone.default", x) if copied else x, o, s)
    told = tape.returning(o, s)
    for hidden in (["y"], ["x"]):
        reply = run(told, {"x": X}, sample={"seed": 3, "budget_s": 60.0, "hidden": hidden})
        assert torch.allclose(reply["value"][0], 1.0 + X @ X, rtol=1e-2)  # TF32
        assert torch.equal(reply["value"][1], X.sum(1)) == (hidden == ["y"])
        assert final(reply) is None


@pytest.mark.usefixtures("slow")
def test_sampling_second_run_leaves_out_no_program_of_the_first() -> None:
    """The launch in the middle needs all rows of the first one, of which some are missing; the last one needs a few."""
    tape = Tape()
    y, z, o, s = tape.empty(64, 64), tape.empty(64, 64), tape.empty(64, 64), tape.empty(64)
    tape.launch(double_rows, [64], tape.input("x"), y, ROWS=1)
    tape.launch(product_and_sum, [1], y, o, s)
    tape.launch(double_rows, [64], y, z, ROWS=1)
    reply = run(tape.returning(z), {"x": X}, sample={"seed": 3, "budget_s": 120.0, "hidden": ["y"]})
    rows = final(reply).all(axis=1)
    assert reply["sample"]["launches"][1]["ran"] == 0
    assert 0 < rows.sum() < 64
    assert np.array_equal(reply["value"].numpy()[rows], 4 * X.numpy()[rows])


def test_sampling_tells_launches_with_atomics() -> None:
    tape = Tape()
    o = tape.op("zeros.default", [64])
    tape.launch(add_rows, [64], tape.input("x"), o)
    assert sampled(tape.returning(o), 60.0)["sample"]["launches"][0]["atomics"]
    assert not sampled(doubled(), 60.0)["sample"]["launches"][0]["atomics"]


def test_sampling_counts_programs_that_store_nothing() -> None:
    tape = Tape()
    o = tape.empty(64, 64)
    tape.launch(double_rows_of_the_first, [64], tape.input("x"), o, 40)
    assert sampled(tape.returning(o), 60.0)["sample"]["launches"][0]["idle"] == 24


@pytest.mark.usefixtures("slow")
def test_sampling_stops_at_the_budget_and_tells_whole_rows() -> None:
    reply = sampled(doubled())
    mask = final(reply)
    rows = mask.all(axis=1)
    assert reply["sample"]["launches"][0]["ran"] == 8
    assert rows.sum() == 8
    assert (mask.any(axis=1) == rows).all()
    assert np.array_equal(reply["value"].numpy()[rows], 2 * X.numpy()[rows])
    assert np.isnan(reply["value"].numpy()[~rows]).all()


@pytest.mark.usefixtures("slow")
def test_sampling_seed_decides_which_programs_run() -> None:
    assert np.array_equal(final(sampled(doubled())), final(sampled(doubled())))
    assert not np.array_equal(final(sampled(doubled())), final(sampled(doubled(), seed=4)))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("split_last", [True, False])
def test_sampling_dependent_launches_leave_whole_rows(split_last: bool) -> None:
    """Programs that have parts of one row run together, whether they're neighbours or far apart."""
    tape = Tape()
    parts, o = tape.empty(64, 4), tape.empty(64)
    tape.launch(partial_sums, [256], tape.input("x"), parts, 4, SPLIT_LAST=split_last)
    tape.launch(merged, [64], parts, o, 4)
    reply = sampled(tape.returning(o), 140.0)
    first, second = reply["sample"]["launches"]
    mask = final(reply)
    assert first["ran"] < first["programs"]
    assert 0 < mask.sum() == second["ran"] < 64
    assert torch.equal(reply["value"][torch.from_numpy(mask)], X.sum(1)[torch.from_numpy(mask)])


@pytest.mark.usefixtures("slow")
def test_sampling_torch_carries_on_what_is_incomplete() -> None:
    """The parts are added up by torch: a row is final if all its parts are."""
    tape = Tape()
    parts = tape.empty(64, 4)
    tape.launch(partial_sums, [256], tape.input("x"), parts, 4, SPLIT_LAST=True)
    total = tape.op("mul.Tensor", tape.op("sum.dim_IntList", parts, [1]), 2.0)
    padded = tape.op(
        "constant_pad_nd.default", tape.op("_to_copy.default", total, dtype={"dtype": "float64"}), [2, 0], 0.0
    )
    reply = sampled(tape.returning(padded), 60.0)
    mask = final(reply)
    assert mask.shape == (66,)
    assert mask[:2].all()
    assert 0 < mask[2:].sum() < 64
    wanted = torch.cat([torch.zeros(2), 2 * X.sum(1)]).double()
    assert torch.equal(reply["value"][torch.from_numpy(mask)], wanted[torch.from_numpy(mask)])


@pytest.mark.usefixtures("slow")
def test_sampling_sums_by_atomics_are_final_only_if_all_programs_ran() -> None:
    tape = Tape()
    o = tape.op("zeros.default", [64], dtype={"dtype": "float32"}, device={"device": "cuda:0"})
    tape.launch(add_rows, [64], tape.input("x"), o)
    assert not final(sampled(tape.returning(o))).any()
    reply = sampled(tape.returning(o), 1000.0)
    assert final(reply) is None
    assert torch.equal(reply["value"], X.sum(0))


@pytest.mark.usefixtures("slow")
def test_sampling_inputs_that_change_are_told() -> None:
    tape = Tape()
    tape.launch(double_rows, [64], tape.input("x"), tape.input("cache"), ROWS=1)
    inputs = {"x": X, "cache": torch.zeros(64, 64)}
    settings = {"seed": 1, "budget_s": 7.5}
    reply = run(tape.returning(None), inputs, mutable=("cache",), sample=settings)
    mask = torch.from_numpy(reply["sample"]["final_mutated"]["cache"])
    assert mask.sum() == 8 * 64
    assert torch.equal(reply["mutated"]["cache"][mask], 2 * X[mask])


def test_sampling_keeps_to_its_budget() -> None:
    begin = time.monotonic()
    reply = sampled(doubled(), 0.05)
    assert time.monotonic() - begin < 5
    assert reply["sample"]["launches"][0]["ran"] >= 1

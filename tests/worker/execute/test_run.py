"""A tape on real inputs: what its steps make, what a run refuses, and what of one run is left for the next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from running import Tape, executor, run

from grader.worker.execute.kernels import CannotLower
from grader.worker.guards import ContractError
from grader.worker.tape import InvalidTape
from grader.worker.wire import Record

X = torch.arange(64.0)
LEAF = torch.arange(64.0).requires_grad_()


@triton.jit
def scaled_copy(x, o, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n, other=0.0) * factor, mask=i < n)


@triton.jit
def running_sum(x, total, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.load(total)
    tl.store(total, before * 0.5 + tl.sum(tl.load(x + i), 0))


@triton.jit
def added_by_ticket(x, ticket, total, seen):
    part = tl.atomic_add(ticket, 1)
    tl.atomic_add(total, tl.load(x + part))
    if seen is not None:
        tl.store(seen + part, tl.load(total))


@triton.jit
def half_written(x, o):
    i = tl.arange(0, 32)
    tl.store(o + i, tl.load(x + i))


@triton.jit
def doesnt_compile(x, o):
    tl.store(o + tl.arange(0, 24), 1.0)


@triton.jit
def first_tile(x, o):
    tl.store(o + tl.arange(0, 16), x.load([0]))


def copied(tape: Tape, factor: float = 2.0) -> dict[str, int]:
    o = tape.empty(64)
    tape.launch(scaled_copy, [4], tape.input("x"), o, 64, factor, BLOCK=16)
    return o


def test_run_launch_returns_what_the_kernel_stored() -> None:
    tape = Tape()
    reply = run(tape.returning(copied(tape)), {"x": X})
    assert torch.equal(reply["value"], 2 * X)
    assert reply["mutated"] == {}


def test_run_replays_operations_before_and_after_a_launch() -> None:
    tape = Tape()
    padded = tape.op("constant_pad_nd.default", tape.input("x"), [0, 4], 7.0)
    o = tape.empty(64)
    tape.launch(scaled_copy, [4], padded, o, 64, 1.0, BLOCK=16)
    half = tape.op("mul.Tensor", tape.op("slice.Tensor", o, 0, 32, 64), 0.5)
    reply = run(tape.returning(half, tape.constant("int32", 3, 4)), {"x": X[:60]})
    assert reply["value"][0].tolist() == [*(X[32:60] / 2).tolist(), 3.5, 3.5, 3.5, 3.5]
    assert reply["value"][1].tolist() == [3, 4]


def test_run_result_tree_keeps_records_numbers_and_lists() -> None:
    tape = Tape()
    o = copied(tape)
    tree = {"record": "Answer", "fields": {"o": o, "parts": [1, {"tuple": [2.5, None]}]}}
    value = run(tape.returning(tree), {"x": X})["value"]
    assert isinstance(value, Record)
    assert torch.equal(value.o, 2 * X)
    assert value.parts == [1, (2.5, None)]


def test_run_gradients_come_back_by_input() -> None:
    tape = Tape()
    x, cotangent = tape.input("x"), tape.cotangent()
    o, gradient = tape.empty(64), tape.empty(64)
    tape.launch(scaled_copy, [4], x, o, 64, 2.0, BLOCK=16)
    tape.launch(scaled_copy, [4], cotangent, gradient, 64, 3.0, BLOCK=16)
    reply = run(tape.returning(o, gradients={"x": gradient}), {"x": LEAF}, cotangents=[X + 1])
    assert torch.equal(reply["gradients"]["x"], 3 * (X + 1))


def _with_gradients(gradients: dict[str, int]) -> dict[str, Any]:
    tape = Tape()
    x, cotangent, y = tape.input("x"), tape.cotangent(), tape.input("y")
    tape.launch(scaled_copy, [4], x, o := tape.empty(64), 64, 2.0, BLOCK=16)
    tape.launch(scaled_copy, [4], cotangent, y_like := tape.empty(32), 32, 2.0, BLOCK=16)
    assert (x, y, o, y_like) == ({"t": 0}, {"t": 2}, {"t": 3}, {"t": 4})
    return tape.returning(o, gradients={name: {"t": number} for name, number in gradients.items()})


@pytest.mark.parametrize(
    ("gradients", "match"),
    [
        ({"x": 3, "y": 3}, "gradients by x, y; expected x"),
        ({}, "gradients by nothing; expected x"),
        ({"z": 3}, "gradients by z; expected x"),
        ({"x": 4}, r"The gradient by x has shape \(32,\); expected \(64,\)"),
    ],
)
def test_run_gradients_are_those_that_the_call_asks_for(gradients: dict[str, int], match: str) -> None:
    with pytest.raises(ContractError, match=match):
        run(_with_gradients(gradients), {"x": LEAF, "y": X}, cotangents=[X])


def test_run_without_cotangents_has_no_gradients() -> None:
    tape = Tape()
    o = copied(tape)
    with pytest.raises(ContractError, match="gradients by x; expected none"):
        run(tape.returning(o, gradients={"x": o}), {"x": LEAF})


def test_run_unwritten_elements_are_nan() -> None:
    tape = Tape()
    o = tape.empty(64)
    tape.launch(half_written, [1], tape.input("x"), o)
    value = run(tape.returning(o), {"x": X})["value"]
    assert torch.equal(value[:32], X[:32])
    assert bool(value[32:].isnan().all())


def test_run_strided_input_keeps_offset_and_strides() -> None:
    """A launcher may have named elements of the input's storage by their absolute place."""
    tape = Tape()
    column = tape.op("as_strided.default", tape.input("x"), [4], [16], 3)
    packed = torch.arange(64.0).reshape(4, 16)[:, 2:10]
    o = tape.empty(4)
    tape.launch(scaled_copy, [1], tape.op("clone.default", column), o, 4, 1.0, BLOCK=4)
    assert run(tape.returning(o), {"x": packed})["value"].tolist() == [3.0, 19.0, 35.0, 51.0]


def test_run_mutable_input_comes_back_changed() -> None:
    tape = Tape()
    x, total = tape.input("x"), tape.input("total")
    tape.launch(running_sum, [2], x, total, BLOCK=32)
    reply = run(tape.returning(None), {"x": X, "total": torch.zeros(1)}, mutable=("total",))
    assert reply["mutated"]["total"].item() == X[:32].sum() / 2 + X[32:].sum()


def test_run_reversed_runs_the_last_program_first() -> None:
    tape = Tape()
    x, total = tape.input("x"), tape.input("total")
    tape.launch(running_sum, [2], x, total, BLOCK=32)
    inputs = {"x": X, "total": torch.zeros(1)}
    reply = run(tape.returning(None), inputs, mutable=("total",), reversed=True)
    assert reply["mutated"]["total"].item() == X[32:].sum() / 2 + X[:32].sum()


LOST = torch.tensor([2.0**24, 1.0, -(2.0**24)])
"""In this order the 1 is lost in float32."""


@pytest.mark.parametrize(("backwards", "sum_"), [(False, 0.0), (True, 1.0)])
def test_run_reversed_adds_in_another_order_whoever_comes_first(backwards: bool, sum_: float) -> None:
    tape = Tape()
    tape.launch(added_by_ticket, [3], tape.input("x"), tape.input("ticket"), tape.input("total"), None)
    inputs = {"x": LOST, "ticket": torch.zeros(1, dtype=torch.int32), "total": torch.zeros(1)}
    reply = run(tape.returning(None), inputs, mutable=("ticket", "total"), reversed=backwards)
    assert reply["mutated"]["total"].item() == sum_
    assert reply["mutated"]["ticket"].item() == 3


@pytest.mark.parametrize("backwards", [False, True])
def test_run_finds_what_was_added_before_it_is_read(backwards: bool) -> None:
    tape = Tape()
    seen = tape.empty(3)
    tape.launch(added_by_ticket, [3], tape.input("x"), tape.input("ticket"), tape.input("total"), seen)
    inputs = {"x": LOST, "ticket": torch.zeros(1, dtype=torch.int32), "total": torch.zeros(1)}
    reply = run(tape.returning(seen), inputs, mutable=("ticket", "total"), reversed=backwards)
    assert reply["value"].tolist() == [2.0**24, 2.0**24, 0.0]


def test_run_choice_takes_the_first_candidate_that_compiles() -> None:
    def tape(candidate: int | None) -> torch.Tensor:
        made = Tape()
        x, o = made.input("x"), made.empty(64)
        launches = [made.launching(scaled_copy, [4], x, o, 64, factor, BLOCK=16) for factor in (2.0, 3.0)]
        made.choice(made.launching(doesnt_compile, [1], x, o), *launches)
        return run(made.returning(o), {"x": X}, candidate=candidate)["value"]

    assert torch.equal(tape(None), 2 * X)
    assert torch.equal(tape(2), 3 * X)


def test_run_kernel_that_does_not_compile_is_not_interpreted() -> None:
    tape = Tape()
    o = tape.empty(64)
    tape.launch(doesnt_compile, [1], tape.input("x"), o)
    with pytest.raises(CannotLower, match=r"(?s)test_run.py:\d+.*power of 2"):
        run(tape.returning(o), {"x": X})


def test_run_operation_beyond_the_rules_is_refused() -> None:
    tape = Tape()
    o = tape.op("exp.default", tape.input("x"))
    with pytest.raises(ContractError, match=r"launcher.py:1: torch.exp on `x`"):
        run(tape.returning(o), {"x": X})


def test_run_operation_that_fails_names_the_line() -> None:
    tape = Tape()
    o = tape.op("view.default", tape.input("x"), [65])
    with pytest.raises(ContractError, match=r"launcher.py:1: aten.view.default fails on the real inputs"):
        run(tape.returning(o), {"x": X})


def test_run_view_of_an_input_is_no_result() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64)
    tape.launch(scaled_copy, [4], x, o, 64, 2.0, BLOCK=16)
    with pytest.raises(ContractError, match="view of the input `x`"):
        run(tape.returning(tape.op("view.default", x, [8, 8]), o), {"x": X})


def test_run_result_without_a_kernel_is_refused() -> None:
    tape = Tape()
    o = tape.op("clone.default", tape.input("x"))
    with pytest.raises(ContractError, match="No Triton kernel wrote a result of the call"):
        run(tape.returning(o), {"x": X})
    assert torch.equal(run(tape.returning(o), {"x": X}, rules={"allow": ["moves"], "kernel": False})["value"], X)


def test_run_one_result_of_two_without_a_kernel_is_refused() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64)
    tape.launch(scaled_copy, [4], x, o, 64, 2.0, BLOCK=16)
    with pytest.raises(ContractError, match="No Triton kernel wrote a result of the call"):
        run(tape.returning(o, tape.op("clone.default", x)), {"x": X})


def test_run_missing_input_is_refused() -> None:
    tape = Tape()
    with pytest.raises(ContractError, match="has a tensor `x`; this call has none"):
        run(tape.returning(copied(tape)), {"y": X})


def test_run_malformed_tape_is_refused() -> None:
    tape = Tape()
    broken = tape.returning(copied(tape))
    broken["steps"][1]["grid"] = [4, 1]
    with pytest.raises(InvalidTape, match="grid"):
        run(broken, {"x": X})


def test_run_leaves_nothing_for_the_next_tape() -> None:
    shared = executor()
    first, second = Tape(), Tape()
    assert torch.equal(run(first.returning(copied(first)), {"x": X}, within=shared)["value"], 2 * X)
    o = second.empty(64)
    second.launch(half_written, [1], second.input("x"), o)
    value = run(second.returning(o), {"x": X + 1}, within=shared)["value"]
    assert torch.equal(value[:32], X[:32] + 1)
    assert bool(value[32:].isnan().all())


@pytest.mark.parametrize(
    "x",
    [torch.tensor(3.0).expand(64), torch.zeros(2, 0, 4), torch.tensor(5.0), torch.arange(69.0)[5:]],
    ids=["expanded", "empty", "scalar", "offset"],
)
def test_run_input_of_any_layout(x: torch.Tensor) -> None:
    tape = Tape()
    given, o = tape.input("x"), tape.empty(64)
    tape.launch(scaled_copy, [4], tape.op("clone.default", given), o, x.numel(), 2.0, BLOCK=16)
    value = run(tape.returning(o), {"x": x})["value"]
    assert torch.equal(value[: x.numel()], 2 * x.reshape(-1))


def test_run_descriptor_that_no_gpu_takes_is_refused() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64)
    sizes = {"shape": [60], "strides": [1], "block_shape": [16], "padding": "zero"}
    tape.launch(first_tile, [1], {"descriptor": {"base": tape.op("slice.Tensor", x, 0, 1, 61), **sizes}}, o)
    with pytest.raises(ContractError, match="tensor descriptor that no GPU takes: base must be 16"):
        run(tape.returning(o), {"x": X})

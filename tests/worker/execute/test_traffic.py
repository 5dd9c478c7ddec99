"""What a traced run reports: bytes by tensor under the launcher's names, products, operations beside launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from running import Tape, run

from grader.worker.tape import JSON
from grader.worker.traffic_model import LaunchRecord, Traffic

A = torch.randn(32, 32).half()
TILE = 32 * 32


@triton.jit
def tile_at(base, COLUMNS: tl.constexpr):
    i = tl.arange(0, 32)
    return base + i[:, None] * COLUMNS + i[None, :]


@triton.jit
def product(a, b, o, lse, DO: tl.constexpr, COLUMNS: tl.constexpr = 32):
    x = tl.load(tile_at(a, COLUMNS))
    total = tl.zeros([32, 32], tl.float32)
    for start in range(2):
        if start < DO:
            total = tl.dot(x, tl.load(tile_at(b, COLUMNS)), total)
    tl.store(tile_at(o, COLUMNS), total)
    tl.store(lse + tl.arange(0, 64), tl.full([64], 1.0, tl.float32))


@triton.jit
def halves(x, o):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.store(o + i, tl.load(x + i, mask=i < 24, other=0.0), mask=i < 24)


@triton.jit
def add_up(x, total):
    i = tl.arange(0, 16)
    tl.atomic_add(total + i * 0, tl.load(x + i), mask=i < 10)


def traced(tape: JSON, inputs: dict[str, torch.Tensor], **options: Any) -> Traffic:
    return Traffic.from_wire(run(tape, inputs, trace=True, **options)["traffic"])


def multiplied(do: int) -> Traffic:
    tape = Tape()
    o, lse = tape.empty(32, 32), tape.empty(64)
    tape.launch(product, [1], tape.input("a"), tape.input("b"), o, lse, DO=do)
    rows = tape.op("slice.Tensor", lse, 0, 0, 48)
    return traced(tape.returning(o, rows), {"a": A, "b": A})


def test_traffic_of_a_copy_that_no_kernel_touches() -> None:
    tape = Tape()
    a, o, lse = tape.input("a"), tape.empty(32, 32), tape.empty(64)
    tape.op("clone.default", a)
    tape.launch(product, [1], a, tape.input("b"), o, lse, DO=2)
    traffic = traced(tape.returning(o, lse), {"a": A, "b": A})
    assert (traffic.loaded("a"), traffic.scratch_bytes) == (2 * TILE, 0)


def test_traffic_bytes_by_tensor_and_product() -> None:
    traffic = multiplied(2)
    assert (traffic.loaded("a"), traffic.loaded("b"), traffic.stored("out:0")) == (2 * TILE, 4 * TILE, 4 * TILE)
    assert traffic.dot_flops == 2 * 2 * 32**3
    (record,) = traffic.records
    assert (record.kernel, record.grid, record.programs) == ("product", (1, 1, 1), 1)
    assert record.constexprs == {"DO": 2}
    assert (record.loaded_bytes, record.stored_bytes) == (6 * TILE, 4 * TILE + 64 * 4)
    assert traffic.scratch_bytes == 16 * 4, "the memory of the LSE has room for 64 rows, 48 of which are returned"
    assert (record.tensors["a"].readers, record.tensors["a"].most) == (1, 2 * TILE)


@pytest.mark.parametrize("do", [0, 1])
def test_traffic_product_that_does_not_run_does_not_count(do: int) -> None:
    assert multiplied(do).dot_flops == do * 2 * 32**3


def test_traffic_padding_of_a_result_is_told_apart() -> None:
    lse = multiplied(1).tensors["out:1"]
    assert (lse.stored_bytes, lse.padding_bytes) == (48 * 4, 16 * 4)


def test_traffic_two_results_in_one_storage_are_told_apart() -> None:
    tape = Tape()
    both = tape.empty(32)
    tape.launch(halves, [2], tape.input("x"), both)
    first, second = (tape.op("slice.Tensor", both, 0, start, start + 12) for start in (0, 12))
    traffic = traced(tape.returning(first, second), {"x": torch.ones(32)})
    assert [traffic.tensors[f"out:{n}"].stored_bytes for n in range(2)] == [48, 48]
    assert traffic.tensors["out:0"].padding_bytes == 0


def test_traffic_masked_lanes_and_programs() -> None:
    tape = Tape()
    o = tape.empty(32)
    tape.launch(halves, [2], tape.input("x"), o)
    traffic = traced(tape.returning(o), {"x": torch.ones(32)})
    assert (traffic.loaded("x"), traffic.stored("out:0"), traffic.records[0].programs) == (96, 96, 2)


def test_traffic_of_a_copy_of_two_inputs_is_each_ones() -> None:
    tape = Tape()
    both = tape.op("stack.default", [tape.input("x"), tape.input("y")])
    o = tape.empty(32)
    tape.launch(halves, [2], both, o)
    traffic = traced(tape.returning(o), {"x": torch.ones(16), "y": torch.ones(16)})
    assert {name: entry.loaded_bytes for name, entry in traffic.tensors.items() if entry.loaded_bytes} == {
        "copy:x and y": 96
    }
    assert (traffic.loaded("x"), traffic.loaded("y"), traffic.loaded("x", "y"), traffic.loaded("z")) == (96, 96, 96, 0)


def test_traffic_names_copies_scratch_and_what_is_only_loaded() -> None:
    tape = Tape()
    x = tape.op("_to_copy.default", tape.input("x"), dtype={"dtype": "float32"})
    padded = tape.empty(32)
    tape.op("copy_.default", tape.op("slice.Tensor", padded, 0, 0, 24), {"t": 0})
    zeros = tape.op("zeros.default", [32], dtype={"dtype": "float32"}, device={"device": "cuda:0"})
    scratch, o = tape.empty(32), tape.empty(32)
    for source, target in ((x, scratch), (padded, scratch), (zeros, scratch), (scratch, o)):
        tape.launch(halves, [2], source, target)
    traffic = traced(tape.returning(o), {"x": torch.ones(24, dtype=torch.float16)})
    loaded = {name: entry.loaded_bytes for name, entry in traffic.tensors.items() if entry.loaded_bytes}
    assert loaded == {"copy:x": 192, "tmp:0": 96, "scratch:0": 96}
    assert traffic.loaded("x") == 192
    assert traffic.stored("scratch:0") == 288
    assert traffic.scratch_bytes == 2 * 128
    assert traffic.operations == {"aten._to_copy.default": 1, "aten.copy_.default": 1, "aten.zeros.default": 1}


def test_traffic_memory_that_operations_make_is_scratch_too() -> None:
    tape = Tape()
    o = tape.empty(32)
    tape.launch(halves, [2], tape.input("x"), o)
    pairs = tape.op("mul.Tensor", tape.op("unsqueeze.default", o, 1), o)
    returned = tape.op("sum.dim_IntList", pairs, [1])
    traffic = traced(tape.returning(returned), {"x": torch.ones(64)})
    assert traffic.scratch_bytes == 32 * 32 * 4


def test_traffic_atomics_load_and_store() -> None:
    tape = Tape()
    total = tape.op("zeros.default", [1], dtype={"dtype": "float32"}, device={"device": "cuda:0"})
    tape.launch(add_up, [1], tape.input("x"), total)
    reply = run(tape.returning(total), {"x": torch.ones(16)}, trace=True)
    traffic = Traffic.from_wire(reply["traffic"])
    assert reply["value"].item() == 10
    assert (traffic.loaded("out:0"), traffic.stored("out:0")) == (40, 40)


def test_traffic_gradients_are_no_scratch() -> None:
    tape = Tape()
    x, cotangent = tape.input("x"), tape.cotangent()
    o, gradient = tape.empty(32), tape.empty(32)
    tape.launch(halves, [2], x, o)
    tape.launch(halves, [2], cotangent, gradient)
    inputs = {"x": torch.ones(32, requires_grad=True)}
    traffic = traced(tape.returning(o, gradients={"x": gradient}), inputs, cotangents=[torch.ones(32)])
    assert traffic.stored("grad:x") == 96
    assert traffic.loaded("cotangents[0]") == 96
    assert traffic.scratch_bytes == 0


@pytest.mark.parametrize(
    "change",
    [
        {"launches": 2},
        {"loaded_bytes": -1},
        {"loaded_bytes": 1.5},
        {"tensors": {"q": {}}},
        {"operations": {"aten.sum.default": "2"}},
        {"records": [{}]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_traffic_malformed_table_is_refused(change: dict[str, Any]) -> None:
    record = LaunchRecord("kernel", dot_flops=8)
    table = Traffic(launches=1, records=[record], operations={"aten.sum.default": 2}).to_wire()
    assert Traffic.from_wire(table).dot_flops == 8
    with pytest.raises((ValueError, TypeError, KeyError), match=r"."):
        Traffic.from_wire({**table, **change})

"""Accesses outside of a launch's tensors are refused before they're made, with tensor, index and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from running import Tape, run
from triton.runtime import interpreter

from grader.worker.execute.bounds import Bounds, OutOfBounds, region_of
from grader.worker.execute.memory import Memory
from grader.worker.guards import ContractError

ROWS = torch.randn(6, 16)


@triton.jit
def load_rows(at, rows, ROWS: tl.constexpr):
    return tl.load(at + rows[:, None] * 16 + tl.arange(0, 16)[None, :])


@triton.jit
def copy_rows(x, o, n, shift, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS) + shift
    held = load_rows(x, rows, ROWS)
    tl.store(o + rows[:, None] * 16 + tl.arange(0, 16)[None, :], held, mask=rows[:, None] < n)


@triton.jit
def masked_rows(x, o, n, ROWS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    at = rows[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(o + at, tl.load(x + at, mask=rows[:, None] < n, other=1.0), mask=rows[:, None] < n)


@triton.jit
def strided_rows(x, o, stride, COLUMNS: tl.constexpr):
    i = tl.arange(0, 4)[:, None]
    j = tl.arange(0, COLUMNS)[None, :]
    tl.store(o + i * 16 + j, tl.load(x + i * stride + j))


@triton.jit
def store_past_end(x, o, n):
    tl.store(o + n, tl.load(x))


@triton.jit
def add_past_end(x, o, n):
    tl.atomic_add(o + tl.arange(0, 2) + n, 1.0)


@triton.jit
def store_to_input(x, o):
    tl.store(x, tl.load(x))


@triton.jit
def reach_from_one_to_the_other(x, y, o, apart):
    tl.store(o, tl.load(x + apart))


@triton.jit
def shifted_mask(x, o, far):
    """Lanes 2 to 6 lie far behind `o`; a mask of bytes taken for indices would name lanes 0 and 1 alone."""
    lane = tl.arange(0, 8)
    live = ((lane >= 2) & (lane < 7)) >> (lane < 0)
    tl.store(tl.where(lane < 2, o, o + far) + lane, tl.full((8,), 1.0, tl.float32), mask=live)


@triton.jit
def either_tensor(x, y, o):
    i = tl.arange(0, 16)
    tl.store(o + i, tl.load(tl.where(i < 8, x + i, y + i)))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_bounds_load_past_the_end_names_tensor_index_and_line() -> None:
    tape = Tape()
    o = tape.empty(6, 16)
    tape.launch(copy_rows, [2], tape.input("x"), o, 6, 0, ROWS=4)
    with pytest.raises(OutOfBounds) as caught:
        run(tape.returning(o), {"x": ROWS})
    fault = caught.value.fault
    assert (fault.kernel, fault.action, fault.program) == ("copy_rows", "loads", (1, 0, 0))
    assert (fault.tensor, fault.side, fault.distance) == ("x", "after", 0)
    assert (fault.index, fault.shape) == ((6, 0), (6, 16))
    assert fault.where == f"test_bounds.py:{line_of('return tl.load(at + rows[:, None]')}"
    assert fault.to_wire()["index"] == [6, 0]
    assert "loads past the end of `x`: index (6, 0) of shape (6, 16)" in str(caught.value)


def test_bounds_load_before_the_start() -> None:
    tape = Tape()
    o = tape.empty(6, 16)
    tape.launch(copy_rows, [1], tape.input("x"), o, 6, -1, ROWS=4)
    with pytest.raises(OutOfBounds) as caught:
        run(tape.returning(o), {"x": ROWS})
    fault = caught.value.fault
    assert (fault.side, fault.distance, fault.index) == ("before", 64, (-1, 0))


def test_bounds_lanes_that_are_masked_off_do_not_count() -> None:
    tape = Tape()
    o = tape.empty(6, 16)
    tape.launch(masked_rows, [1], tape.input("x"), o, 6, ROWS=8)
    assert torch.equal(run(tape.returning(o), {"x": ROWS})["value"], ROWS)


def test_bounds_mask_by_arithmetic_selects_lanes() -> None:
    tape = Tape()
    o = tape.empty(6, 16)
    tape.launch(shifted_mask, [1], tape.input("x"), o, 1024)
    with pytest.raises(OutOfBounds) as caught:
        run(tape.returning(o), {"x": ROWS})
    assert (caught.value.fault.action, caught.value.fault.side) == ("stores", "after")


def test_bounds_gap_between_the_rows_of_a_strided_input() -> None:
    packed = torch.randn(5, 32)[:, :12]
    tape = Tape()
    o = tape.empty(4, 16)
    tape.launch(strided_rows, [1], tape.input("x"), o, 32, COLUMNS=16)
    with pytest.raises(OutOfBounds) as caught:
        run(tape.returning(o), {"x": packed})
    fault = caught.value.fault
    assert (fault.side, fault.index, fault.shape) == ("between", (0, 12), (5, 12))


def test_bounds_elements_of_a_strided_input_may_be_loaded() -> None:
    packed = torch.randn(4, 32)[:, 8:24]
    tape = Tape()
    o = tape.empty(4, 16)
    tape.launch(strided_rows, [1], tape.input("x"), o, 32, COLUMNS=16)
    assert torch.equal(run(tape.returning(o), {"x": packed})["value"], packed)


@pytest.mark.parametrize(("kernel", "action"), [(store_past_end, "stores"), (add_past_end, "updates")])
def test_bounds_store_past_the_end_of_a_buffer_is_not_made(
    kernel: object, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    native = interpreter._interpreter
    for name in ("store", "atomic_rmw"):
        operation = getattr(native, name)
        monkeypatch.setattr(native, name, lambda *args, do=operation, n=name: made.append(n) or do(*args))
    tape = Tape()
    o = tape.empty(16, where="launcher.py:77")
    tape.launch(kernel, [1], tape.input("x"), o, 16)
    with pytest.raises(OutOfBounds, match=r"the tensor made at launcher.py:77`") as caught:
        run(tape.returning(o), {"x": ROWS})
    assert caught.value.fault.action == action
    assert made == []


def test_bounds_one_input_is_not_reached_from_another() -> None:
    """Inputs lie far apart, whatever a kernel takes for the distance between them."""
    tape = Tape()
    o = tape.empty(1)
    tape.launch(reach_from_one_to_the_other, [1], tape.input("x"), tape.input("y"), o, 96)
    with pytest.raises(OutOfBounds, match="past the end of `x`"):
        run(tape.returning(o), {"x": ROWS, "y": ROWS})


def test_bounds_buffer_behind_a_view_may_be_accessed() -> None:
    tape = Tape()
    padded = tape.op("constant_pad_nd.default", tape.input("x"), [0, 0, 0, 2], 0.0)
    inner = tape.op("slice.Tensor", padded, 0, 0, 6)
    o = tape.empty(8, 16)
    tape.launch(copy_rows, [2], inner, o, 8, 0, ROWS=4)
    assert torch.equal(run(tape.returning(o), {"x": ROWS})["value"][:6], ROWS)


def test_bounds_one_load_may_reach_two_tensors() -> None:
    tape = Tape()
    o = tape.empty(16)
    tape.launch(either_tensor, [1], tape.input("x"), tape.input("y"), o)
    value = run(tape.returning(o), {"x": ROWS, "y": -ROWS})["value"]
    assert torch.equal(value, torch.cat([ROWS[0, :8], -ROWS[0, 8:]]))


def test_bounds_store_to_an_input_is_refused_at_its_line() -> None:
    tape = Tape()
    o = tape.empty(16)
    tape.launch(store_to_input, [1], tape.input("x"), o)
    line = line_of("tl.store(x, tl.load(x))")
    with pytest.raises(ContractError, match=rf"test_bounds.py:{line}: store_to_input stores to its input `x`"):
        run(tape.returning(o), {"x": ROWS})
    assert run(tape.returning(None), {"x": ROWS}, mutable=("x",))["mutated"]["x"].shape == (6, 16)


def test_touch_addresses_at_the_end_of_all_memory_are_outside() -> None:
    """An address and a width whose sum comes round to 0."""
    memory = Memory("cpu")
    first, second = (memory.allocate((16,), (1,), torch.float32) for _ in range(2))
    regions = [region_of(storage, "x") for tensor in (first, second) if (storage := memory.of(tensor))]
    bounds = Bounds("kernel", regions, lambda file, line: "")
    last = np.uint64(2**64 - 4)
    for address in (last, last + np.uint64(2)):
        live = np.array([first.data_ptr(), address], np.uint64)
        with pytest.raises(OutOfBounds):
            bounds.touch(live, 4, loads=True, stores=False)
    both = np.array([first.data_ptr(), second.data_ptr() + 60], np.uint64)
    assert len(bounds.touch(both, 4, loads=True, stores=False)) == 2
    with pytest.raises(OutOfBounds):
        bounds.touch(both + np.uint64(1), 4, loads=True, stores=False)

"""The same tapes with compiled kernels on a GPU: results, guards around every tensor, candidates that don't fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from running import Tape, run

from grader.worker.guards import ContractError
from grader.worker.traffic_model import Traffic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
X = torch.randn(64, 64)


@triton.jit
def scaled_copy(x, o, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n, other=0.0) * factor, mask=i < n)


@triton.jit
def copy_with_room(x, o, KEPT: tl.constexpr):
    """The more is kept, the more shared memory a program takes."""
    i = tl.arange(0, 64)
    j = tl.arange(0, KEPT)
    tile = tl.load(x + i[:, None] * 0 + j[None, :] % 64).to(tl.float16)
    held = tl.dot(tile, tl.trans(tile))
    tl.store(o + i[:, None] * 64 + i[None, :], held * 0 + tl.load(x + i[:, None] * 64 + i[None, :]))


def copied(n: int, factor: float = 2.0, *, before: int = 0) -> Any:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64, 64, where="launcher.py:7")
    target = tape.op("slice.Tensor", o, 0, before, 64)
    tape.launch(scaled_copy, [-(-n // 256)], x, target, n, factor, BLOCK=256)
    return tape.returning(o)


def test_gpu_run_returns_what_the_kernel_stored() -> None:
    reply = run(copied(4096), {"x": X}, device="cuda", trace=True)
    assert torch.equal(reply["value"], 2 * X)
    traffic = Traffic.from_wire(reply["traffic"])
    assert (traffic.kernels, traffic.grids, traffic.loaded_bytes) == (["scaled_copy"], [(16, 1, 1)], 0)


def test_gpu_run_unwritten_elements_are_nan() -> None:
    value = run(copied(1024), {"x": X}, device="cuda")["value"]
    assert torch.equal(value[:16], 2 * X[:16])
    assert bool(value[16:].isnan().all())


def test_gpu_run_store_past_the_end_is_found() -> None:
    with pytest.raises(ContractError, match=r"outside the tensor made at launcher\.py:7"):
        run(copied(4096, before=2), {"x": X}, device="cuda")


def test_gpu_run_load_past_the_end_is_nan() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(65, 64)
    tape.launch(scaled_copy, [17], x, o, 65 * 64, 1.0, BLOCK=256)
    value = run(tape.returning(o), {"x": X}, device="cuda")["value"]
    assert torch.equal(value[:64], X)
    assert bool(value[64:].isnan().all())


def test_gpu_run_store_to_an_input_is_found() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64, 64)
    tape.launch(scaled_copy, [16], x, o, 4096, 2.0, BLOCK=256)
    tape.launch(scaled_copy, [16], o, x, 4096, 2.0, BLOCK=256)
    with pytest.raises(ContractError, match="changed its input `x`"):
        run(tape.returning(o), {"x": X}, device="cuda")


def test_gpu_run_takes_the_first_candidate_that_fits() -> None:
    tape = Tape()
    x, o = tape.input("x"), tape.empty(64, 64)
    tape.choice(*(tape.launching(copy_with_room, [1], x, o, KEPT=kept) for kept in (4096, 32)))
    assert torch.equal(run(tape.returning(o), {"x": X}, device="cuda")["value"], X)

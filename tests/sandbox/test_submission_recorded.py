"""Calls whose launchers are recorded and whose kernels an executor runs: exact results, traffic, gradients, faults."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from small_submission import card, small_submission

pytest.importorskip("triton")

from grader.sandbox.failures import ContractViolated, NotCompilable, OutOfBounds, SubmissionRaised
from grader.sandbox.submission import Submission
from grader.worker.wire import Tensor

SOURCE = """
import hashlib
import torch, triton
import triton.language as tl

@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(out + index, tl.load(x + index, mask=mask) + tl.load(y + index, mask=mask), mask=mask)

def add(first, second):
    out = torch.empty_like(first)
    add_kernel[(triton.cdiv(first.numel(), 64),)](first, second, out, first.numel(), BLOCK=64)
    return out
@triton.jit
def sum_kernel(x, out):
    tl.atomic_add(out, tl.load(x + tl.program_id(0)))
def total(x):
    out = torch.zeros(1, dtype=x.dtype, device=x.device)
    sum_kernel[(x.numel(),)](x, out)
    return out
def with_scratch(x):
    scratch, out = torch.empty(1000, dtype=x.dtype, device=x.device), torch.empty_like(x)
    add_kernel[(1,)](x, x, scratch, x.numel(), BLOCK=64)
    add_kernel[(1,)](scratch, scratch, out, x.numel(), BLOCK=64)
    return out
def broken_kernel(x): add_kernel[(1,)](x, x, 3, 4, BLOCK=64)
def read_past_the_end(x):
    out = torch.empty(64, dtype=x.dtype, device=x.device)
    add_kernel[(1,)](x, x, out, 64, BLOCK=64)
    return out
def half_written(x):
    out = torch.empty_like(x)
    add_kernel[(1,)](x, x, out, 5, BLOCK=64)
    return out
def add_in_place(x, y): add_kernel[(1,)](x, y, x, x.numel(), BLOCK=64)
def view(x): return x[1:]
def raises(x): raise ValueError("mine")
def multiplies(x): return add(x, x) @ x.T
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return add(x, x)
    @staticmethod
    def backward(ctx, grad): return add(grad.contiguous(), grad.contiguous())
def double(x): return Double.apply(x)
def sms(x):
    count = torch.cuda.get_device_properties(x.device).multi_processor_count
    out = torch.full_like(x, count)
    add_kernel[(1,)](out, x, out, x.numel(), BLOCK=64)
    return out

def memory(length, digest):
    # Whether bytes of that digest stand in this process, behind the mark that they begin with.
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as mem:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(part, 16) for part in span.split("-"))
            if not rights.startswith("rw") or "[v" in line: continue
            try:
                mem.seek(start)
                found = mem.read(end - start)
            except OSError: continue
            at = found.find(MARK)
            while at >= 0:
                if hashlib.sha256(found[at : at + length]).hexdigest() == digest: return True
                at = found.find(MARK, at + 1)
    return False
MARK = bytes.fromhex("12345a5a")
def spy(x, digest, own):
    kept = torch.frombuffer(bytearray(bytes.fromhex(own)), dtype=torch.uint8)
    if not memory(256, hashlib.sha256(bytes.fromhex(own)).hexdigest()): raise ValueError("can't read memory")
    if memory(256, digest): raise ValueError("the values are in memory")
    return add(x, x)
"""
XY = {"parameters": ["x", "y"], "allow": []}
JUST_X = {"parameters": ["x"], "allow": []}
FUNCTIONS = ("total", "with_scratch", "broken_kernel", "read_past_the_end", "half_written", "raises", "sms")
RECORD: dict[str, Any] = {
    **dict.fromkeys((*FUNCTIONS, "multiplies", "double"), JUST_X),
    "view": {**JUST_X, "kernel": False},
    "add": XY,
    "add_in_place": XY,
    "spy": {"parameters": ["x", "digest", "own"], "allow": []},
}
STORE = next(n for n, line in enumerate(SOURCE.splitlines(), 1) if line.startswith("    tl.store"))
X = np.arange(63, dtype=np.float32).reshape(7, 9) + 1


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("recorded")
    with small_submission(folder, SOURCE, runtime="triton", record=RECORD, memory_mib=3000) as found:
        yield found


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.int64, ml_dtypes.bfloat16])
def test_call_kernel_result_of_any_dtype_is_right(submission: Submission, dtype: Any) -> None:
    x = X.astype(dtype)
    result = submission.call("add", Tensor(x), Tensor(x))
    assert type(result) is Tensor
    assert (result.dtype, result.shape, result.device) == (np.dtype(dtype).name, (7, 9), "cpu")
    assert np.array_equal(result.data, x + x)


def test_call_device_queries_are_the_profiles(submission: Submission) -> None:
    assert np.array_equal(submission.call("sms", Tensor(X)).data, X + (card().sms or 0))


def test_interpreted_call_reversed_programs_add_up_in_another_order(submission: Submission) -> None:
    x = Tensor(np.array([1e8, 1.0, -1e8], np.float32))
    assert submission.interpreted_call("total", x).data == [0.0]
    assert submission.interpreted_call("total", x, reversed_programs=True).data == [1.0]
    assert submission.interpreted_call("total", x).data == [0.0]


def test_traced_call_counts_by_the_labs_parameters(submission: Submission) -> None:
    """The submission calls them `first` and `second`."""
    traced = submission.traced_call("add", Tensor(X), Tensor(X))
    assert np.array_equal(traced.value.data, X * 2)
    assert (traced.traffic.loaded("x"), traced.traffic.loaded("y"), traced.traffic.stored("out:0")) == (252, 252, 252)
    assert set(traced.traffic.tensors) == {"x", "y", "out:0"}


def test_traced_call_scratch_is_what_is_neither_argument_nor_result(submission: Submission) -> None:
    assert submission.traced_call("with_scratch", Tensor(X)).traffic.scratch_bytes == 4000
    assert submission.traced_call("add", Tensor(X), Tensor(X)).traffic.scratch_bytes == 0


def test_traced_call_with_a_mutable_argument_returns_what_it_holds(submission: Submission) -> None:
    traced = submission.traced_call("add_in_place", Tensor(X), Tensor(X), mutable=("x",))
    assert np.array_equal(traced.arguments["x"].data, X * 2)
    assert (traced.traffic.loaded("x"), traced.traffic.stored("x"), traced.traffic.stored("y")) == (252, 252, 0)
    with pytest.raises(ContractViolated, match=rf"answer\.py:{STORE}: add_kernel stores to its input `x`"):
        submission.traced_call("add_in_place", Tensor(X), Tensor(X))


def test_gradient_call_runs_the_recorded_backward(submission: Submission) -> None:
    weight = Tensor(np.full_like(X, 3))
    found = submission.gradient_call("double", Tensor(X, requires_grad=True), cotangents=[weight])
    assert np.array_equal(found.value.data, 2 * X)
    assert found.gradients["x"] is not None
    assert np.array_equal(found.gradients["x"].data, np.full_like(X, 6))


def test_call_result_that_no_program_wrote_shows(submission: Submission) -> None:
    result = submission.call("half_written", Tensor(X)).data.reshape(-1)
    assert np.array_equal(result[:5], 2 * X.reshape(-1)[:5])
    assert np.isnan(result[5:]).all()


def test_call_kernel_that_reads_past_the_end_is_stopped(submission: Submission) -> None:
    with pytest.raises(OutOfBounds, match=rf"add_kernel at answer\.py:{STORE} loads past the end of `x`") as stopped:
        submission.call("read_past_the_end", Tensor(np.ones(40, np.float32)))
    assert stopped.value.fault["where"] == f"answer.py:{STORE}"
    assert np.array_equal(submission.call("add", Tensor(X), Tensor(X)).data, 2 * X)


def test_call_kernel_that_cannot_compile_is_named_with_its_line(submission: Submission) -> None:
    with pytest.raises(NotCompilable, match=rf"answer\.py:{STORE}: add_kernel does not compile: Unsupported ptr"):
        submission.call("broken_kernel", Tensor(X))


def test_call_that_returns_its_input_breaks_the_contract(submission: Submission) -> None:
    with pytest.raises(ContractViolated, match="is a view of the input `x`"):
        submission.call("view", Tensor(X))


def test_call_launcher_that_computes_is_refused_at_its_line(submission: Submission) -> None:
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if text.startswith("def multiplies"))
    with pytest.raises(ContractViolated, match=rf"answer\.py:{line}"):
        submission.call("multiplies", Tensor(X))


def test_call_exception_of_the_launcher_is_told(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="ValueError: mine"):
        submission.call("raises", Tensor(X))


def test_record_values_never_reach_the_recorder(submission: Submission) -> None:
    """The launcher reads all of its process's memory: what it holds itself is there, the input's values aren't."""
    random = np.random.default_rng(8)

    def marked() -> bytes:
        return bytes.fromhex("12345a5a") + random.bytes(252)

    values, own = marked(), marked()
    x = Tensor(np.frombuffer(values, np.uint8).copy())
    found = submission.call("spy", x, hashlib.sha256(values).hexdigest(), own.hex())
    assert np.array_equal(found.data, x.data + x.data)


def test_traced_call_interpreted_on_a_gpu_run_counts_on_the_cpu(tmp_path: Path) -> None:
    """Where the run is on a GPU, bytes are still counted: in the interpreter, on CPU copies of the same tensors."""
    x = np.arange(100, dtype=np.float32)
    with small_submission(tmp_path, SOURCE, runtime="triton", device="cuda", record=RECORD) as submission:
        given = Tensor(x, device="cuda")
        traced = submission.traced_call("add", given, given, interpreted=True)
        assert traced.traffic.loaded("x") == x.nbytes
        np.testing.assert_array_equal(traced.value.data, 2 * x)
        assert traced.value.device == "cpu"

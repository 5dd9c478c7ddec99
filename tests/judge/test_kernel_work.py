"""Answers that aren't a kernel's are refused; a kernel's own answer, and what it needs around it, isn't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_submission import small_submission

pytest.importorskip("triton")

from grader.judge.kernel_work import call_kernel, work_beside
from grader.sandbox.failures import ContractViolated, SubmissionRaised
from grader.sandbox.outcomes import Traced
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor
from grader.worker.traffic_model import Traffic

SOURCE = """
import ctypes, torch, triton
import numpy as np
import triton.language as tl

@triton.jit
def double_kernel(x, out, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, 2 * tl.load(x + index, mask=index < count), mask=index < count)

@triton.jit
def copy_kernel(x, out, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, tl.load(x + index, mask=index < count), mask=index < count)

HELD = [None, None]

def kernel(x, out=None):
    out = torch.empty_like(x) if out is None else out
    double_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out
def zeros(x): return kernel(0 * x)
def padded(x): return kernel(torch.nn.functional.pad(x, (0, 6)))[:x.numel()].clone()
def joined(x): return kernel(torch.cat([x[:20], x[20:]]))
def staged(x):
    buffer = torch.zeros(64)
    buffer[:x.numel()] = x
    return kernel(buffer.double().float())[:x.numel()].clone()
def looks_at_its_input(x):
    if not torch.isfinite(x).all(): raise ValueError("not finite")
    return kernel(x)
def twice_over(x): return kernel(kernel(x) / 2)
def checks_its_result(x):
    out = torch.zeros_like(x)
    kernel(x, out)
    if not out.any(): raise RuntimeError("nothing was written")
    return out
def pairs(x):
    held = torch.empty_like(x)
    copy_kernel[(1,)](x, held, x.numel(), BLOCK=64)
    table = held[:, None] * torch.ones(400)
    return table.sum(1) / 200
def merges(x):
    parts = torch.zeros(8, x.numel())
    for part in parts:
        kernel(x, part)
    weights = torch.exp(parts * 0)
    return (weights * parts).sum(0) / weights.sum(0)
@torch.library.custom_op("own::double", mutates_args=())
def operation(x: torch.Tensor) -> torch.Tensor:
    held = torch.empty_like(x)
    copy_kernel[(1,)](x.contiguous().clone(), held, x.numel(), BLOCK=64)
    return kernel((held * 0.5).double().float()) * 2
def own_operation(x): return operation(x.view(5, 10).t().contiguous()).t().reshape(-1)
@torch.library.custom_op("own::whole", mutates_args=())
def makes_it_whole(x: torch.Tensor) -> torch.Tensor: return kernel(x.contiguous())
def strided_operation(x): return makes_it_whole(x.view(5, 10).t()).t().reshape(-1)
@torch.inference_mode()
def inferring(x):
    held = kernel(x.view(5, 10).t().contiguous())
    return (held.to(torch.float64) * 1).to(torch.float32).t().reshape(-1)
@torch.inference_mode()
def library_inferring(x): return torch.nn.functional.linear(held_copy(x)[None], 2 * torch.eye(x.numel()))[0]
def reads_a_number(x):
    held = kernel(x)
    if held.abs().max().item() == 0 or float(held[0]) < 0: raise ValueError("nothing was written")
    return kernel(held / 2)
def fills_by_parts(x):
    parts = torch.full((4, x.numel()), -1.0)
    for part in parts:
        kernel(x, part)
        part[0] = 2 * x[0].item() if part[0] < 0 else part[0]
    return parts.mean(0)
@triton.jit
def counting_kernel(x, out, places, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    place = tl.load(places + index, mask=index < count)
    tl.store(out + place, 2 * tl.load(x + index, mask=index < count), mask=index < count)
    tl.store(places + index, 0 * place + count, mask=index < count)
def reads_places(x):
    places, out = torch.arange(x.numel()), torch.empty_like(x)
    counting_kernel[(1,)](x, out, places, x.numel(), BLOCK=64)
    read = [places.tolist()[0], int(places.numpy()[1]), int(np.asarray(places)[2]), places[3].item()]
    if min(read) != max(read): raise ValueError(str(read))
    return out[: read[0]]
def reuses_memory(x):
    out = kernel(x)
    return kernel(out.mul_(0.5), out)
def held_copy(x):
    held = torch.empty_like(x)
    copy_kernel[(1,)](x, held, x.numel(), BLOCK=64)
    return held
@torch.library.custom_op("own::library", mutates_args=())
def hidden_library(x: torch.Tensor) -> torch.Tensor: return torch.eye(x.numel()) @ (x + x)
def library_in_an_operation(x): return hidden_library(held_copy(x))
def convolution(x): return torch.conv1d(held_copy(x).view(1, 1, -1), torch.full((1, 1, 1), 2.0)).view(-1)
def in_place(x):
    zeros = torch.zeros(1, x.numel(), 1)
    return zeros.baddbmm_(2 * torch.eye(x.numel())[None], held_copy(x)[None, :, None]).view(-1)
def whole_numbers(x):
    table = (held_copy(x).long()[:, None] * torch.ones(400, dtype=torch.long)).sum(1)
    return table.float() / 200
def one_by_one(x):
    held = held_copy(x)
    return torch.tensor([held[i].item() + held[i].item() for i in range(x.numel())])
def copy_by_pointer(x):
    held = held_copy(x)
    memory = (ctypes.c_float * x.numel()).from_address(held.data_ptr())
    return torch.tensor([2 * value for value in memory])
def copy_unseen(x):
    held = held_copy(x)
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        return held + held
def reads_all_as_places(x):
    held = torch.zeros(x.numel() * 20, dtype=torch.int32)
    copy_kernel[(1,)](x, held.view(torch.float32), x.numel(), BLOCK=64)
    return torch.from_numpy(held.numpy().view(np.float32)[: x.numel()] * 2)
def memory_of_numpy(x):
    held = np.zeros(x.numel(), np.float32)
    copy_kernel[(1,)](x, torch.from_numpy(held), x.numel(), BLOCK=64)
    return torch.from_numpy(held * 2)
def library(x): return kernel((torch.eye(x.numel()) @ x[:, None])[:, 0])
def no_kernel(x): return x * 2
def ghost(x):
    kernel(x)
    return x + x
def numpy_work(x): return kernel(torch.from_numpy(x.numpy() * 1))
def fallback(x):
    try: double_kernel[(1,)](x, None, "not a number", BLOCK=64)
    except Exception: return torch.matmul(torch.eye(x.numel()) * 2, x)
def copied(x):
    out = torch.empty_like(x)
    copy_kernel[(1,)](x + x, out, x.numel(), BLOCK=64)
    return out
def unseen(x):
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        out, answer = torch.empty_like(x), x + x
    copy_kernel[(1,)](answer, out, x.numel(), BLOCK=64)
    return out
def by_pointer(x):
    memory = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    out, answer = torch.empty_like(x), torch.tensor([2 * value for value in memory])
    copy_kernel[(1,)](answer, out, x.numel(), BLOCK=64)
    return out
def in_the_grid(x):
    out, answer = torch.empty_like(x), torch.empty_like(x)
    def grid(meta):
        answer.copy_(x + x)
        return (1,)
    copy_kernel[grid](answer, out, x.numel(), BLOCK=64)
    return out
def helper(n): HELD[1].copy_(2 * HELD[0])
@triton.jit
def calls_python(n, BLOCK: tl.constexpr): helper(n)
def python_in_the_kernel(x):
    HELD[:] = [x, torch.empty_like(x)]
    calls_python[(1,)](3, BLOCK=4)
    return HELD[1]
def writes_its_input(x):
    x.mul_(1)
    x.add_(1).sub_(1)
    return kernel(x)
def broken(x): raise ValueError("mine")
"""


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("kernels")
    with small_submission(folder, SOURCE, runtime="triton", memory_mib=2048) as result:
        yield result


X = Tensor(np.arange(1, 51, dtype=np.float32))


@pytest.mark.parametrize(
    ("function", "factor"),
    [
        ("kernel", 2),
        ("checks_its_result", 2),
        ("zeros", 0),
        ("padded", 2),
        ("joined", 2),
        ("staged", 2),
        ("looks_at_its_input", 2),
        ("twice_over", 2),
        ("merges", 2),
        ("own_operation", 2),
        ("strided_operation", 2),
        ("inferring", 2),
        ("reads_a_number", 2),
        ("fills_by_parts", 2),
        ("reuses_memory", 2),
        ("reads_places", 2),
    ],
)
def test_call_kernel_of_a_kernel_returns_its_answer(submission: Submission, function: str, factor: int) -> None:
    np.testing.assert_array_equal(call_kernel(submission, function, X).data, factor * X.data)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("library", "calls torch.matmul"),
        ("numpy_work", "calls torch.Tensor.numpy"),
        ("fallback", "calls torch.matmul"),
        ("no_kernel", "launches no Triton kernel"),
        ("ghost", "same answer when every kernel launch does nothing"),
        ("pairs", "does arithmetic on [0-9]+ numbers outside of its kernels, for [0-9]+ that it is given and returns"),
        ("whole_numbers", "does arithmetic on [0-9]+ numbers outside of its kernels"),
        ("reads_all_as_places", "does arithmetic on [0-9]+ numbers outside of its kernels"),
        ("one_by_one", "does arithmetic on [0-9]+ numbers outside of its kernels"),
        ("library_in_an_operation", "calls torch.mv"),
        ("library_inferring", "calls torch.nn.functional.linear"),
        ("convolution", "calls torch.convolution"),
        ("in_place", "calls torch.baddbmm"),
        ("copy_by_pointer", "reads what its kernels wrote by another way than torch's operations"),
        ("copy_unseen", "reads what its kernels wrote by another way than torch's operations"),
        ("memory_of_numpy", "reads what its kernels wrote by another way than torch's operations"),
        ("copied", r"computes with its inputs outside of a kernel \(torch.add\)"),
        ("python_in_the_kernel", "calls `helper` of Python in calls_python"),
    ],
)
def test_call_kernel_of_other_work_violates_the_contract(submission: Submission, function: str, message: str) -> None:
    with pytest.raises(ContractViolated, match=message):
        call_kernel(submission, function, X)


@pytest.mark.parametrize("function", ["unseen", "by_pointer", "in_the_grid"])
def test_call_kernel_of_work_that_no_watcher_sees_is_wrong(submission: Submission, function: str) -> None:
    """Nothing tells that the work was done elsewhere, but it was done on other numbers."""
    np.testing.assert_array_equal(submission.call(function, X).data, 2 * X.data)
    assert not np.allclose(call_kernel(submission, function, X).data, 2 * X.data)


@pytest.mark.parametrize(
    ("elements", "scratch", "allowed"),
    [
        (8 * 2000 + 4096, 0, True),
        (8 * 2000 + 4097, 0, False),
        # 3000 float32 partial results, then more of them than a merge has reason for.
        (8 * 5000 + 4096, 4 * 3000, True),
        (8 * 10_000 + 4096, 4 * 10**6, True),
        (8 * 10_000 + 4097, 4 * 10**6, False),
    ],
)
def test_work_beside_kernels_is_bounded_by_what_a_call_is_given(elements: int, scratch: int, allowed: bool) -> None:
    """Copies, casts and merges stay below; attention by elementwise operations doesn't."""
    traced = Traced([Tensor(np.zeros(500, np.float32))], Traffic(torch_elements=elements, scratch_bytes=scratch))
    said = work_beside(traced, (Tensor(np.zeros((50, 30), np.float16)), 3, None))
    assert (said == "") is allowed


def test_watched_call_that_writes_its_input_violates_the_contract(submission: Submission) -> None:
    with pytest.raises(ContractViolated, match="changed its input `x`"):
        submission.watched_call("writes_its_input", X)


def test_call_kernel_of_a_failing_function_says_how_it_failed(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="mine"):
        call_kernel(submission, "broken", X)


def test_watched_call_counts_no_bytes(submission: Submission) -> None:
    traced: Any = submission.watched_call("kernel", X)
    assert (traced.traffic.launches, traced.traffic.bytes_known, traced.traffic.loaded_bytes) == (1, False, 0)

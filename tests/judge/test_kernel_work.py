"""Answers that aren't a kernel's are refused; a kernel's own answer, and what it needs around it, isn't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_submission import small_submission

pytest.importorskip("triton")

from grader.judge.kernel_work import call_kernel
from grader.sandbox.failures import ContractViolated, SubmissionRaised
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor

SOURCE = """
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, 2 * tl.load(x + index, mask=index < count), mask=index < count)

def kernel(x, out=None):
    out = torch.empty_like(x) if out is None else out
    double_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out
def zeros(x): return kernel(0 * x)
def checks_its_result(x):
    out = torch.zeros_like(x)
    kernel(x, out)
    if not out.any(): raise RuntimeError("nothing was written")
    return out
def library(x): return kernel((torch.eye(x.numel()) @ x[:, None])[:, 0])
def no_kernel(x): return x * 2
def ghost(x):
    kernel(x)
    return x + x
def numpy_work(x): return kernel(torch.from_numpy(x.numpy() * 1))
def fallback(x):
    try: double_kernel[(1,)](x, None, "not a number", BLOCK=64)
    except Exception: return torch.matmul(torch.eye(x.numel()) * 2, x)
def broken(x): raise ValueError("mine")
"""


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("kernels")
    with small_submission(folder, SOURCE, runtime="triton", memory_mib=2048) as result:
        yield result


X = Tensor(np.arange(1, 51, dtype=np.float32))


@pytest.mark.parametrize(("function", "factor"), [("kernel", 2), ("checks_its_result", 2), ("zeros", 0)])
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
    ],
)
def test_call_kernel_of_other_work_violates_the_contract(submission: Submission, function: str, message: str) -> None:
    with pytest.raises(ContractViolated, match=message):
        call_kernel(submission, function, X)


def test_call_kernel_of_a_failing_function_says_how_it_failed(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="mine"):
        call_kernel(submission, "broken", X)


def test_watched_call_counts_no_bytes(submission: Submission) -> None:
    traced: Any = submission.watched_call("kernel", X)
    assert (traced.traffic.launches, traced.traffic.bytes_known, traced.traffic.loaded_bytes) == (1, False, 0)

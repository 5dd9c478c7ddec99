"""What a launcher does beside its launches is refused with its line; a kernel's answer comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pytest
from small_submission import small_submission

pytest.importorskip("triton")

from grader.judge.kernel_work import BACKWARD, DECODED, FORWARD, UNUSED, judge_kernel_work
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor
from grader.worker import rules

SOURCE = """
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, count, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, 2 * tl.load(x + index, mask=index < count), mask=index < count)

def kernel(x):
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out
def ghost(x):
    kernel(x)
    return x + x
def reads(x):
    if (x > 0).any(): return kernel(x)
def broken(x): raise ValueError("mine")
def no_kernel(x): return x.clone()
"""
FUNCTIONS = ("kernel", "ghost", "reads", "broken", "no_kernel")
X = Tensor(np.arange(1, 51, dtype=np.float32))


class Failed(Exception):
    def __init__(self, message: str, diagnosis: Diagnosis | None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis


class Judge:
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn:
        raise Failed(message, diagnosis)


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    record = {name: {"parameters": ["x"], "allow": ["moves", "partials"]} for name in FUNCTIONS}
    folder = tmp_path_factory.mktemp("kernels")
    with small_submission(folder, SOURCE, runtime="triton", record=record, memory_mib=2048) as result:
        yield result


def test_kernel_work_of_a_kernel_returns_its_answer(submission: Submission) -> None:
    np.testing.assert_array_equal(judge_kernel_work(Judge(), submission, "kernel", [X]).data, 2 * X.data)


@pytest.mark.parametrize(
    ("function", "line", "what"), [("ghost", 16, "torch.add on `x`"), ("reads", 18, "torch.gt on `x`")]
)
def test_kernel_work_of_other_work_fails_with_its_line(
    submission: Submission, function: str, line: int, what: str
) -> None:
    with pytest.raises(Failed, match=rf"^answer\.py:{line}: .*{what}") as failed:
        judge_kernel_work(Judge(), submission, function, [X])
    assert failed.value.diagnosis == UNUSED


def test_kernel_work_of_a_call_without_a_kernel_fails(submission: Submission) -> None:
    with pytest.raises(Failed, match="No Triton kernel wrote a result") as failed:
        judge_kernel_work(Judge(), submission, "no_kernel", [X])
    assert failed.value.diagnosis == UNUSED


def test_kernel_work_of_a_failing_launcher_says_how_it_failed(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised, match="mine"):
        judge_kernel_work(Judge(), submission, "broken", [X])


def _pairs(lengths: dict[str, int]) -> int:
    return lengths["q_len"] * lengths["k_len"]


@pytest.mark.parametrize(
    ("products", "pairs", "returned", "own"),
    [
        (2, _pairs(FORWARD), FORWARD["q_len"], FORWARD["q_len"]),
        (5, _pairs(BACKWARD) // 2, BACKWARD["q_len"] + 2 * BACKWARD["k_len"], BACKWARD["q_len"]),
        (2, sum(DECODED), len(DECODED), len(DECODED)),
    ],
    ids=["forward", "backward", "decode"],
)
def test_lengths_take_far_more_arithmetic_than_a_launcher_may_do(
    products: int, pairs: int, returned: int, own: int
) -> None:
    """In rows of head_dim numbers: a product of torch's goes over each twice, to multiply and to add up."""
    partials = rules.SCRATCH_PASSES * rules.SCRATCH_PART * returned
    assert 2 * products * pairs > 3 * (rules.PASSES * (own + returned) + partials)

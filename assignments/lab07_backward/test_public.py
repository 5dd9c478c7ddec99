"""Public checks of lab07."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grader.judge import Judge, Submission, attention, check
from grader.judge.backward import judging
from grader.judge.backward.artifacts import (
    NOTES,
    REPORT,
    judge_discerning,
    judge_report,
    judge_rerun,
    judge_tolerances,
    judge_truth,
    read_report,
)
from grader.judge.backward.checks import judge_linear_memory, judge_program_order
from grader.judge.backward.codegen import judge_backward_codegen
from grader.judge.backward.specimens import GRADIENTS, RIGHT
from grader.judge.backward.trial import own_report, shapes, try_harness
from grader.judge.kernel_work import BACKWARD, judge_kernel_work
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised

RERUN_ROWS = 2


def _backward(submission: Submission, judge: Judge, label: str = "", **options: object) -> None:
    """Draw a problem, run its backward, judge it."""
    asked = judging.problem(judge.rng(), **options)  # type: ignore[arg-type]
    judging.judge_gradients(judge, asked, judging.run_backward(submission, asked), label=label)


@check("backward-square")
@pytest.mark.parametrize("length", [64, 128])
def test_backward_without_a_mask(submission: Submission, judge: Judge, length: int) -> None:
    """64 and 128 queries and keys, head_dim 64, two heads: no tail, no mask."""
    _backward(submission, judge, q_len=length, head_dim=64)


@check("causal-square")
def test_backward_with_a_causal_mask(submission: Submission, judge: Judge) -> None:
    """128 queries and keys, head_dim 64."""
    _backward(submission, judge, q_len=128, head_dim=64, causal=True)


@check("forward-saves")
@pytest.mark.parametrize(("q_len", "k_len", "dtype"), [(70, 110, "float16"), (110, 70, "bfloat16")])
def test_forward_returns_o_and_lse(submission: Submission, judge: Judge, q_len: int, k_len: int, dtype: str) -> None:
    """Ragged, causal, grouped: what the backward starts from, in both directions of unequal lengths."""
    case = attention.case(
        judge.rng(), q_heads=4, kv_heads=2, q_len=q_len, k_len=k_len, head_dim=64, dtype=dtype, causal=True
    )
    tensors = attention.to_tensors(case, submission.device)
    result = submission.call(judging.FORWARD, *tensors, causal=True)
    o, lse = attention.check_forward(result, case, submission.device, judging.FORWARD)
    attention.judge_forward(judge, case, o, lse)


@check("autograd")
@pytest.mark.parametrize(("scale", "upstream"), [(None, "normal"), (0.3, "ones")])
def test_autograd_gives_the_three_gradients(
    submission: Submission, judge: Judge, scale: float | None, upstream: judging.Upstream
) -> None:
    """loss.backward() through flash_attention, also from a sum, whose gradient is one expanded number."""
    asked = judging.problem(
        judge.rng(), upstream=upstream, q_heads=2, kv_heads=1, q_len=50, k_len=80, head_dim=64, causal=True, scale=scale
    )
    grad_o, q, k, v, _, _ = asked.arguments(submission.device)
    wanted = [replace(tensor, requires_grad=True) for tensor in (q, k, v)]
    try:
        found = submission.gradient_call(judging.DIFFERENTIABLE, *wanted, cotangents=[grad_o], **asked.options())
    except SubmissionRaised as raised:
        if "does not require grad" not in raised.text:
            raise
        judge.fail(
            "flash_attention returns no tensor that autograd can go back from: call your torch.autograd.Function's "
            "`apply`.",
            diagnosis=Diagnosis(id="not-differentiable", text="The output has no grad_fn."),
        )
    shape = asked.case.q.shape
    attention.check_tensor(found.value, f"{judging.DIFFERENTIABLE}: o", asked.case.dtype, shape, submission.device)
    missing = [name for name in "qkv" if found.gradients.get(name) is None]
    if missing:
        judge.fail(
            f"After loss.backward() {', '.join(missing)} has no gradient; `backward` returns one for every argument of "
            "`forward`, in their order.",
            diagnosis=Diagnosis(id="gradient-missing", text="autograd got no gradient for an input."),
        )
    _, lse = attention.exact(asked.case)
    attention.judge_forward(judge, asked.case, found.value, lse)
    gradients = judging.check_gradients(
        tuple(found.gradients[name] for name in "qkv"), asked.case, submission.device, judging.DIFFERENTIABLE
    )
    judging.judge_gradients(judge, asked, gradients)
    _require_own_kernels(submission, judge, asked, gradients)


def _require_own_kernels(
    submission: Submission, judge: Judge, asked: judging.Problem, through_autograd: judging.Gradients
) -> None:
    """autograd's gradients are those of attention_backward, not of torch's own arithmetic."""
    grad_o, q, k, v, _, _ = asked.arguments(submission.device)
    saved = submission.call(judging.FORWARD, q, k, v, **asked.options())
    o, lse = attention.check_forward(saved, asked.case, submission.device, judging.FORWARD)
    result = submission.call(judging.BACKWARD, grad_o, q, k, v, o, lse, **asked.options())
    direct = judging.check_gradients(result, asked.case, submission.device)
    for name in ("dK", "dV"):  # dQ may come from atomics, whose order is the GPU's
        if not np.array_equal(direct.named()[name], through_autograd.named()[name]):
            judge.fail(
                f"{name} through autograd has other bits than attention_forward and attention_backward give; "
                "flash_attention must go through them.",
                diagnosis=Diagnosis(id="autograd-bypasses-kernel", text="autograd's gradients are another code's."),
            )


@check("kernel-does-the-work")
def test_gradients_come_from_triton_kernels(submission: Submission, judge: Judge) -> None:
    """What the launcher does is recorded: launches whose results are returned, and beside them only what it may do."""
    asked = judging.problem(judge.rng(), **BACKWARD, head_dim=64, causal=True)
    tensors = asked.arguments(submission.device)
    value = judge_kernel_work(judge, submission, judging.BACKWARD, tensors, **asked.options())
    judging.judge_gradients(judge, asked, judging.check_gradients(value, asked.case, submission.device))


@check("program-order")
@pytest.mark.parametrize(("dtype", "q_heads", "kv_heads"), [("float32", 2, 2), ("float16", 3, 1)])
def test_sums_do_not_depend_on_the_order_of_programs(
    submission: Submission, judge: Judge, dtype: str, q_heads: int, kv_heads: int
) -> None:
    """The grid's programs run first to last, then last to first: dK and dV keep their bits (dQ needn't).

    A group has three heads: a sum of two is the same in either order.
    """
    asked = judging.problem(
        judge.rng(), q_heads=q_heads, kv_heads=kv_heads, q_len=150, k_len=100, head_dim=32, dtype=dtype, causal=False
    )
    judge_program_order(judge, submission, asked)


@check("linear-memory")
def test_memory_is_linear_in_the_lengths(submission: Submission, judge: Judge) -> None:
    """512 queries and keys, head_dim 16: a score matrix, even of bytes, is more than partials of the gradients."""
    asked = judging.problem(judge.rng(), q_heads=1, q_len=512, k_len=512, head_dim=16)
    traced = submission.traced_call(judging.BACKWARD, *asked.arguments("cpu"), interpreted=True, **asked.options())
    found = judging.check_gradients(traced.value, asked.case, "cpu")
    judging.judge_gradients(judge, asked, found)
    judge_linear_memory(judge, asked.case, traced.traffic)


@check("codegen-profile")
@pytest.mark.parametrize(("head_dim", "dtype", "causal"), [(128, "float16", True)])
def test_code_for_this_profile(submission: Submission, judge: Judge, head_dim: int, dtype: str, causal: bool) -> None:
    """The backward's launches for 1024 queries and keys, compiled for the profile's card."""
    if judge.profile.sm is None:
        judge.skip(f"profile {judge.profile.name} is not a GPU's; choose one with --profile")
    case = attention.case(judge.rng(), q_heads=1, q_len=1024, head_dim=head_dim, dtype=dtype, causal=causal)
    judge_backward_codegen(judge, submission, case, [judge.profile])


@check("harness-runs")
def test_harness_tells_a_right_kernel_from_a_broken_one(submission: Submission, judge: Judge) -> None:
    """Four shapes; a right kernel, and one whose dQ lacks the scale."""
    rng = judge.rng()
    tables = shapes(rng)
    broken = next(specimen for specimen in GRADIENTS if specimen.id == "dq-unscaled")
    trials = [try_harness(submission, specimen, tables, 11, rng) for specimen in (RIGHT[0], broken)]
    judge_discerning(judge, *trials)
    for trial in trials:
        judge_truth(judge, trial.report, trial.calls)


@check("harness-report")
def test_report_is_whole_and_reproduced(submission: Submission, judge: Judge) -> None:
    """The report as shipped, then a new run of the harness on your kernels at two of its shapes."""
    report = judge_report(judge, submission.read_file(REPORT))
    rng = judge.rng()
    small = sorted(report.rows, key=lambda row: row.shape.q_heads * row.shape.batch * row.shape.seq_q * row.shape.seq_k)
    chosen = [small[int(place)] for place in rng.choice(min(len(small), 4), size=RERUN_ROWS, replace=False)]
    tables = [row.shape.model_dump() for row in chosen]
    value, calls = own_report(submission, tables, report.seed)
    judge_truth(judge, judge_rerun(judge, chosen, value), calls)
    tables = shapes(rng)
    broken = next(specimen for specimen in GRADIENTS if specimen.id == "dq-unscaled")
    judge_discerning(judge, *(try_harness(submission, each, tables[:2], 12, rng) for each in (RIGHT[0], broken)))


@check("tolerances")
def test_tolerances_are_documented(submission: Submission, judge: Judge) -> None:
    """TOLERANCES.md beside harness_report.json."""
    judge_tolerances(judge, submission.read_file(NOTES), read_report(judge, submission.read_file(REPORT)))

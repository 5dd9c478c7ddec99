"""The parts of lab 07's checks that are more than one comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, Protocol

import numpy as np

from grader.judge.backward.judging import BACKWARD, Problem, check_gradients, given, judge_gradients
from grader.judge.gradients import Gradients, emulate_gradients
from grader.judge.oracle import AttentionCase, forward
from grader.judge.precision import ULP, Array, numpy_dtype
from grader.judge.stored_once import require_counted
from grader.judge.tolerance import TILINGS
from grader.report.model import Diagnosis
from grader.sandbox.submission import Submission
from grader.worker.traffic_model import Traffic

ROW_SUM_FACTOR = 3.0
"""A row sum of dS may be off by this many times what emulated kernels are off by."""
STEP = 1e-4
"""Step of the difference quotient; its own error is of order STEP², relative."""


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    thresholds: dict[str, float]

    def rng(self) -> np.random.Generator: ...
    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


def with_constant_column(asked: Problem) -> Problem:
    """The problem with K's first column all ones: dQ's first column is then scale times the row sums of dS."""
    k = asked.case.k.copy()
    k[..., 0] = 1.0
    return given(replace(asked.case, k=k), asked.grad_o)


def judge_row_sums(judge: Judging, asked: Problem, found: Gradients) -> None:
    """Hold dQ's first column, which is 0 in exact arithmetic, to what emulated kernels leave there."""
    largest = max(float(np.abs(emulate_gradients(asked.case, asked.grad_o, t).dq[..., 0]).max()) for t in TILINGS)
    got = float(np.abs(found.dq[..., 0]).max())
    judge.measure("row_sum_over_emulated", got / largest if largest else got)
    if not got <= ROW_SUM_FACTOR * largest:
        judge.fail(
            f"The rows of dS don't add up to 0: with a column of ones in K, dQ has {got:.2e} in that column; kernels "
            f"that round as they must leave {largest:.2e}. Since the weights of a row add up to 1, Delta = rowsum(dO * "
            "O) is the weighted mean of dP, and P * (dP - Delta) adds up to 0.",
            diagnosis=Diagnosis(id="row-sums-not-zero", text="Delta isn't the mean of dP under the weights P."),
        )


def judge_linear(judge: Judging, case: AttentionCase, once: Gradients, scaled: Gradients, factor: float) -> None:
    """Gradients of `factor` · dO are `factor` times those of dO, to one ulp; `factor` is a power of two."""
    for name, values in scaled.named().items():
        wanted = once.named()[name] * factor
        off = float(np.abs(values - wanted).max())
        allowed = ULP[case.dtype] * float(np.abs(wanted).max())
        judge.measure(f"{name}_off_over_ulp", off / allowed if allowed else off)
        if not off <= allowed:
            judge.fail(
                f"{name} of {factor:g} dO is off by {off:.2e} from {factor:g} times that of dO; scaling by a power of "
                f"two is exact, so one ulp of the largest value, {allowed:.2e}, is plenty.",
                diagnosis=Diagnosis(id="not-linear", text="The gradients aren't linear in dO."),
            )


def judge_quotients(judge: Judging, asked: Problem, found: Gradients) -> None:
    """Slopes of sum(dO * O) along each gradient and along a random direction, from the float64 forward.

    Along a direction u the slope is <gradient, u>; the quotient of two forwards knows nothing of a backward's formulas.
    """
    rng = judge.rng()
    allowed = judge.thresholds["quotient_rel"]
    for name, values in found.named().items():
        tensor = name[1].lower()
        noise = rng.standard_normal(values.shape)
        length = float(np.linalg.norm(values))
        if not np.isfinite(length) or not length:
            judge.fail(f"{name} is zero or not finite.")
        direction = values / length + 0.5 * noise / float(np.linalg.norm(noise))
        slope = _quotient(asked, tensor, direction)
        told = float((values * direction).sum())
        off = abs(told - slope) / length
        judge.measure(f"{name}_quotient_rel", off)
        if not off <= allowed:
            judge.fail(
                f"{name} isn't the gradient of the forward: along a direction, sum(dO * O) changes by a rate that "
                f"differs by {off:.1e} of {name}'s length; float32 allows {allowed:.1e}.",
                diagnosis=Diagnosis(id="not-the-gradient", text=f"{name} disagrees with finite differences."),
            )


def _quotient(asked: Problem, tensor: str, direction: Array) -> float:
    values = getattr(asked.case, tensor)
    sums = [
        float((forward(replace(asked.case, **{tensor: values + step * direction}))[0] * asked.grad_o).sum())
        for step in (STEP, -STEP)
    ]
    return (sums[0] - sums[1]) / (2.0 * STEP)


def judge_program_order(judge: Judging, submission: Submission, asked: Problem) -> None:
    """dK and dV have equal bits when programs run first to last and last to first; both are right."""
    runs = []
    for backwards in (False, True):
        result = submission.interpreted_call(
            BACKWARD, *asked.arguments("cpu"), reversed_programs=backwards, **asked.options()
        )
        runs.append(check_gradients(result, asked.case, "cpu"))
    judge_gradients(judge, asked, runs[0])
    judge_gradients(judge, asked, runs[1], label="programs in reverse order")
    require_equal(
        judge,
        runs[0],
        runs[1],
        "when the grid's programs run in reverse order",
        Diagnosis(id="order-dependent", text="dK or dV is a sum whose order the grid decides, as with atomics."),
    )


def require_equal(judge: Judging, first: Gradients, second: Gradients, when: str, diagnosis: Diagnosis) -> None:
    """dK and dV of two runs have the same bits."""
    for name in ("dK", "dV"):
        a, b = first.named()[name], second.named()[name]
        if not np.array_equal(a, b, equal_nan=True):
            differing = float(np.mean(a != b))
            judge.fail(
                f"{name} has other bits {when}: {differing:.0%} of its numbers differ, by up to "
                f"{np.abs(a - b).max():.1e}. Give each tile of keys to one program, which adds in a fixed order and "
                "stores once.",
                diagnosis=diagnosis,
            )


def judge_linear_memory(judge: Judging, case: AttentionCase, traffic: Traffic) -> None:
    """Buffers beside arguments and results hold at most float32 partials of the gradients and a few numbers a row.

    And no more is stored: what goes through a small buffer in turns goes through memory too.
    """
    require_counted(judge, traffic)
    heads = case.batch * case.q_heads
    allowed = 4 * heads * (case.q_len * (case.head_dim + 4) + 2 * case.k_len * case.head_dim)
    results = numpy_dtype(case.dtype).itemsize * (case.q.size + case.k.size + case.v.size)
    judge.measure("scratch_bytes", traffic.scratch_bytes)
    judge.measure("allowed_bytes", allowed)
    judge.measure("written_over_allowed", traffic.written_bytes / (allowed + results))
    if traffic.scratch_bytes > allowed:
        judge.fail(
            f"The kernels are given {traffic.scratch_bytes} bytes of memory beside inputs and gradients at lengths "
            f"{case.q_len} x {case.k_len}; float32 partials of dQ, dK and dV and four numbers a row take {allowed}. "
            "P and dS are computed anew from the LSE, tile by tile.",
            diagnosis=SCORES_STORED,
        )
    if traffic.written_bytes > allowed + results:
        judge.fail(
            f"The kernels store {traffic.written_bytes} bytes at lengths {case.q_len} x {case.k_len}, atomics left "
            f"out; the gradients, float32 partials of them and four numbers a row take {allowed + results}. P and dS "
            "are computed anew from the LSE, tile by tile.",
            diagnosis=SCORES_STORED,
        )


SCORES_STORED = Diagnosis(id="scores-stored", text="Weights or their gradients go through memory.")


MOST_PRODUCTS = 7
"""Of queries by keys by head_dim: S, dP, dV, dK and dQ, and S and dP once more in a kernel of its own for dQ."""
FEWEST_PRODUCTS = 5
"""In one kernel."""
NOT_SKIPPED = Diagnosis(id="masked-tiles-not-skipped", text="Tiles that the mask hides are loaded anyway.")
TILES_OVER = 1.5
"""What tiles that hang over may add to them."""


def judge_skipped(judge: Judging, case: AttentionCase, causal: Traffic, full: Traffic) -> None:
    """Bytes loaded with a causal mask over those without one, and products likewise.

    Args:
        case: of both, but for the mask.
    """
    pairs = case.batch * case.q_heads * case.q_len * case.k_len
    most = TILES_OVER * MOST_PRODUCTS * 2 * pairs * case.head_dim
    judge.measure("products_over_needed", full.dot_flops / most * TILES_OVER)
    if full.dot_flops > most:
        judge.fail(
            f"Without a mask the kernels run {full.dot_flops} FLOPs of tl.dot; the {MOST_PRODUCTS} products of a "
            f"backward in two kernels take {int(most / TILES_OVER)}.",
            diagnosis=Diagnosis(id="products-repeated", text="Products are computed more often than a backward needs."),
        )
    unskipped = FEWEST_PRODUCTS * 2 * pairs * case.head_dim
    if causal.dot_flops >= unskipped:
        judge.fail(
            f"With a causal mask the kernels run {causal.dot_flops} FLOPs of tl.dot; the {FEWEST_PRODUCTS} products of "
            f"a backward that skips nothing take {unskipped}. Tiles that it hides can be skipped in both loops.",
            diagnosis=NOT_SKIPPED,
        )
    shares = [causal.loaded_bytes / full.loaded_bytes if full.loaded_bytes else 1.0]
    shares += [causal.dot_flops / full.dot_flops] if full.dot_flops else []
    share = max(shares)
    judge.measure("causal_over_full", share)
    allowed = judge.thresholds["causal_over_full"]
    if not share <= allowed:
        judge.fail(
            f"With a causal mask the kernels load or multiply {share:.0%} of what they do without; tiles that it hides "
            f"can be skipped in both loops, which leaves at most {allowed:.0%}.",
            diagnosis=NOT_SKIPPED,
        )


def judge_memoryless(
    judge: Judging, draw: Callable[[], Problem], run: Callable[[Problem], Gradients], calls: int
) -> None:
    """Several calls at one shape with other values between two with the same: each right, the last as the first."""
    asked = draw()
    first = run(asked)
    judge_gradients(judge, asked, first, label="first call")
    again = run(asked)
    for name, values in again.named().items():
        start = first.named()[name]
        if np.abs(start).max() and np.allclose(values, 2.0 * start, rtol=0.02, atol=0.02 * float(np.abs(start).max())):
            judge.fail(
                f"The second call's {name} is twice the first one's for equal inputs.",
                diagnosis=Diagnosis(id="gradients-accumulate", text="A call adds to what an earlier call left."),
            )
    judge_gradients(judge, asked, again, label="second call")
    for number in range(3, calls):
        other = draw()
        judge_gradients(judge, other, run(other), label=f"call {number}, new values")
    last = run(asked)
    judge_gradients(judge, asked, last, label=f"call {calls}")
    require_equal(
        judge,
        first,
        last,
        "in a later call with equal inputs",
        Diagnosis(id="call-depends-on-history", text="Calls with equal inputs give different bits."),
    )

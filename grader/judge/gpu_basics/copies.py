"""The copies in Triton: right to the bit at every size, each byte moved once, by a kernel, with wide loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.judge.codegen import compiling
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated, OutOfBounds
from grader.sandbox.wire import Tensor

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.kernels.compile import KernelReport
    from grader.profiles import HardwareProfile
    from grader.sandbox.recorded import Recorded
    from grader.sandbox.submission import Submission

Array = NDArray[Any]
MODULE = "triton_copy"
ITEM = 4


def draw(rng: np.random.Generator, n: int) -> Array:
    """(n,) float32 without a zero, so that an element that was never written shows."""
    values = rng.standard_normal(n).astype(np.float32)
    return np.where(values == 0, np.float32(1), values)


def run(submission: Submission, judge: Judge, x: Array, stride: int | None) -> None:
    """`copy` (stride None) or `strided_copy` of x: the answer in the interpreter and its traffic; then on the GPU."""
    function, arguments = ("copy", ()) if stride is None else ("strided_copy", (stride,))
    tensor = Tensor(x, device=submission.device)
    want = x[:: stride or 1]
    _record(submission, judge, function, tensor, *arguments)
    try:
        done = submission.traced_call(function, tensor, *arguments, module=MODULE, interpreted=True)
    except OutOfBounds as outside:
        judge.fail(f"{function}: {outside.message}", diagnosis=OUTSIDE)
    _judge_answer(judge, function, x, stride or 1, done.value)
    _judge_traffic(judge, function, len(want), done.traffic)
    if submission.device == "cuda":
        _judge_answer(judge, function, x, stride or 1, submission.call(function, tensor, *arguments, module=MODULE))


def _record(
    submission: Submission, judge: Judge, function: str, *arguments: Any, profile: HardwareProfile | None = None
) -> Recorded:
    """The tape of a call; fails where the launcher copies by itself."""
    try:
        return submission.record(function, *arguments, module=MODULE, profile=profile)
    except ContractViolated as refused:
        judge.fail(f"{function}: {refused.message}", diagnosis=NO_KERNEL)


def _judge_answer(judge: Judge, function: str, x: Array, stride: int, value: object) -> None:
    want = x[::stride]
    if not isinstance(value, Tensor) or value.data.dtype != np.float32 or value.data.shape != want.shape:
        judge.contract(f"{function}: expected a float32 tensor of {len(want)} elements for {len(x)} of them.")
    got = value.data
    if not np.array_equal(got, want):
        judge.fail(f"{function}: some elements are wrong.", diagnosis=explain(x, stride, got, want))


def explain(x: Array, stride: int, got: Array, want: Array) -> Diagnosis | None:
    """Which known mistake gives these elements."""
    right = got == want
    wrong = np.flatnonzero(~right)
    n = len(want)
    for block in (4, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        if n % block and len(wrong) and wrong[0] == n // block * block and not right[wrong[0] :].any():
            return Diagnosis(id="tail-missing", text="What is left after the last whole block isn't copied.")
    first = x[: len(got)]
    if stride > 1 and np.array_equal(got[: len(first)], first[: len(got)]):
        return Diagnosis(id="stride-ignored", text="Neighbouring elements are copied: the stride isn't applied.")
    return None


def _judge_traffic(judge: Judge, function: str, n: int, traffic: Any) -> None:
    judge.measure(f"{function}: loaded_bytes", traffic.loaded_bytes)
    judge.measure(f"{function}: stored_bytes", traffic.stored_bytes)
    if traffic.loaded_bytes != ITEM * n or traffic.stored_bytes != ITEM * n:
        judge.fail(
            f"{function}: {traffic.loaded_bytes} bytes loaded and {traffic.stored_bytes} stored for {n} elements; "
            f"expected {ITEM * n} of each.",
            diagnosis=MOVED_MORE if traffic.loaded_bytes + traffic.stored_bytes > 2 * ITEM * n else None,
        )


NO_KERNEL = Diagnosis(id="no-kernel", text="The copy was made by a library call, not by a kernel of yours.")
OUTSIDE = Diagnosis(
    id="mask-missing", text="Lanes beyond the end load or store: mask both sides of the copy with i < n."
)
MOVED_MORE = Diagnosis(id="moved-twice", text="Elements are loaded or stored more than once.")
NARROW = Diagnosis(id="scalar-loads", text="The compiler could make no 16-byte loads of yours.")


def judge_code(submission: Submission, judge: Judge, x: Array, profiles: Sequence[HardwareProfile]) -> None:
    """The launch of `copy` for each card: right at this very size, 128-bit loads and stores, nothing spilled."""
    tensor = Tensor(x)
    for profile in profiles:
        recorded = _record(submission, judge, "copy", tensor, profile=profile)
        _judge_answer(judge, "copy", x, 1, recorded.run()["value"])
        for report in compiling(recorded, [profile])():
            _judge_report(judge, report)


def _judge_report(judge: Judge, report: KernelReport) -> None:
    place = f"on sm_{report.capability}"
    if report.error is not None:
        judge.fail(f"copy doesn't compile {place}: {report.error}")
    if report.spill_bytes:
        judge.fail(f"copy spills {report.spill_bytes} bytes a thread {place}.", diagnosis=SPILLS)
    if not report.count("LDG.128") or not report.count("STG.128"):
        judge.fail(f"copy has no 128-bit load or store {place}.", diagnosis=NARROW)


SPILLS = Diagnosis(id="spills", text="Registers are spilled to local memory: fewer elements a thread.")

"""The copies in Triton: right to the bit at every size, each byte moved once, by a kernel, with wide loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from grader.kernels.compile import inspect
from grader.report.model import Diagnosis
from grader.sandbox.wire import Tensor

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.profiles import HardwareProfile
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
    done = submission.traced_call(function, tensor, *arguments, module=MODULE, interpreted=True)
    _judge_answer(judge, function, x, stride or 1, done.value)
    _judge_traffic(judge, function, len(want), done.traffic)
    if submission.device == "cuda":
        _judge_answer(judge, function, x, stride or 1, submission.call(function, tensor, *arguments, module=MODULE))


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
    if not traffic.launches:
        judge.fail(f"{function}: no Triton kernel was launched.", diagnosis=NO_KERNEL)
    if traffic.outside_bytes:
        judge.fail(f"{function}: the kernel reaches outside its tensors.", diagnosis=OUTSIDE)
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
GHOST = Diagnosis(
    id="ghost-kernel", text="With the kernel doing nothing, the answer is the same: it came from elsewhere."
)
NARROW = Diagnosis(id="scalar-loads", text="The compiler could make no 16-byte loads of yours.")


def judge_kernel_is_used(submission: Submission, judge: Judge, x: Array) -> None:
    """The copy with every launch doing nothing must not come out right."""
    value = submission.noop_call("copy", Tensor(x, device=submission.device), module=MODULE)
    if isinstance(value, Tensor) and value.data.shape == x.shape and np.array_equal(value.data, x):
        judge.fail("copy: the answer doesn't come from the kernel.", diagnosis=GHOST)


def judge_code(submission: Submission, judge: Judge, x: Array, profiles: Sequence[HardwareProfile]) -> None:
    """The launch of `copy`, compiled for each card: 128-bit loads and stores, nothing spilled.

    The launcher is asked once, for the first card: a copy has no reason to choose by device.
    """
    captured = submission.capture("copy", Tensor(x), profile=profiles[0], module=MODULE)
    if not captured.get("launches"):
        judge.fail("copy: no Triton kernel was launched.", diagnosis=NO_KERNEL)
    for report in inspect(captured, profiles, submission.isolation, submission.lab.limits):
        place = f"on sm_{report.capability}"
        if report.error is not None:
            judge.fail(f"copy doesn't compile {place}: {report.error}")
        if report.spill_bytes:
            judge.fail(f"copy spills {report.spill_bytes} bytes a thread {place}.", diagnosis=SPILLS)
        if not report.count("LDG.128") or not report.count("STG.128"):
            judge.fail(f"copy has no 128-bit load or store {place}.", diagnosis=NARROW)


SPILLS = Diagnosis(id="spills", text="Registers are spilled to local memory: fewer elements a thread.")

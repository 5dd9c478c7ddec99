"""Calls whose answer must be a Triton kernel's: what a launcher does beside its launches is on its tape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated
from grader.sandbox.recorded import Recorded
from grader.sandbox.wire import Tensor

UNUSED = Diagnosis(id="kernel-unused", text="The output doesn't come from Triton kernels alone.")

FORWARD = {"q_len": 72, "k_len": 250}
BACKWARD = {"q_len": 120, "k_len": 200}
DECODED = (310, 137)
"""Lengths of calls whose products take several times the arithmetic that a launcher may do outside of its kernels."""


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


class Recording(Protocol):
    """The part of the submission that is used here."""

    def record(self, function: str, /, *args: Any, **kwargs: Any) -> Recorded: ...


def judge_kernel_work(
    judge: Judging,
    submission: Recording,
    function: str,
    tensors: Sequence[Tensor],
    *,
    mutable: tuple[str, ...] = (),
    diagnosis: Diagnosis = UNUSED,
    **kwargs: Any,
) -> Any:
    """Fail, naming the line, where a call's launcher does work that is a kernel's or returns what no kernel wrote.

    Args:
        mutable: parameters that the call may change in place.
        kwargs: of the call; `module` among them where it isn't the submission's first file.

    Returns:
        what the call gives, for the caller to compare.

    Raises:
        WorkerFailure: the call failed in another way.
    """
    try:
        return submission.record(function, *tensors, mutable=mutable, **kwargs).run(mutable=mutable)["value"]
    except ContractViolated as refused:
        judge.fail(refused.message, diagnosis=diagnosis)

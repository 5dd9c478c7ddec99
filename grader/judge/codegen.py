"""Holds what a submission would launch on a card to the gates of machine code, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from grader.judge import attention
from grader.judge.oracle import AttentionCase
from grader.kernels.compile import Capture, KernelReport, inspect
from grader.kernels.gates import GateFailure, gate_all, tensor_core_opcodes
from grader.profiles import HardwareProfile
from grader.report.model import Diagnosis
from grader.sandbox.submission import Submission
from grader.sandbox.wire import Tensor

TEXTS = {
    "does-not-compile": "The kernel doesn't compile for the card, though the interpreter runs it.",
    "shared-memory": "The tiles need more shared memory than the card gives a block.",
    "spills": "Registers are spilled to local memory.",
    "no-tensor-cores": "No tensor-core instruction is in the code.",
    "no-async-copies": "No asynchronous copy is in the code: loads and arithmetic don't overlap.",
    "registers": "Too many registers a thread.",
}


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


def judge_forward_codegen(
    judge: Judging, submission: Submission, case: AttentionCase, profiles: Sequence[HardwareProfile]
) -> None:
    """As `judge_codegen`, for lab06's forward on a case in half precision; its kernels need asynchronous copies."""
    call = Launch(attention.FUNCTION, attention.to_tensors(case, submission.device), {"causal": case.causal})
    judge_codegen(judge, submission, call, profiles)


@dataclass(frozen=True)
class Launch:
    """A call whose launches are looked at: function, arguments, and the module that has it (None: the first file)."""

    function: str
    args: tuple[Tensor, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: str | None = None


def judge_codegen(
    judge: Judging,
    submission: Submission,
    call: Launch,
    profiles: Sequence[HardwareProfile],
    *,
    tensor_cores: bool = True,
    async_copies: bool = True,
) -> None:
    """Capture the launches of a call for each card, compile them, and hold them to its gates.

    Cards of one compute capability run the same code, so the launcher is asked once for all of them. Where it launches
    the same kernels for every capability they are compiled together.

    Args:
        tensor_cores, async_copies: whether the kernels that multiply need them.
    """
    by_capability = {profile.sm: profile for profile in reversed(profiles)}
    captures = {sm: _capture(judge, submission, call, profile) for sm, profile in by_capability.items()}
    first = captures[profiles[0].sm]
    if all(_launched(captured) == _launched(first) for captured in captures.values()):
        reports = inspect(first, profiles, submission.isolation, submission.lab.limits)
    else:
        reports = [
            report
            for capability, captured in captures.items()
            for report in inspect(captured, [by_capability[capability]], submission.isolation, submission.lab.limits)
        ]
    for profile in profiles:
        _note(judge, [report for report in reports if report.capability == profile.sm], profile)
        failures = gate_forward(reports, profile, tensor_cores=tensor_cores, async_copies=async_copies)
        if failures:
            worst = failures[0]
            more = f" And {len(failures) - 1} more." if len(failures) > 1 else ""
            judge.fail(worst.text + more, diagnosis=Diagnosis(id=worst.id, text=TEXTS[worst.id]))


def _capture(judge: Judging, submission: Submission, call: Launch, profile: HardwareProfile) -> Capture:
    captured = submission.capture(call.function, *call.args, profile=profile, module=call.module, **call.kwargs)
    if not captured.get("launches"):
        judge.fail("No Triton kernel was launched, so there is no code to look at.")
    return captured


def _launched(captured: Capture) -> Capture:
    return {key: value for key, value in captured.items() if key != "capability"}


def gate_forward(
    reports: Sequence[KernelReport], profile: HardwareProfile, *, tensor_cores: bool = True, async_copies: bool = True
) -> list[GateFailure]:
    """Failures of a forward's kernels: those that multiply need tensor cores and async copies, helpers don't.

    A kernel beside one that uses tensor cores (it merges partials, say) is a helper.
    """
    mine = [report for report in reports if report.capability == profile.sm]
    opcodes = tensor_core_opcodes(profile.sm or 0)
    multiplying = {report.kernel for report in mine if report.count(*opcodes)}
    main = [report for report in mine if report.kernel in multiplying or not multiplying]
    helpers = [report for report in mine if report not in main]
    needed = gate_all(main, profile, tensor_cores=tensor_cores, async_copies=async_copies)
    return needed + gate_all(helpers, profile, tensor_cores=False, async_copies=False)


def _note(judge: Judging, reports: Sequence[KernelReport], profile: HardwareProfile) -> None:
    compiled = [report for report in reports if report.error is None]
    if compiled:
        judge.measure(f"{profile.name}: registers", max(report.registers for report in compiled))
        judge.measure(f"{profile.name}: shared_bytes", max(report.shared_bytes for report in compiled))
        judge.measure(f"{profile.name}: spill_bytes", max(report.spill_bytes for report in compiled))

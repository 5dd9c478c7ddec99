"""Compiles captured launches for hardware profiles and reports what the machine code holds.

The compile runs in a sandboxed worker that never sees the submission (`grader.worker.inspect_kernels`), so nothing that
a launcher did to Triton reaches it. What the worker answers is checked here like everything that comes from one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grader.course import Limits
from grader.errors import UsageError
from grader.profiles import HardwareProfile
from grader.sandbox.client import WorkerClient
from grader.sandbox.failures import ContractViolated
from grader.sandbox.launch import LaunchedWorker, LaunchSpec, launch
from grader.sandbox.levels import Isolation

Capture = dict[str, Any]
MAX_TEXT = 500


@dataclass(frozen=True)
class KernelReport:
    """One captured launch, compiled for one compute capability.

    Attributes:
        kernel: name of the kernel function.
        config: its compile-time arguments and options, e.g. ``BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2``.
        capability: 90 for compute capability 9.0.
        registers: registers a thread.
        spill_bytes: stack and local memory a thread; Triton puts nothing else there, so they are spilled registers.
        loop_spills: loads and stores of that memory that stand inside a loop of the code.
        shared_bytes: shared memory a block, dynamic and static.
        instructions: SASS opcode → how often it stands in the code, not how often it runs.
        error: why there is no binary; None when there is one.
        phase: ``forward``, or ``backward`` for launches of an autograd Function's backward.
        autotuned: the launch is one of several configurations of `@triton.autotune`.
        choice, candidate: which of the call's autotuned launches it is of, and which configuration; None for others.
        num_warps: warps a block.
    """

    kernel: str
    config: str
    capability: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    instructions: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    phase: str = "forward"
    autotuned: bool = False
    num_warps: int = 4
    loop_spills: int = 0
    choice: int | None = None
    candidate: int | None = None

    def count(self, *opcodes: str) -> int:
        """How often any of the opcodes stands in the code."""
        return sum(self.instructions.get(opcode, 0) for opcode in opcodes)


def inspect(
    capture: Capture,
    profiles: Sequence[HardwareProfile],
    isolation: Isolation,
    limits: Limits | None = None,
    *,
    timeout_s: float | None = None,
    launcher: Callable[[LaunchSpec], LaunchedWorker] = launch,
) -> list[KernelReport]:
    """Compile each distinct launch of a capture for each distinct compute capability among the profiles.

    A launcher that chooses by device was captured for one profile only; inspect that capture for that profile.

    Args:
        capture: what `Submission.capture` returned.
        timeout_s: limit on all compiles together; the lab's `compile_s` by default.

    Returns:
        reports, launches in order, capabilities within them.

    Raises:
        UsageError: a profile isn't a GPU's. WorkerFailure: the compile worker crashed, ran too long or out of memory.
        InfrastructureError: the worker doesn't start.
    """
    limits = limits or Limits()
    capabilities: list[int] = []
    for profile in profiles:
        if profile.sm is None:
            raise UsageError(f"Profile {profile.name} is not a GPU's, so no kernel can be compiled for it.")
        if profile.sm not in capabilities:
            capabilities.append(profile.sm)
    worker = launcher(LaunchSpec(isolation=isolation, limits=limits, runtime="triton"))
    client = WorkerClient(worker, limits, "cpu")
    try:
        # "numpy": the module loads Triton itself, and compiling needs no torch, which takes seconds to load.
        client.start("numpy", "cpu", modules=("inspect_kernels",))
        answer = client.request(
            "inspect",
            {"capture": capture, "capabilities": capabilities},
            timeout_s=timeout_s or limits.compile_s,
            doing="compiling the captured kernels",
            phase="compile",
        )
    finally:
        client.close()
    return read_reports(answer)


def read_reports(answer: object) -> list[KernelReport]:
    """Reports from what a compile worker answered.

    Raises:
        ContractViolated: it isn't a list of reports.
    """
    try:
        if not isinstance(answer, list):
            raise TypeError("not a list")
        return [_report(table) for table in answer]
    except (KeyError, TypeError, ValueError) as error:
        raise ContractViolated(
            f"The compiled kernels were not reported as a table ({error}).", phase="compile"
        ) from error


def _report(table: dict[str, Any]) -> KernelReport:
    error = table["error"]
    if error is not None and not isinstance(error, str):
        raise TypeError("error is not text")
    return KernelReport(
        kernel=_text(table["kernel"]),
        config=_text(table["config"]),
        capability=_count(table["capability"]),
        registers=_count(table["registers"]),
        spill_bytes=_count(table["spill_bytes"]),
        shared_bytes=_count(table["shared_bytes"]),
        instructions={_text(name): _count(count) for name, count in table["instructions"].items()},
        error=None if error is None else error[:MAX_TEXT],
        phase=_text(table["phase"]),
        autotuned=bool(table["autotuned"]),
        num_warps=_count(table["num_warps"]),
        loop_spills=_count(table["loop_spills"]),
        choice=None if table["choice"] is None else _count(table["choice"]),
        candidate=None if table["candidate"] is None else _count(table["candidate"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value[:MAX_TEXT]


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value

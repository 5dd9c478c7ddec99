"""Reports of what a launch's machine code holds, as the executor's compiler tells them.

What it answers is checked here like everything that comes from a worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grader.sandbox.failures import ContractViolated

MAX_TEXT = 500


@dataclass(frozen=True)
class KernelReport:
    """One launch, compiled for one compute capability.

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

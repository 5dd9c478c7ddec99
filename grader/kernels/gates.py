"""What a kernel's code must show on a card: shared memory fits, no spills that cost, tensor cores, async copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grader.kernels.compile import KernelReport
from grader.profiles import HardwareProfile

AMPERE_MMA = ("HMMA", "IMMA", "QMMA", "DMMA")
HOPPER_MMA = ("HGMMA", "QGMMA", "IGMMA")
BLACKWELL_MMA = ("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMMA")
ASYNC_COPIES = ("LDGSTS", "UTMALDG", "UBLKCP")
MAX_REGISTERS = 255
"""A thread has at most 255 registers on every card of these profiles; beyond that the compiler spills."""
MAX_SPILL_BYTES = 64
"""Spilled bytes a thread that cost next to nothing where they stand outside of loops: 16 registers, once a program."""


@dataclass(frozen=True)
class GateFailure:
    """A gate that a kernel didn't pass.

    Attributes:
        id: ``does-not-compile``, ``spills``, ``shared-memory``, ``no-tensor-cores``, ``no-async-copies`` or
            ``registers``.
        text: where, what was found, what is allowed, what to do next.
    """

    id: str
    text: str


def tensor_core_opcodes(capability: int) -> tuple[str, ...]:
    """Opcodes that count as tensor-core work on a capability; Hopper still runs Ampere's, slower."""
    if capability // 10 == 10 or capability // 10 == 11:
        return BLACKWELL_MMA
    if capability // 10 == 9:
        return HOPPER_MMA + AMPERE_MMA
    return AMPERE_MMA


def gate(
    report: KernelReport,
    profile: HardwareProfile,
    *,
    tensor_cores: bool = True,
    async_copies: bool = True,
    no_spills: bool = True,
    max_registers: int = MAX_REGISTERS,
) -> list[GateFailure]:
    """Failures of one report on one card, worst first; empty when it passes.

    Args:
        tensor_cores, async_copies, no_spills: which gates are asked for. Shared memory and compiling always are.
        max_registers: registers a thread at most.
    """
    place = f"{report.kernel} ({report.config}) on {profile.name}"
    if report.error is not None:
        text = f"{place} does not compile: {report.error}"
        return [GateFailure("does-not-compile", f"{text.rstrip('.')}. The interpreter accepts more than a GPU does.")]
    failures = []
    allowed = profile.shared_kib_per_block * 1024
    if report.shared_bytes > allowed:
        failures.append(
            GateFailure(
                "shared-memory",
                f"{place} needs {_kib(report.shared_bytes)} of shared memory a block; the card allows "
                f"{_kib(allowed)}. Take smaller tiles or fewer num_stages.",
            )
        )
    if no_spills and spills(report):
        inside = f", {report.loop_spills} of them inside a loop" if report.loop_spills else ""
        failures.append(
            GateFailure(
                "spills",
                f"{place} spills {report.spill_bytes} bytes a thread to local memory ({report.count('STL')} stores and "
                f"{report.count('LDL')} loads in the code{inside}); allowed are none inside a loop, and "
                f"{MAX_SPILL_BYTES} bytes outside of loops. Take a smaller tile, or spread it over more warps "
                "(num_warps).",
            )
        )
    if report.registers > max_registers:
        failures.append(
            GateFailure(
                "registers",
                f"{place} uses {report.registers} registers a thread; allowed are {max_registers}. Take a smaller "
                "tile, or spread it over more warps (num_warps).",
            )
        )
    if tensor_cores and not report.count(*tensor_core_opcodes(report.capability)):
        wanted = " or ".join(tensor_core_opcodes(report.capability)[:2])
        failures.append(
            GateFailure(
                "no-tensor-cores",
                f"{place} has no tensor-core instruction ({wanted}); expected some. Do both products with tl.dot on "
                f"fp16 or bf16 tiles{_smallest_tile(report.capability)}.",
            )
        )
    if async_copies and not report.count(*ASYNC_COPIES):
        failures.append(
            GateFailure(
                "no-async-copies",
                f"{place} has no asynchronous copy (LDGSTS or UTMALDG); expected some. Load K and V in a loop over "
                "tl.dot with num_stages of at least 2, so that the compiler can pipeline it.",
            )
        )
    return failures


def gate_all(
    reports: Sequence[KernelReport],
    profile: HardwareProfile,
    *,
    tensor_cores: bool = True,
    async_copies: bool = True,
    no_spills: bool = True,
    max_registers: int = MAX_REGISTERS,
) -> list[GateFailure]:
    """Failures of every report that is of the profile's capability.

    A configuration of `@triton.autotune` that doesn't compile, doesn't fit into shared memory or spills is never
    chosen, as long as another configuration of the same launch does better; so it is left out here as well.
    """
    mine = [report for report in reports if report.capability == profile.sm]
    failures: list[GateFailure] = []
    for report in mine:
        if _dropped(report, mine, profile, no_spills):
            continue
        failures += gate(
            report,
            profile,
            tensor_cores=tensor_cores,
            async_copies=async_copies,
            no_spills=no_spills,
            max_registers=max_registers,
        )
    return failures


def survivors(
    reports: Sequence[KernelReport], profile: HardwareProfile, *, no_spills: bool = True
) -> dict[int, list[int]]:
    """Candidates that aren't dropped, by the number of their choice; the executor takes one of these.

    Where none fits, all are left: the failures say why none can run.
    """
    mine = [report for report in reports if report.capability == profile.sm]
    found: dict[int, list[int]] = {}
    for report in mine:
        if report.choice is not None and report.candidate is not None:
            kept = found.setdefault(report.choice, [])
            if not _dropped(report, mine, profile, no_spills):
                kept.append(report.candidate)
    return {choice: sorted(candidates) for choice, candidates in found.items()}


def spills(report: KernelReport) -> bool:
    """Whether spilled registers cost something: inside a loop, or many of them."""
    touched = report.count("STL", "LDL") > 0
    return report.loop_spills > 0 or (touched and report.spill_bytes > MAX_SPILL_BYTES)


def _dropped(report: KernelReport, reports: Sequence[KernelReport], profile: HardwareProfile, no_spills: bool) -> bool:
    """Whether it's a configuration that is never chosen, because another one of the same launch fits."""

    def fits(other: KernelReport) -> bool:
        small = other.shared_bytes <= profile.shared_kib_per_block * 1024
        return other.error is None and small and not (no_spills and spills(other))

    launch = (report.kernel, report.phase, report.choice)
    others = [other for other in reports if other.autotuned and (other.kernel, other.phase, other.choice) == launch]
    return report.autotuned and not fits(report) and any(map(fits, others))


def _kib(size: int) -> str:
    return f"{size / 1024:.4g} KiB"


def _smallest_tile(capability: int) -> str:
    if capability // 10 in (10, 11):
        return "; its tensor cores want tiles of 64 rows or more"
    return " of 16 rows and columns or more"

"""What the machine code of kernels.cu must show: wide loads, a tail, shuffles over a whole warp, no spills.

Code that stands in a kernel needn't run: that the right instructions are there is all that can be said without a GPU.
Whether they do the work, `grader.judge.gpu_basics.runs` tells.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.kernels.cuda import CudaBuild, CudaKernel, compile_cuda
from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

FILE = "kernels.cu"
MAX_SOURCE_BYTES = 1 << 18
CAPABILITIES = (80, 90)
COPIES = ("copy_coalesced", "copy_strided")
SHUFFLES = ("warp_sum_shuffle", "warp_max_shuffle")
SHARED = "warp_sum_shared"
KERNELS = (*COPIES, *SHUFFLES, SHARED)
FULL_MASK = 0xFFFFFFFF
OFFSETS = frozenset({1, 2, 4, 8, 16})
MAX_LOG = 400

_KEPT = 8
_builds: OrderedDict[tuple[str, tuple[int, ...]], list[CudaBuild]] = OrderedDict()


@dataclass(frozen=True)
class Finding:
    """A gate that a kernel didn't pass: its id, what it means, and the particulars."""

    id: str
    text: str
    detail: str


def build(judge: Judge, submission: Submission, capabilities: Sequence[int] = CAPABILITIES) -> list[CudaBuild]:
    """kernels.cu compiled for each capability, in a worker that doesn't see the rest of the submission.

    One source is compiled once in a run, however many checks look at it.
    """
    raw = submission.read_file(FILE, MAX_SOURCE_BYTES)
    if raw is None:
        judge.fail(f"{FILE} is missing.")
    try:
        source = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        judge.fail(f"{FILE} isn't text in UTF-8.")
    key = (hashlib.sha256(raw).hexdigest(), tuple(capabilities))
    if key not in _builds:
        _builds[key] = compile_cuda(source, capabilities, submission.isolation, submission.lab.limits)
        while len(_builds) > _KEPT:
            _builds.popitem(last=False)
    return _builds[key]


def judge_code(judge: Judge, builds: Sequence[CudaBuild], gate: Callable[[CudaBuild], list[Finding]]) -> None:
    """Fail with the first finding of any build; builds that don't compile fail as such."""
    for built in builds:
        for finding in compiles(built) or gate(built):
            judge.fail(
                f"sm_{built.capability}: {finding.detail}", diagnosis=Diagnosis(id=finding.id, text=finding.text)
            )
        for name in KERNELS:
            judge.measure(f"sm_{built.capability}: {name} registers", built.kernels[name].registers)


def compiles(built: CudaBuild) -> list[Finding]:
    """That there is code, and in it each of the five kernels under its plain name."""
    if built.error is not None:
        return [_refused(built.error)]
    missing = [name for name in KERNELS if name not in built.kernels]
    mangled = [name for name in missing if any(f"{len(name)}{name}" in other for other in built.kernels)]
    if mangled:
        detail = f"`{mangled[0]}` is there under a C++ name."
        return [Finding("not-extern-c", 'Declare the kernels extern "C", as the starter does.', detail)]
    if missing:
        return [Finding("kernel-missing", "Not every kernel of the handout is there.", f"`{missing[0]}` is missing.")]
    return []


def _refused(log: str) -> Finding:
    shown = " ".join(log.split())[:MAX_LOG]
    if any(f"{name}()" in log or f'"{name}"' in log for name in ("__shfl_xor", "__shfl", "__shfl_down", "__shfl_up")):
        text = "Shuffles without a member mask are gone since compute capability 7.0: lanes no longer run in lockstep."
        return Finding("shuffle-without-sync", text, f"the compiler says: {shown}")
    return Finding("does-not-compile", "NVRTC refuses the source.", f"the compiler says: {shown}")


def no_local_memory(kernel: CudaKernel) -> list[Finding]:
    if not kernel.local_bytes:
        return []
    text = "Values lie in local memory, which is global memory: spilled registers, or an array with a computed index."
    return [Finding("spills", text, f"`{kernel.name}` keeps {kernel.local_bytes} bytes a thread in local memory.")]


def coalesced_copy(built: CudaBuild) -> list[Finding]:
    """128-bit loads and stores, and narrower ones for what is left over."""
    kernel = built.kernels["copy_coalesced"]
    findings = no_local_memory(kernel)
    if not kernel.count("LDG.128"):
        text = "Every lane loads 4 bytes at a time (or 8); a float4 load moves four times as much an instruction."
        findings.append(Finding("scalar-loads", text, "`copy_coalesced` has no 128-bit load (LDG.E.128)."))
    elif not kernel.count("STG.128"):
        text = "The loads are wide and the stores aren't."
        findings.append(Finding("scalar-stores", text, "`copy_coalesced` has no 128-bit store (STG.E.128)."))
    elif kernel.count("LDG") == kernel.count("LDG.128") or kernel.count("STG") == kernel.count("STG.128"):
        text = "All accesses are 16 bytes wide: up to three elements at the end can't be copied."
        detail = (
            "`copy_coalesced` has no load or store narrower than 128 bits, so sizes that 4 doesn't divide go wrong."
        )
        findings.append(Finding("tail-missing", text, detail))
    return findings


def strided_copy(built: CudaBuild) -> list[Finding]:
    """One element a lane."""
    kernel = built.kernels["copy_strided"]
    findings = no_local_memory(kernel)
    if not kernel.count("LDG") or not kernel.count("STG"):
        detail = "`copy_strided` has no load from global memory, or no store to it."
        findings.append(Finding("no-memory-access", "The kernel moves nothing.", detail))
    return findings


def shuffle_reduction(kernel: CudaKernel) -> list[Finding]:
    """A butterfly over the whole warp, in registers alone."""
    findings = no_local_memory(kernel)
    if not kernel.count("SHFL"):
        detail = f"`{kernel.name}` has no shuffle (SHFL) in its code."
        findings.append(Finding("no-shuffle", "Lanes exchange nothing, or exchange it through memory.", detail))
    if kernel.count("STS", "LDS"):
        detail = f"`{kernel.name}` also goes through shared memory (STS, LDS)."
        findings.append(Finding("shared-in-shuffle", "The shuffle needs no memory.", detail))
    if kernel.active_masks:
        text = "__activemask() tells which lanes happen to be here, not which should be; name all 32."
        findings.append(Finding("mask-of-active-lanes", text, f"`{kernel.name}` asks for the active lanes."))
    return findings + _exchanges(kernel)


def _exchanges(kernel: CudaKernel) -> list[Finding]:
    """What the shuffles' constants say; one whose numbers are in registers is left to the runs on a GPU."""
    name = kernel.name
    if any(mode != "bfly" for mode, _, _ in kernel.shuffles):
        text = "Down, up and indexed shuffles leave some lanes without the result; the butterfly (xor) gives it to all."
        return [Finding("not-a-butterfly", text, f"`{name}` shuffles otherwise than by xor.")]
    if any(mask is not None and mask != FULL_MASK for _, _, mask in kernel.shuffles):
        text = "The member mask leaves lanes out; all 32 lanes are alive in the last warp too, and all must be named."
        return [Finding("mask-leaves-lanes-out", text, f"`{name}` shuffles with a mask other than 0xffffffff.")]
    offsets = {offset for _, offset, _ in kernel.shuffles}
    if any(offset is not None and offset >= 32 for offset in offsets):
        text = "An exchange over 32 lanes gives each lane its own value: a sum comes out doubled."
        return [Finding("offset-starts-at-32", text, f"`{name}` shuffles over 32 lanes.")]
    if offsets and None not in offsets and not offsets >= OFFSETS:
        text = "A butterfly over 32 lanes has the offsets 16, 8, 4, 2 and 1."
        return [Finding("step-missing", text, f"`{name}` lacks an exchange.")]
    return []


def shuffle_reductions(built: CudaBuild) -> list[Finding]:
    return [finding for name in SHUFFLES for finding in shuffle_reduction(built.kernels[name])]


def shared_reduction(built: CudaBuild) -> list[Finding]:
    """Through shared memory, with barriers, without a shuffle."""
    kernel = built.kernels[SHARED]
    findings = no_local_memory(kernel)
    if kernel.count("SHFL"):
        detail = f"`{SHARED}` shuffles; it is the one that goes through shared memory."
        findings.append(Finding("shuffle-in-shared", "The two ways can't be compared if both are the same.", detail))
    elif not kernel.count("STS") or not kernel.count("LDS"):
        detail = f"`{SHARED}` doesn't store to shared memory and load from it (STS, LDS)."
        findings.append(Finding("no-shared-memory", "Values don't go through shared memory.", detail))
    elif not kernel.barriers:
        text = "Lanes aren't in lockstep: without __syncwarp() one may read before another has written."
        findings.append(Finding("shared-without-sync", text, f"`{SHARED}` has no barrier between store and load."))
    return findings


def whole_file(built: CudaBuild) -> list[Finding]:
    """What the public check looks at: that the file compiles, moves data, and keeps it out of local memory."""
    return strided_copy(built)

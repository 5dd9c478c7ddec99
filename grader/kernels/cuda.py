"""CUDA C++ of a submission: compiled in a clean worker, launched and timed in another on a GPU, or under a profiler.

No process that any of these run in has seen the submission's Python. The judge handles cubins as bytes and never reads
them; a kernel reaches no memory of the process that launches it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grader.course import Limits
from grader.errors import InfrastructureError
from grader.sandbox.client import WorkerClient
from grader.sandbox.failures import ContractViolated
from grader.sandbox.launch import LaunchedWorker, LaunchSpec, launch
from grader.sandbox.levels import Isolation

Array = NDArray[Any]
Argument = Array | tuple[str, int]
"""An array that the kernel gets a pointer to, or a number: ("i32", 7), ("i64", 7)."""

MAX_TEXT = 2000
MAX_KERNELS = 100
NCU_METRICS = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
)
NO_COUNTERS = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True)
class CudaKernel:
    """One kernel's code.

    Attributes:
        registers, local_bytes: a thread; local memory holds spilled registers and arrays that aren't in registers.
        shared_bytes: static shared memory a block; from sm_90 on with the kilobyte that the system reserves in it.
        instructions: SASS opcode → how often it stands in the code; wide accesses also as e.g. ``LDG.128``.
        shuffles: (mode, lane offset, member mask) of each shuffle in the PTX; None where a register holds the number.
        barriers: barriers of warps and blocks in the PTX.
        active_masks: how often the PTX asks which lanes happen to be active.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    instructions: dict[str, int] = field(default_factory=dict)
    shuffles: tuple[tuple[str, int | None, int | None], ...] = ()
    barriers: int = 0
    active_masks: int = 0

    def count(self, *opcodes: str) -> int:
        """How often any of the opcodes stands in the code."""
        return sum(self.instructions.get(opcode, 0) for opcode in opcodes)


@dataclass(frozen=True)
class CudaBuild:
    """One source compiled for one compute capability.

    Attributes:
        error: the compiler's log where it refused, else None.
        kernels: by name.
    """

    capability: int
    error: str | None
    cubin: bytes = b""
    kernels: dict[str, CudaKernel] = field(default_factory=dict)


def compile_cuda(
    source: str,
    capabilities: Sequence[int],
    isolation: Isolation,
    limits: Limits,
    *,
    launcher: Callable[[LaunchSpec], LaunchedWorker] = launch,
) -> list[CudaBuild]:
    """Compile `source` for each capability; needs NVRTC or nvcc, no GPU.

    Raises:
        WorkerFailure: the compiler crashed, ran too long or out of memory. InfrastructureError: the worker doesn't
            start, or there is no compiler.
    """
    client = WorkerClient(launcher(LaunchSpec(isolation=isolation, limits=limits)), limits, "cpu")
    try:
        client.start("numpy", "cpu", modules=("cuda_compile",))
        answer = client.request(
            "cuda_compile",
            {"source": source, "capabilities": list(capabilities)},
            timeout_s=limits.compile_s,
            doing="compiling the CUDA source",
            phase="compile",
        )
    finally:
        client.close()
    try:
        return [_build(table) for table in answer]
    except (KeyError, TypeError, ValueError) as error:
        raise ContractViolated(
            f"The compiled source was not reported as a table ({error}).", phase="compile"
        ) from error


def _build(table: dict[str, Any]) -> CudaBuild:
    error = table["error"]
    kernels = [_kernel(item) for item in table["kernels"][:MAX_KERNELS]]
    cubin = table["cubin"]
    if not isinstance(cubin, np.ndarray) or cubin.dtype != np.uint8:
        raise TypeError("cubin is not a row of bytes")
    return CudaBuild(
        capability=_count(table["capability"]),
        error=None if error is None else str(error)[:MAX_TEXT],
        cubin=cubin.tobytes(),
        kernels={kernel.name: kernel for kernel in kernels},
    )


def _kernel(table: dict[str, Any]) -> CudaKernel:
    return CudaKernel(
        name=str(table["name"])[:MAX_TEXT],
        registers=_count(table["registers"]),
        local_bytes=_count(table["local_bytes"]),
        shared_bytes=_count(table["shared_bytes"]),
        instructions={str(name): _count(count) for name, count in table["instructions"].items()},
        shuffles=tuple((str(mode), _known(offset), _known(mask)) for mode, offset, mask in table["shuffles"]),
        barriers=_count(table["barriers"]),
        active_masks=_count(table["active_masks"]),
    )


def _known(value: object) -> int | None:
    return None if value is None else _count(value)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


@dataclass(frozen=True)
class CudaLaunch:
    """One launch to make.

    Attributes:
        grid, block: blocks, and threads a block.
        arguments: in the kernel's order; every array gets a buffer of its own with guard bytes around it.
    """

    kernel: str
    grid: int
    block: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class CudaResult:
    """What a launch left behind.

    Attributes:
        arrays: what each array argument holds afterwards. guards_intact: nothing around any of them was written.
        error: what the driver said when it failed, else None.
    """

    arrays: tuple[Array, ...]
    guards_intact: bool
    error: str | None


class CudaWorker:
    """A worker on the GPU that holds no submission. Use it in a `with` statement.

    Raises:
        InfrastructureError: it doesn't start, or has no CUDA bindings.
    """

    def __init__(
        self,
        isolation: Isolation,
        limits: Limits,
        *,
        launcher: Callable[[LaunchSpec], LaunchedWorker] = launch,
    ) -> None:
        self._limits = limits
        worker = launcher(LaunchSpec(isolation=isolation, limits=limits, device="cuda"))
        self._client = WorkerClient(worker, limits, "cuda")
        self._client.start("numpy", "cuda", modules=("cuda_launch",))

    def __enter__(self) -> CudaWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def device(self) -> tuple[int, int]:
        """(compute capability as one number, SMs) of the GPU.

        Raises:
            InfrastructureError: the driver isn't there or doesn't start.
        """
        answer = self._client.request(
            "cuda_device", {}, timeout_s=self._limits.call_s, doing="asking for the GPU's properties"
        )
        return int(answer["capability"]), int(answer["sms"])

    def run(self, cubin: bytes, launches: Sequence[CudaLaunch], timeout_s: float | None = None) -> list[CudaResult]:
        """Launch one after the other; ends at the first that the driver reports as failed.

        Raises:
            WorkerFailure: a kernel doesn't end within the limit, for example.
        """
        told = [
            {"kernel": item.kernel, "grid": item.grid, "block": item.block, "arguments": list(item.arguments)}
            for item in launches
        ]
        answer = self._client.request(
            "cuda_launch",
            {"cubin": np.frombuffer(cubin, np.uint8), "launches": told},
            timeout_s=timeout_s or self._limits.call_s,
            doing=f"running `{launches[0].kernel}`",
        )
        return [
            CudaResult(tuple(item["arrays"]), all(item["guards"]), item["error"])
            for item in answer  # from a worker without a submission: a malformed answer is a fault of ours
        ]

    def time(
        self,
        cubin: bytes,
        cases: Sequence[dict[str, Any]],
        *,
        buffer_bytes: int,
        warmup: int,
        repeats: int,
        timeout_s: float | None = None,
    ) -> NDArray[np.float64]:
        """Times in ms, a row a case and a column a round; see `grader.worker.cuda_launch.time` for a case's form."""
        answer = self._client.request(
            "cuda_time",
            {
                "cubin": np.frombuffer(cubin, np.uint8),
                "cases": list(cases),
                "buffer_bytes": buffer_bytes,
                "warmup": warmup,
                "repeats": repeats,
            },
            timeout_s=timeout_s or self._limits.call_s,
            doing="timing kernels",
        )
        return np.asarray(answer, dtype=np.float64)


class NoCounters(Exception):
    """The profiler can't read the counters here; the message says why, by the driver's name where it has one."""


def capture_with_ncu(cubin: bytes, timeout_s: float) -> str:
    """What ``ncu --csv`` prints about the copies, launched by a process of the course's that loads only the cubin.

    ncu doesn't work behind the sandbox (it attaches to its target and opens the driver's counters), so this runs
    beside the judge. The target's host code is `grader.worker.cuda_launch`, and of the student's only GPU code runs.

    Raises:
        NoCounters: ncu isn't there, isn't allowed to read counters, or prints no table.
        InfrastructureError: it doesn't come back within `timeout_s`.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise NoCounters("Nsight Compute (`ncu`) isn't on the PATH")
    with tempfile.TemporaryDirectory(prefix="ncu-") as folder:
        file = Path(folder) / "kernels.cubin"
        file.write_bytes(cubin)
        command = [ncu, "--clock-control", "none", "--csv", "--metrics", ",".join(NCU_METRICS)]
        command += [sys.executable, "-P", "-s", "-m", "grader.worker.cuda_launch", str(file)]
        package = Path(__file__).resolve().parents[2]
        environment = {**os.environ, "PYTHONPATH": str(package), "TMPDIR": folder}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(f"ncu didn't come back within {timeout_s:g} s.") from error
    said = done.stdout + done.stderr
    if NO_COUNTERS in said:
        raise NoCounters(
            f"the driver keeps its performance counters from this user ({NO_COUNTERS}): run as root, or load the "
            "driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if '"Metric Name"' not in done.stdout:
        told = [line for line in said.splitlines() if "==ERROR==" in line] or said.splitlines()[-1:]
        raise NoCounters(f"ncu printed no table: {' '.join(told)[:300] or 'nothing'}")
    return done.stdout

"""Course code: compiles kernels.cu with NVRTC and runs it on your GPU. You needn't change it; graders use their own.

    python launch.py try         results at a few sizes against NumPy
    python launch.py bench       shuffle against shared memory -> warp_bench.csv
    python launch.py profile     the launches of a capture: one copy_strided at each stride, then copy_coalesced
    ncu --clock-control none --csv --metrics METRICS python launch.py profile > ncu_copy.csv

METRICS is printed by ``python launch.py metrics``. Needs a GPU and the packages cuda-bindings and nvidia-cuda-nvrtc.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
METRICS = (
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
)
CAPTURE_STRIDES = (1, 2, 8, 32)
CAPTURE_ELEMENTS = 1 << 18
BLOCK_THREADS = 256
BENCH_ROUNDS = 2048
BENCH_REPEATS = 31
COLUMNS = ("kernel", "blocks", "threads", "rounds", "repeats", "median_us", "iqr_us", "ns_per_reduction", "correct")


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a call of the bindings; raises RuntimeError with the error's name."""
    if int(result[0]) != 0:
        raise RuntimeError(str(result[0]))
    values = result[1:]
    return values[0] if len(values) == 1 else values


class Gpu:
    """The first GPU, with kernels.cu compiled for it and loaded."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        checked(driver.cuInit(0))
        device = checked(driver.cuDeviceGet(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
        kinds = driver.CUdevice_attribute
        major, minor, self.sms = (
            int(checked(driver.cuDeviceGetAttribute(kind, device)))
            for kind in (
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        source = (HERE / "kernels.cu").read_text(encoding="utf-8")
        cubin = np.frombuffer(compile_source(source, 10 * major + minor), np.uint8)
        self.module = checked(driver.cuModuleLoadData(cubin.ctypes.data))

    def upload(self, array: np.ndarray) -> int:
        address = checked(self.driver.cuMemAlloc(array.nbytes))
        checked(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return int(address)

    def download(self, address: int, like: np.ndarray) -> np.ndarray:
        result = np.empty_like(like)
        checked(self.driver.cuMemcpyDtoH(result.ctypes.data, address, result.nbytes))
        return result

    def launch(self, kernel: str, blocks: int, *arguments: np.generic) -> None:
        """`arguments` in the kernel's order: np.uint64 for a pointer, np.int64 and np.int32 for numbers."""
        function = checked(self.driver.cuModuleGetFunction(self.module, kernel.encode()))
        held = [np.array(argument) for argument in arguments]
        places = np.array([argument.ctypes.data for argument in held], dtype=np.uint64)
        checked(self.driver.cuLaunchKernel(function, blocks, 1, 1, BLOCK_THREADS, 1, 1, 0, 0, places.ctypes.data, 0))

    def synchronize(self) -> None:
        checked(self.driver.cuCtxSynchronize())

    def times_us(self, kernel: str, blocks: int, *arguments: np.generic) -> np.ndarray:
        """Times of `BENCH_REPEATS` launches after three for warming up."""
        driver = self.driver
        start, end = (checked(driver.cuEventCreate(0)) for _ in range(2))
        times = []
        for _ in range(BENCH_REPEATS + 3):
            checked(driver.cuEventRecord(start, 0))
            self.launch(kernel, blocks, *arguments)
            checked(driver.cuEventRecord(end, 0))
            checked(driver.cuEventSynchronize(end))
            times.append(1000 * float(checked(driver.cuEventElapsedTime(start, end))))
        return np.array(times[3:])


def compile_source(source: str, capability: int) -> bytes:
    """A cubin for that compute capability (90 for 9.0); exits with the compiler's log where it refuses."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{capability}".encode(), b"--std=c++17"]
    (outcome,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if outcome != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(log.rstrip(b"\0").decode(errors="replace"))
    cubin = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def run(gpu: Gpu, kernel: str, src: np.ndarray, n: int, *more: np.generic) -> np.ndarray:
    """dst of one launch that covers n elements; it holds NaN beforehand."""
    empty = np.full(n, np.nan, dtype=np.float32)
    source, target = gpu.upload(src), gpu.upload(empty)
    gpu.launch(kernel, -(-n // BLOCK_THREADS), np.uint64(source), np.uint64(target), np.int64(n), *more)
    gpu.synchronize()
    return gpu.download(target, empty)


def grouped(src: np.ndarray, kernel: str) -> np.ndarray:
    """What the reductions should give: each element its group's sum or maximum."""
    parts = [src[first : first + 32] for first in range(0, len(src), 32)]
    reduce = np.max if kernel == "warp_max_shuffle" else np.sum
    return np.concatenate([np.full(len(part), reduce(part), dtype=np.float32) for part in parts])


def try_sizes(gpu: Gpu) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 31, 32, 33, 1001):
        src = -rng.integers(1, 100, 3 * n).astype(np.float32)
        results = {
            "copy_coalesced": (run(gpu, "copy_coalesced", src, n), src[:n]),
            "copy_strided": (run(gpu, "copy_strided", src, n, np.int64(3)), src[::3]),
            "warp_sum_shuffle": (run(gpu, "warp_sum_shuffle", src, n, np.int32(1)), grouped(src[:n], "")),
            "warp_sum_shared": (run(gpu, "warp_sum_shared", src, n, np.int32(1)), grouped(src[:n], "")),
            "warp_max_shuffle": (run(gpu, "warp_max_shuffle", src, n), grouped(src[:n], "warp_max_shuffle")),
        }
        for kernel, (got, want) in results.items():
            print(f"{kernel}, n = {n}: {'right' if np.array_equal(got, want) else 'WRONG'}")


def bench(gpu: Gpu) -> None:
    """One row a kernel; its time a reduction is that of `BENCH_ROUNDS` rounds less that of one."""
    blocks = 8 * gpu.sms
    n = blocks * BLOCK_THREADS
    src = np.ones(n, dtype=np.float32)
    rows = []
    for kernel in ("warp_sum_shuffle", "warp_sum_shared"):
        correct = bool((run(gpu, kernel, src, n, np.int32(BENCH_ROUNDS)) == 32).all())
        source, target = gpu.upload(src), gpu.upload(src)
        arguments = (np.uint64(source), np.uint64(target), np.int64(n))
        once = np.median(gpu.times_us(kernel, blocks, *arguments, np.int32(1)))
        times = gpu.times_us(kernel, blocks, *arguments, np.int32(BENCH_ROUNDS + 1))
        low, middle, high = np.percentile(times, [25, 50, 75])
        each = 1000 * (middle - once) / BENCH_ROUNDS
        figures = (f"{middle:.3f}", f"{high - low:.3f}", f"{each:.4f}")
        rows.append((kernel, blocks, BLOCK_THREADS, BENCH_ROUNDS, BENCH_REPEATS, *figures, "yes" if correct else "no"))
    with open(HERE / "warp_bench.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    print((HERE / "warp_bench.csv").read_text(encoding="utf-8"), end="")


def profile(gpu: Gpu) -> None:
    n = CAPTURE_ELEMENTS
    source = gpu.upload(np.ones(n * max(CAPTURE_STRIDES), dtype=np.float32))
    target = gpu.upload(np.ones(n, dtype=np.float32))
    arguments = (np.uint64(source), np.uint64(target), np.int64(n))
    for stride in CAPTURE_STRIDES:
        gpu.launch("copy_strided", n // BLOCK_THREADS, *arguments, np.int64(stride))
    gpu.launch("copy_coalesced", n // 4 // BLOCK_THREADS, *arguments)
    gpu.synchronize()


def main() -> None:
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    if command == "metrics":
        print(",".join(METRICS))
        return
    commands = {"try": try_sizes, "bench": bench, "profile": profile}
    if command not in commands:
        sys.exit(__doc__)
    commands[command](Gpu())


if __name__ == "__main__":
    main()

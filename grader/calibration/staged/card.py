"""Measures the GPU that it runs on. Staged and called in a worker of its own; nothing of a submission is near.

Rates are medians over windows of some 10 ms between CUDA events, after a window that is thrown away.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable

import torch

ATTRIBUTES = {
    "clock_khz": 13,
    "sms": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "max_threads_per_sm": 39,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_bytes_per_sm": 81,
    "registers_per_sm": 82,
    "shared_bytes_per_block": 97,
    "max_blocks_per_sm": 106,
}
"""Numbers of CUdevice_attribute (CUDA driver API)."""
WINDOWS = 15
WINDOW_MS = 10.0
MIB = 1 << 20
FOOTPRINTS_MIB = (2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 512)


def attributes() -> dict[str, int]:
    """What the driver says of device 0; an attribute that it doesn't know is 0."""
    torch.cuda.init()
    driver = ctypes.CDLL("libcuda.so.1")
    device = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device()) != 0:
        raise RuntimeError("the CUDA driver knows no device 0")
    found = {}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        failed = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        found[name] = 0 if failed else value.value
    return found


def versions() -> dict[str, str]:
    return {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}


def _seconds(call: Callable[[], object]) -> float:
    """Seconds of one call: the median of the windows' means."""
    call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def window(calls: int) -> float:
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / calls

    calls = max(1, int(WINDOW_MS / max(window(1), 1e-3)))
    times = [window(calls) for _ in range(WINDOWS + 1)]
    return statistics.median(times[1:]) * 1e-3


def copy_gbs() -> float:
    """GB/s of a device copy, bytes read plus bytes written, far larger than any cache."""
    free, _ = torch.cuda.mem_get_info()
    size = min(free // 4, 4 << 30) // 16 * 16
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return float(2 * size) / _seconds(lambda: target.copy_(source)) / 1e9


def gemm_tflops(dtype: str, size: int) -> float:
    """TFLOP/s of a square product of random matrices, `size`³, with float32 accumulation.

    Raises:
        RuntimeError: this card or this torch has no product of that dtype.
    """
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    left, right = (torch.randn(size, size, device="cuda") for _ in range(2))
    if dtype == "float8":
        one = torch.ones((), device="cuda")
        a, b = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
        return _tflops(lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16), size)
    if dtype in ("float16", "bfloat16"):
        left, right = (matrix.to(getattr(torch, dtype)) for matrix in (left, right))
    return _tflops(lambda: left @ right, size)


def _tflops(product: Callable[[], object], size: int) -> float:
    return 2.0 * size**3 / _seconds(product) / 1e12


def cached_copies() -> list[list[float]]:
    """[MiB that a copy touches, GB/s] of copies replayed from a CUDA graph, so that launches don't count."""
    rows = []
    for footprint in FOOTPRINTS_MIB:
        source = torch.empty(footprint * MIB // 2, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        copies = max(4, 1024 // footprint)
        target.copy_(source)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(copies):
                target.copy_(source)
        seconds = _seconds(graph.replay) / copies
        rows.append([float(footprint), footprint * MIB / seconds / 1e9])
        del graph, source, target
    return rows

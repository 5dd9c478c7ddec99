"""Loads a cubin and launches its kernels, through the driver API. Runs in a worker that has no submission.

A kernel can't touch this process's memory, so what is read back and the times of the events are the grader's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from .capture_plan import BLOCK_THREADS, ELEMENTS, STRIDES

JSON = Any
GUARD_BYTES = 4096
GUARD = 0xA5
SCALARS: dict[str, type[np.generic]] = {"i32": np.int32, "i64": np.int64}


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a driver call, None where it gives none.

    Raises:
        RuntimeError: it failed.
    """
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        name = driver.cuGetErrorName(result[0])[1]
        raise RuntimeError(f"the CUDA driver answered {name.decode() if isinstance(name, bytes) else result[0]}")
    values = result[1:]
    return values[0] if len(values) == 1 else values or None


def describe() -> JSON:
    """The first GPU: capability (90 for compute capability 9.0) and sms."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    kinds = driver.CUdevice_attribute
    major, minor, sms = (
        int(checked(driver.cuDeviceGetAttribute(kind, device)))
        for kind in (
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        )
    )
    return {"capability": 10 * major + minor, "sms": sms}


class Device:
    """The first GPU with one cubin loaded; made once a request, given back by `close`."""

    def __init__(self, cubin: bytes) -> None:
        checked(driver.cuInit(0))
        self._device = checked(driver.cuDeviceGet(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(self._device))))
        image = np.frombuffer(cubin, np.uint8)
        self._module = checked(driver.cuModuleLoadData(image.ctypes.data))
        self._allocated: list[Any] = []

    def close(self) -> None:
        """Give memory and module back; a context that a kernel broke gives nothing back, and ends with the process."""
        for pointer in self._allocated:
            driver.cuMemFree(pointer)
        driver.cuModuleUnload(self._module)
        driver.cuDevicePrimaryCtxRelease(self._device)

    def allocate(self, size: int) -> int:
        """Address of `size` bytes, aligned to 256."""
        pointer = checked(driver.cuMemAlloc(size))
        self._allocated.append(pointer)
        return int(pointer)

    def upload(self, address: int, data: np.ndarray) -> None:
        checked(driver.cuMemcpyHtoD(address, data.ctypes.data, data.nbytes))

    def download(self, address: int, into: np.ndarray) -> None:
        checked(driver.cuMemcpyDtoH(into.ctypes.data, address, into.nbytes))

    def fill(self, address: int, size: int) -> None:
        """Normal float32 numbers: memory that holds zeros draws less power and may be compressed."""
        words = np.random.default_rng(4).standard_normal(min(size // 4, 1 << 20), dtype=np.float32)
        self.upload(address, words)
        filled = words.nbytes
        while filled < size:
            more = min(filled, size - filled)
            checked(driver.cuMemcpyDtoD(address + filled, address, more))
            filled += more

    def prepare(self, kernel: str, grid: int, block: int, arguments: list[np.ndarray]) -> Callable[[], None]:
        """What starts the kernel on the default stream and does nothing else, so that a timed window holds no more.

        Args:
            arguments: 0-d arrays of the parameters' types.
        """
        function = checked(driver.cuModuleGetFunction(self._module, kernel.encode()))
        places = np.array([argument.ctypes.data for argument in arguments], dtype=np.uint64)

        def start() -> None:
            # `arguments` lives as long as this closure: the driver reads the values at the launch.
            assert len(arguments) == len(places)
            checked(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, 0, places.ctypes.data, 0))

        return start

    def launch(self, kernel: str, grid: int, block: int, arguments: list[np.ndarray]) -> None:
        """Start a kernel at once."""
        self.prepare(kernel, grid, block, arguments)()

    def synchronize(self) -> None:
        checked(driver.cuCtxSynchronize())


def scalar(kind: str, value: int) -> np.ndarray:
    """A kernel parameter: ``i32``, ``i64``."""
    return np.array(value, dtype=SCALARS[kind])


def pointer(address: int) -> np.ndarray:
    return np.array(address, dtype=np.uint64)


def run(cubin: np.ndarray, launches: list[JSON]) -> list[JSON]:
    """Launch one kernel after the other, each on buffers of its own with guard bytes around them.

    Args:
        launches: tables with kernel, grid and block (numbers of blocks and threads), and arguments: a list of
            arrays and of ["i32" or "i64", value].

    Returns:
        a table a launch: arrays (what each array argument holds afterwards), guards (for each, whether the bytes around
        it are as they were) and error (None, or what the driver said; later launches aren't tried then).
    """
    device = Device(cubin.tobytes())
    answers: list[JSON] = []
    try:
        for launch in launches:
            answers.append(_guarded_launch(device, launch))
            if answers[-1]["error"] is not None:
                break
    finally:
        device.close()
    return answers


def _guarded_launch(device: Device, launch: JSON) -> JSON:
    arguments: list[np.ndarray] = []
    held: list[tuple[int, np.ndarray, np.ndarray]] = []  # address, array, its image with the guards
    for argument in launch["arguments"]:
        if not isinstance(argument, np.ndarray):
            arguments.append(scalar(argument[0], argument[1]))
            continue
        image = np.full(argument.nbytes + 2 * GUARD_BYTES, GUARD, dtype=np.uint8)
        image[GUARD_BYTES : GUARD_BYTES + argument.nbytes] = np.ascontiguousarray(argument).reshape(-1).view(np.uint8)
        address = device.allocate(image.nbytes)
        device.upload(address, image)
        arguments.append(pointer(address + GUARD_BYTES))
        held.append((address, argument, image))
    try:
        device.launch(launch["kernel"], launch["grid"], launch["block"], arguments)
        device.synchronize()
        arrays, guards = [], []
        for address, array, image in held:
            device.download(address, image)
            inner = image[GUARD_BYTES : GUARD_BYTES + array.nbytes]
            arrays.append(inner.view(array.dtype).reshape(array.shape).copy())
            outer = np.concatenate([image[:GUARD_BYTES], image[GUARD_BYTES + array.nbytes :]])
            guards.append(bool((outer == GUARD).all()))
    except RuntimeError as problem:
        return {"arrays": [], "guards": [], "error": str(problem)}
    return {"arrays": arrays, "guards": guards, "error": None}


def time(cubin: np.ndarray, cases: list[JSON], buffer_bytes: int, warmup: int, repeats: int) -> list[list[float]]:
    """Times of several cases, round after round, so that heat and clocks touch all alike.

    Args:
        cases: tables with kernel (``memcpy`` for the driver's device-to-device copy of `bytes`), grid, block and
            arguments: ``"src"``, ``"dst"`` and ["i32" or "i64", value].
        buffer_bytes: size of src and of dst; well above the L2 cache, so that every launch finds it cold.

    Returns:
        a list a case of `repeats` times by CUDA events, in ms.
    """
    device = Device(cubin.tobytes())
    try:
        src, dst = device.allocate(buffer_bytes), device.allocate(buffer_bytes)
        device.fill(src, buffer_bytes)
        device.fill(dst, buffer_bytes)
        start, end = (checked(driver.cuEventCreate(0)) for _ in range(2))
        prepared = [_timed_work(device, case, src, dst) for case in cases]
        times: list[list[float]] = [[] for _ in cases]
        for round_number in range(warmup + repeats):
            for place, work in enumerate(prepared):
                checked(driver.cuEventRecord(start, 0))
                work()
                checked(driver.cuEventRecord(end, 0))
                checked(driver.cuEventSynchronize(end))
                if round_number >= warmup:
                    times[place].append(float(checked(driver.cuEventElapsedTime(start, end))))
        return times
    finally:
        device.close()


def _timed_work(device: Device, case: JSON, src: int, dst: int) -> Callable[[], None]:
    """What a round does for one case."""
    if case["kernel"] == "memcpy":
        size = case["bytes"]
        return lambda: checked(driver.cuMemcpyDtoDAsync(dst, src, size, 0))
    arguments = [_timed_argument(argument, src, dst) for argument in case["arguments"]]
    return device.prepare(case["kernel"], case["grid"], case["block"], arguments)


def _timed_argument(argument: Any, src: int, dst: int) -> np.ndarray:
    if argument == "src":
        return pointer(src)
    if argument == "dst":
        return pointer(dst)
    return scalar(argument[0], argument[1])


def profile(cubin: bytes) -> None:
    """The launches that a capture of the copies holds: copy_strided with each of `STRIDES`, then copy_coalesced."""
    device = Device(cubin)
    src, dst = device.allocate(4 * ELEMENTS * max(STRIDES)), device.allocate(4 * ELEMENTS)
    for stride in STRIDES:
        arguments = [pointer(src), pointer(dst), scalar("i64", ELEMENTS), scalar("i64", stride)]
        device.launch("copy_strided", ELEMENTS // BLOCK_THREADS, BLOCK_THREADS, arguments)
    arguments = [pointer(src), pointer(dst), scalar("i64", ELEMENTS)]
    device.launch("copy_coalesced", ELEMENTS // 4 // BLOCK_THREADS, BLOCK_THREADS, arguments)
    device.synchronize()
    device.close()


if __name__ == "__main__":
    profile(Path(sys.argv[1]).read_bytes())

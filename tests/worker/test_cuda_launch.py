"""The launcher on a driver made of NumPy: arguments arrive, guards are watched, times come out, errors are named."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

OK, BAD = 0, 700


class FakeDriver(ModuleType):
    """As much of `cuda.bindings.driver` as the launcher uses; device memory is host memory at its true address."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=OK)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="sms",
    )

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.memory: dict[int, np.ndarray] = {}
        self.launches: list[tuple[str, int, int]] = []
        self.clock = 0.0
        self.spill = 0
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if name in ("cuInit", "cuCtxSetCurrent", "cuModuleUnload", "cuDevicePrimaryCtxRelease", "cuEventSynchronize"):
            return lambda *_: (OK,)
        if name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuModuleLoadData"):
            return lambda *_: (OK, 1)
        raise AttributeError(name)

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:
        return OK, b"CUDA_ERROR_ILLEGAL_ADDRESS"

    def cuDeviceGetAttribute(self, kind: str, device: int) -> tuple[int, int]:
        return OK, {"major": 9, "minor": 0, "sms": 132}[kind]

    def cuMemAlloc(self, size: int) -> tuple[int, int]:
        block = np.zeros(size, np.uint8)
        self.memory[block.ctypes.data] = block
        return OK, block.ctypes.data

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (OK,)

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> tuple[int]:
        ctypes.memmove(to, source, size)
        return (OK,)

    cuMemcpyDtoH = cuMemcpyDtoD = cuMemcpyHtoD

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: int) -> tuple[int]:
        self.clock += 2.0
        return self.cuMemcpyHtoD(to, source, size)

    def cuModuleGetFunction(self, module: int, name: bytes) -> tuple[int, str]:
        return OK, name.decode()

    def cuLaunchKernel(self, function: str, gx: int, gy: int, gz: int, bx: int, *rest: int) -> tuple[int]:
        places = rest[-2]
        self.launches.append((function, gx, bx))
        self.clock += 3.0
        # The kernels here copy: (src, dst, n, stride or rounds).
        pointers = ctypes.cast(places, ctypes.POINTER(ctypes.c_void_p))
        src, dst, n = (ctypes.cast(pointers[i], ctypes.POINTER(ctypes.c_int64))[0] for i in range(3))
        source = np.ctypeslib.as_array(ctypes.cast(src, ctypes.POINTER(ctypes.c_float)), (n,))
        target = np.ctypeslib.as_array(ctypes.cast(dst, ctypes.POINTER(ctypes.c_float)), (n + self.spill,))
        target[:n] = source
        target[n:] = 0
        return (OK,)

    def cuCtxSynchronize(self) -> tuple[int]:
        return (BAD if self.broken else OK,)

    def cuEventCreate(self, flags: int) -> tuple[int, list[float]]:
        return OK, [0.0]

    def cuEventRecord(self, event: list[float], stream: int) -> tuple[int]:
        event[0] = self.clock
        return (OK,)

    def cuEventElapsedTime(self, start: list[float], end: list[float]) -> tuple[int, float]:
        return OK, end[0] - start[0]


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def launcher(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    bindings = ModuleType("cuda.bindings")
    bindings.driver = driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    sys.modules.pop("grader.worker.cuda_launch", None)
    yield importlib.import_module("grader.worker.cuda_launch")
    sys.modules.pop("grader.worker.cuda_launch", None)


def copy_of(n: int) -> dict[str, Any]:
    src, dst = np.arange(n, dtype=np.float32), np.full(n, np.nan, np.float32)
    return {"kernel": "copy_coalesced", "grid": 3, "block": 256, "arguments": [src, dst, ["i64", n]]}


CUBIN = np.frombuffer(b"cubin", np.uint8)


def test_device_is_described(launcher: Any) -> None:
    assert launcher.describe() == {"capability": 90, "sms": 132}


@pytest.mark.parametrize("n", [1, 33, 1000])
def test_arguments_arrive_and_results_come_back(launcher: Any, driver: FakeDriver, n: int) -> None:
    (answer,) = launcher.run(CUBIN, [copy_of(n)])
    assert answer["error"] is None
    np.testing.assert_array_equal(answer["arrays"][1], np.arange(n, dtype=np.float32))
    assert answer["guards"] == [True, True]
    assert driver.launches == [("copy_coalesced", 3, 256)]
    assert driver.memory == {}


def test_write_behind_an_array_is_seen(launcher: Any, driver: FakeDriver) -> None:
    driver.spill = 1
    (answer,) = launcher.run(CUBIN, [copy_of(33)])
    assert answer["guards"] == [True, False]


def test_error_of_the_driver_ends_the_launches(launcher: Any, driver: FakeDriver) -> None:
    driver.broken = True
    answers = launcher.run(CUBIN, [copy_of(3), copy_of(3)])
    assert [answer["error"] for answer in answers] == ["the CUDA driver answered CUDA_ERROR_ILLEGAL_ADDRESS"]


def test_cases_are_timed_in_turns(launcher: Any, driver: FakeDriver) -> None:
    cases = [
        {"kernel": "memcpy", "grid": 0, "block": 0, "bytes": 4096, "arguments": []},
        {"kernel": "copy_coalesced", "grid": 4, "block": 256, "arguments": ["src", "dst", ["i64", 1024]]},
    ]
    assert launcher.time(CUBIN, cases, 1 << 14, 1, 3) == [[2.0] * 3, [3.0] * 3]
    assert len(driver.launches) == 4


def test_capture_makes_the_planned_launches(launcher: Any, driver: FakeDriver) -> None:
    plan = importlib.import_module("grader.worker.capture_plan")
    launcher.profile(b"cubin")
    assert [name for name, *_ in driver.launches] == ["copy_strided"] * len(plan.STRIDES) + ["copy_coalesced"]
    assert driver.launches[-1] == ("copy_coalesced", plan.ELEMENTS // 4 // 256, 256)

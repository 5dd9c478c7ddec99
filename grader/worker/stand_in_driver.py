"""A Triton driver for a GPU that isn't there: says what target to compile for, launches nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from .gpu_target import Target, capability_of

WARP_SIZE = 32


class StandInDriver(DriverBase):  # type: ignore[misc]
    """Answers from a target table (see `gpu_target`)."""

    def __init__(self, target: Target, device: str) -> None:
        self._capability = capability_of(target)
        self._device = device
        limits = {
            "max_shared_mem": target["shared_kib_per_block"] * 1024,
            "max_num_regs": target["registers_per_sm"],
            "multiprocessor_count": target["sms"],
            "warpSize": WARP_SIZE,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda device: dict(limits))

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 10 * self._capability[0] + self._capability[1], WARP_SIZE)

    def get_active_torch_device(self) -> torch.device:
        return torch.device(self._device)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one device only."""

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self._capability

    def get_benchmarker(self) -> Any:
        """Asked for by `@triton.autotune`, whose candidates are recorded, or the first of them taken."""
        raise RuntimeError("kernels can't be timed without a GPU")

    get_empty_cache_for_benchmark = get_benchmarker

"""Answers of `torch.cuda` on a machine without a GPU, taken from a hardware profile.

`fake_cuda` is for provided scripts in Triton's interpreter: what is asked for on "cuda" is made on the CPU. The
recorder uses the same answers, with tensors of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime import driver

from .gpu_target import Target, capability_of
from .stand_in_driver import StandInDriver


def properties(target: Target) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` returns, under torch's names."""
    major, minor = capability_of(target)
    return SimpleNamespace(
        name=target["title"],
        major=major,
        minor=minor,
        total_memory=int(target["memory_gib"] * 2**30),
        multi_processor_count=target["sms"],
        L2_cache_size=int(target["l2_mib"] * 2**20),
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=target["shared_kib_per_block"] * 1024,
        shared_memory_per_multiprocessor=target["shared_kib_per_sm"] * 1024,
        regs_per_multiprocessor=target["registers_per_sm"],
        max_threads_per_multi_processor=target["max_threads_per_sm"],
        max_threads_per_block=1024,
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid="GPU-00000000-0000-0000-0000-000000000000",
    )


CUDA_VERSION = "13.0"
"""Of the CUDA that a torch without any is taken to be built for."""


class _Stream:
    """A stream on which nothing ever waits: there are no launches, or they are recorded in the order of the program."""

    cuda_stream = 0
    stream_id = 0
    device_index = 0
    device = torch.device("cuda", 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    wait_stream = wait_event = __init__

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *details: object) -> None:
        return None


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    record = wait = __init__

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        return 0.0


class _Guard:
    """Stands in for `torch.cuda.device`, `device_of` and `stream`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Guard:
        return self

    def __exit__(self, *details: object) -> None:
        return None


class OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Sends what is asked for on "cuda" to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0].to("cpu")
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if name == "to":
            args = tuple("cpu" if is_cuda(argument) else argument for argument in args)
        if name != "pin_memory":
            kwargs.pop("pin_memory", None)
        return args[0] if name == "pin_memory" else func(*args, **kwargs)


def is_cuda(device: Any) -> bool:
    """Whether that names a GPU, as torch takes it."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")


def answers(target: Target) -> dict[str, Any]:
    """Attributes of `torch.cuda` by name."""
    known = properties(target)
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: known.name,
        "get_device_capability": lambda device=None: (known.major, known.minor),
        "get_device_properties": lambda device=None: known,
        "is_bf16_supported": lambda including_emulation=True: known.major >= 8,
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: (known.total_memory, known.total_memory),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "is_current_stream_capturing": lambda: False,
        "get_arch_list": lambda: [f"sm_{known.major}{known.minor}"],
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "device": _Guard,
        "device_of": _Guard,
        "stream": _Guard,
        "Stream": _Stream,
        "Event": _Event,
    }


@contextmanager
def fake_cuda(target: Target) -> Iterator[None]:
    """`torch.cuda` and Triton's driver answer from `target` in the block; tensors are on the CPU."""
    with ExitStack() as stack:
        answer_from(stack, target, StandInDriver(target, "cpu"))
        stack.enter_context(OnCpu())
        yield


def answer_from(stack: ExitStack, target: Target, stand_in: StandInDriver) -> None:
    """`torch.cuda` and Triton's driver answer from `target` until `stack` ends."""
    for name, answer in answers(target).items():
        stack.callback(setattr, torch.cuda, name, getattr(torch.cuda, name))
        setattr(torch.cuda, name, answer)
    if torch.version.cuda is None:
        stack.callback(setattr, torch.version, "cuda", None)
        torch.version.cuda = CUDA_VERSION
    stack.callback(setattr, driver, "_active", driver._active)
    driver.set_active(stand_in)

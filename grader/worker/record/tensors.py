"""Tensors on a GPU that isn't there: dtype, shape, strides and an aligned address, but no data."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from .history import History
from .values import Origin, Refused, Value, dtype_name

_GUARDS_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"
_ABSENT = object()


@dataclass(frozen=True, eq=False)
class Description:
    """A tensor argument without its numbers.

    Attributes:
        dtype: "bfloat16". strides, offset: in elements.
        values: the numbers in C order, of a tensor of integers that the launcher may read.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    values: np.ndarray[Any, Any] | None = None


def twin_of(given: Description, name: str, history: History, *, protected: bool) -> FakeTensor:
    """The data-free tensor that stands for an argument on cuda:0; call inside `data_free`.

    Args:
        protected: whether the call must leave it as it is.
    """
    dtype = getattr(torch, given.dtype)
    extent = given.offset + 1 + sum((s - 1) * t for s, t in zip(given.shape, given.strides, strict=True))
    with torch.utils._python_dispatch._disable_current_modes(), history.fake_mode, torch.no_grad():
        base = torch.empty(extent if 0 not in given.shape else given.offset, dtype=dtype, device="cuda:0")
        twin = torch.as_strided(base, given.shape, given.strides, given.offset)
    step = history.argument(name)
    value = history.define(twin, step)
    value.memory.protected = protected
    if given.values is not None:
        with torch.utils._python_dispatch._disable_current_modes():
            value.known = torch.from_numpy(np.array(given.values).reshape(given.shape)).to(dtype)
    return twin.requires_grad_(True) if given.requires_grad else twin


def known_values(tensor: torch.Tensor, history: History) -> torch.Tensor | None:
    """The numbers that the launcher made itself, if nothing else can have written since."""
    value: Value | None = getattr(tensor, "recorded", None)
    if value is None or value.known is None or value.memory.lost or value.memory.unread == history.call:
        return None
    return value.known


def reading(tensor: Any, what: str, history: History) -> Refused:
    """The error of who asks for numbers that only the device holds."""
    value: Value | None = getattr(tensor, "recorded", None)
    origin: Origin | None = value.memory.origin if value is not None else None
    whose = f" It holds numbers of {origin.text}." if origin is not None else ""
    shape = f"a {dtype_name(tensor.dtype)} tensor of shape {tuple(tensor.shape)}" if value is not None else "a tensor"
    return Refused(
        history.where(),
        f"{what} reads the numbers of {shape}.{whose} A launcher decides by shapes, dtypes and strides; the host never "
        "sees what the device holds.",
    )


def _methods(history: History) -> dict[str, Any]:
    """What data-free tensors answer in place of a FakeTensor's own methods."""

    def data_ptr(self: FakeTensor) -> int:
        return history.address_of(self)

    def shown(self: FakeTensor) -> str:
        known = known_values(self, history)
        if known is not None:
            with torch.utils._python_dispatch._disable_current_modes():
                return repr(known)
        history.note(f"{history.where()}: a tensor was printed; only its shape, dtype and device are known here.")
        return (
            f"tensor(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}', "
            "no numbers: the host never sees what the device holds)"
        )

    def formatted(self: FakeTensor, specification: str) -> str:
        known = known_values(self, history)
        if known is None:
            return shown(self)
        with torch.utils._python_dispatch._disable_current_modes():
            return format(known, specification)

    def numbers(self: FakeTensor, what: str) -> torch.Tensor:
        known = known_values(self, history)
        if known is None:
            raise reading(self, what, history)
        return known.detach().clone()

    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            return numbers(self, "Tensor.numpy()").numpy()

    def array(self: FakeTensor, dtype: Any = None, copy: Any = None) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            found = numbers(self, "NumPy").numpy()
        return found if dtype is None else found.astype(dtype)

    def tolist(self: FakeTensor) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            return numbers(self, "Tensor.tolist()").tolist()

    def copied(self: FakeTensor, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.detach().clone())  # torch's own would copy storages.

    return {
        "data_ptr": data_ptr,
        "__repr__": shown,
        "__format__": formatted,
        "numpy": numpy,
        "__array__": array,
        "tolist": tolist,
        "__deepcopy__": copied,
    }


@contextmanager
def data_free(history: History) -> Iterator[None]:
    """In the block data-free tensors have an address, can be printed, and give only numbers that are known."""
    replaced = _methods(history)
    _lend_device_guard()
    before = {name: FakeTensor.__dict__.get(name, _ABSENT) for name in replaced}
    start_context = fake_tensor.init_gpu_context
    # torch's CUDA build would start the driver for the first tensor on "cuda", and there may be none in this sandbox.
    fake_tensor.init_gpu_context = _start_no_context
    for name, method in replaced.items():
        setattr(FakeTensor, name, method)
    try:
        with history.fake_mode:
            yield
    finally:
        fake_tensor.init_gpu_context = start_context
        for name, method in before.items():
            if method is _ABSENT:
                delattr(FakeTensor, name)
            else:
                setattr(FakeTensor, name, method)


def _start_no_context(device: torch.device) -> None:
    """Stands in for `torch._subclasses.fake_tensor.init_gpu_context`."""


def _lend_device_guard() -> None:
    """Give torch's CPU build a CUDA device guard: the do-nothing guard of the meta device.

    Indexing and `.contiguous()` set the device in C++ before a FakeTensor sees them, and the CPU build has no guard for
    CUDA at all (torch's own `_ensureCUDADeviceGuardSet` helps only a CUDA build without a GPU).
    """
    torch._C._ensureCUDADeviceGuardSet()
    kinds = torch._C._autograd.DeviceType
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    registry = (ctypes.c_void_p * (int(kinds.Meta) + 1)).in_dll(ctypes.CDLL(str(library)), _GUARDS_SYMBOL)
    if not registry[int(kinds.CUDA)]:
        registry[int(kinds.CUDA)] = registry[int(kinds.Meta)]

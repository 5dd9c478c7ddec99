"""Tensors on a GPU that isn't there: no data, but device, strides, an aligned address, and integers' values.

Float tensors carry nothing. Small integer tensors (lengths, block tables) keep their values beside them, so that a
launcher may ask for ``context_lens.max().item()``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from .own_operations import python_behind

MAX_KNOWN_ELEMENTS = 1 << 20
ALLOCATION_ALIGNMENT = 512
"""torch's CUDA allocator hands out addresses that are multiples of 512."""
_ALLOCATION_GAP = 1 << 40
_GUARDS_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"


class _NoDevice(FakeTensorMode):  # type: ignore[misc]
    """A FakeTensorMode that never touches a GPU, though `torch.cuda.is_available` answers True here."""

    avoid_device_init = True


class _KnownIntegers(TorchDispatchMode):  # type: ignore[misc]
    """Computes integer operations on the values that integer tensors keep beside them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        behind = python_behind(func, "cuda")
        if behind is not None:  # its fake would launch nothing
            with self:
                return behind(*args, **kwargs)
        given = [item for item in tree_leaves((args, kwargs)) if isinstance(item, FakeTensor)]
        known = _on_values(func, args, kwargs) if given and all(map(_is_known, given)) else None
        if known is not None and func is torch.ops.aten._local_scalar_dense.default:
            return known
        try:
            result = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if known is None:
                raise
            return tree_map_only(torch.Tensor, to_fake, known)
        if not given and _is_small_integer(result) and not _is_arbitrary(func):
            known = _on_values(func, args, kwargs)
        results, values = (x if isinstance(x, (tuple, list)) else [x] for x in (result, known))
        for position, made in enumerate(results):
            if isinstance(made, FakeTensor):
                # Forgotten as well, where a known tensor is written from an unknown one.
                made.known_values = values[position] if known is not None else None
        return result


def _values_of(tensor: FakeTensor) -> torch.Tensor | None:
    values: torch.Tensor | None = getattr(tensor, "known_values", None)
    return values


def _is_known(tensor: FakeTensor) -> bool:
    return _values_of(tensor) is not None


def _is_small_integer(result: Any) -> bool:
    if not isinstance(result, FakeTensor) or result.is_floating_point() or result.is_complex():
        return False
    return int(result.numel()) <= MAX_KNOWN_ELEMENTS


def _is_arbitrary(func: Any) -> bool:
    """Whether a factory's values are whatever memory held, or drawn."""
    name = str(func).split(".")[1]
    return name.startswith(("empty", "new_empty", "rand"))


def _on_values(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU, each tensor replaced by its values."""

    def value(item: Any) -> Any:
        if isinstance(item, FakeTensor):
            return _values_of(item)
        return torch.device("cpu") if isinstance(item, torch.device) else item

    plain_args, plain_kwargs = tree_map(value, (args, kwargs))
    with torch.utils._python_dispatch._disable_current_modes():
        return func(*plain_args, **plain_kwargs)


def to_fake(tensor: torch.Tensor, device: str = "cuda:0") -> torch.Tensor:
    """A data-free twin on `device` with the same shape, strides, offset and need of a gradient.

    Call inside `fake_device`.
    """
    with torch.no_grad():
        storage_size = tensor.untyped_storage().nbytes() // tensor.element_size()
        base = torch.empty(storage_size, dtype=tensor.dtype, device=device)
        fake = torch.as_strided(base, tensor.shape, tensor.stride(), tensor.storage_offset())
    integral = not (tensor.is_floating_point() or tensor.is_complex())
    if integral and tensor.numel() <= MAX_KNOWN_ELEMENTS and not isinstance(tensor, FakeTensor):
        with torch.utils._python_dispatch._disable_current_modes():
            fake.known_values = tensor.detach().clone()
    return fake.requires_grad_(True) if tensor.requires_grad else fake


@contextmanager
def fake_device() -> Iterator[FakeTensorMode]:
    """In the block tensors are made without data, on "cuda" as well, and `data_ptr` answers an aligned address."""
    _lend_device_guard()
    bases: dict[int, int] = {}
    kept: list[Any] = []

    def data_ptr(self: FakeTensor) -> int:
        storage = self.untyped_storage()
        if storage._cdata not in bases:
            kept.append(storage)
            bases[storage._cdata] = (len(bases) + 1) * _ALLOCATION_GAP
        return int(bases[storage._cdata] + self.storage_offset() * self.element_size())

    before = FakeTensor.__dict__.get("data_ptr")
    FakeTensor.data_ptr = data_ptr
    start_context = fake_tensor.init_gpu_context
    # torch's CUDA build would start the driver for the first tensor on "cuda", and there is none in this sandbox.
    fake_tensor.init_gpu_context = _start_no_context
    try:
        with _NoDevice(allow_non_fake_inputs=True) as mode, _KnownIntegers():
            yield mode
    finally:
        fake_tensor.init_gpu_context = start_context
        if before is None:
            del FakeTensor.data_ptr
        else:
            FakeTensor.data_ptr = before


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

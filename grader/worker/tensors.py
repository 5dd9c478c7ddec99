"""Tensors of torch on their way in and out of a worker: the counterpart of `guards.GuardedArray`, and exact results.

Imports torch: only a worker whose runtime has it loads this module, before the submission.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .guards import (
    ContractError,
    Guarded,
    buffer_bytes,
    check_not_aliasing,
    check_size,
    differs,
    fill_byte,
    layout,
    lead_bytes,
    sent_once,
)
from .wire import EXTENDED_DTYPES, ITEM_SIZES, NUMPY_DTYPES, Bytes, Leaf

TENSOR_GUARD_BYTES = 1 << 16
"""A tile of 128 rows of 128 float32 that runs over the end of a tensor still lands in NaN."""
POISON_BYTES, MAX_POISON_BYTES = 64 << 20, 256 << 20

TORCH_DTYPES = {name: getattr(torch, name) for name in (*NUMPY_DTYPES, *EXTENDED_DTYPES) if hasattr(torch, name)}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}

_Tensor = torch.Tensor
_detach, _contiguous, _cpu, _view, _reshape = (
    _Tensor.detach,
    _Tensor.contiguous,
    _Tensor.cpu,
    _Tensor.view,
    _Tensor.reshape,
)
_resolve_conj, _resolve_neg, _numpy = _Tensor.resolve_conj, _Tensor.resolve_neg, _Tensor.numpy
_equal, _from_numpy, _full, _empty = torch.equal, torch.from_numpy, torch.full, torch.empty
_no_grad, _np_full = torch.no_grad, np.full
_synchronize, _uint8, _strided = torch.cuda.synchronize, torch.uint8, torch.strided


class GuardedTensor(Guarded):
    """A tensor inside a guarded buffer on its device, with the strides, offset and alignment that the leaf asks for."""

    def __init__(self, leaf: Leaf) -> None:
        strides, span = layout(leaf)
        item = ITEM_SIZES[leaf.dtype]
        self._leaf = leaf
        self._fill = fill_byte(leaf.dtype)
        total = buffer_bytes(span * item, TENSOR_GUARD_BYTES)
        self._bytes: Bytes | None = None
        if leaf.device == "cpu":
            self._bytes = _np_full(total, self._fill, np.uint8)
            self._buffer = _from_numpy(self._bytes)
        else:
            self._buffer = _full((total,), self._fill, dtype=_uint8, device=leaf.device)
        self.address, self.size, self.value_bytes = self._buffer.data_ptr(), total, leaf.raw.size
        start = lead_bytes(self.address, TENSOR_GUARD_BYTES) // item + leaf.offset
        with _no_grad():
            typed = _view(self._buffer, TORCH_DTYPES[leaf.dtype])
            self._own = typed.as_strided(leaf.shape, strides, start)
            self._once(self._own).copy_(self._sent())
            self.value = _detach(typed.as_strided(leaf.shape, strides, start))
        if leaf.requires_grad:
            self.value.requires_grad_()

    def _once(self, tensor: Any) -> Any:
        index = sent_once(self._leaf)
        return tensor[index] if index else tensor

    def _sent(self) -> Any:
        if self._leaf.raw.size == 0:  # torch gives no view of nothing by another dtype
            dtype = TORCH_DTYPES[self._leaf.dtype]
            return _empty(self._leaf.base_shape, dtype=dtype, device=self._leaf.device)
        values = _view(_from_numpy(self._leaf.raw), TORCH_DTYPES[self._leaf.dtype])
        return _reshape(values, self._leaf.base_shape).to(self._leaf.device)

    def changed(self) -> bool:
        if self._leaf.raw.size == 0:
            return False
        with _no_grad():
            now = _view(_reshape(_contiguous(self._once(self._own)), (-1,)), _uint8)
            sent = _view(_reshape(self._sent(), (-1,)), _uint8)
            return not _equal(now, sent)

    def current(self) -> Any:
        return self._own.clone()

    def spilled(self) -> bool:
        with _no_grad():
            canary = _from_numpy(_np_full(ITEM_SIZES[self._leaf.dtype], self._fill, np.uint8))
            self._once(self._own).copy_(_view(canary, TORCH_DTYPES[self._leaf.dtype])[0].to(self._leaf.device))
            # On a CPU by NumPy: torch would wake its threads, which takes 30 ms on two busy cores.
            return differs(self._buffer if self._bytes is None else self._bytes, self._fill)


def tensor_leaf(value: Any, guarded: list[Guarded], max_bytes: int, path: str) -> Leaf | None:
    """The leaf of a result that is exactly a `torch.Tensor`: dense, on a real device, of a dtype that can be judged.

    Returns:
        None where `value` is no tensor at all.

    Raises:
        ContractError: a tensor of another kind, or one that lies in an input's memory.
    """
    if not isinstance(value, _Tensor):
        return None
    if type(value) is not _Tensor:
        raise ContractError(f"{path} is a {type(value).__name__}; expected exactly torch.Tensor, no subclass.")
    device, layout_kind = value.device.type, value.layout
    if layout_kind is not _strided or device not in ("cpu", "cuda") or value.is_quantized:
        raise ContractError(f"{path} is a tensor of layout {layout_kind} on device {device}; expected a dense one.")
    name = DTYPE_NAMES.get(value.dtype)
    if name is None:
        raise ContractError(f"{path} has dtype {value.dtype}, which can't be judged.")
    with _no_grad():
        plain = _detach(value)
        shape, strides = tuple(plain.shape), tuple(plain.stride())
        if plain.numel():
            last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            start = plain.data_ptr()
            check_not_aliasing(start, start + (last + 1) * plain.element_size(), guarded, path)
        check_size(plain.numel() * plain.element_size(), max_bytes, path)
        dense = _contiguous(_resolve_neg(_resolve_conj(_cpu(plain))))
        raw = _numpy(_view(_reshape(dense, (-1,)), _uint8)) if plain.numel() else np.empty(0, np.uint8)
    kept = None if plain.is_contiguous() else strides
    return Leaf("tensor", name, shape, raw, shape, kept, int(plain.storage_offset()), device, bool(value.requires_grad))


def synchronize(device: str) -> None:
    """Wait for everything on the GPU, whatever stream it was put on; nothing to do on a CPU."""
    if device == "cuda":
        _synchronize()


def poison(device: str, sizes: list[int]) -> None:
    """Leave NaN in the blocks that torch's caching allocator would hand out next (on a CPU malloc does it).

    Args:
        sizes: bytes of the call's inputs: its outputs are likely to be as large. None over 256 MiB is filled.
    """
    if device != "cuda":
        return
    wanted = [min(size, MAX_POISON_BYTES) for size in (*sizes, *sizes)]
    blocks = [_full((size,), 0xFF, dtype=_uint8, device=device) for size in (*wanted, POISON_BYTES)]
    del blocks

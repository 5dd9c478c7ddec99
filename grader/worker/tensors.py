"""Tensors of torch on their way in and out of a worker: the counterpart of `guards.GuardedArray`, and exact results.

Imports torch: only a worker whose runtime has it loads this module, before the submission.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .guards import (
    SPARSE_BYTES,
    ContractError,
    Guarded,
    buffer_bytes,
    check_not_aliasing,
    check_size,
    differs,
    fill_byte,
    layout,
    lead_bytes,
    repeated,
    sent_words,
    sparse_bytes,
    word_bytes,
    words_of,
)
from .wire import EXTENDED_DTYPES, ITEM_SIZES, NUMPY_DTYPES, Leaf

TENSOR_GUARD_BYTES = 1 << 16
"""A tile of 128 rows of 128 float32 that runs over the end of a tensor still lands in NaN."""
POISON_BYTES, MAX_POISON_BYTES = 64 << 20, 256 << 20

TORCH_DTYPES = {name: getattr(torch, name) for name in (*NUMPY_DTYPES, *EXTENDED_DTYPES) if hasattr(torch, name)}
WORD_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
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
_equal, _from_numpy, _full = torch.equal, torch.from_numpy, torch.full
_no_grad, _np_full, _array_equal = torch.no_grad, np.full, np.array_equal
_uint8, _strided = torch.uint8, torch.strided
# The function below `torch.cuda.synchronize`, which looks this one up by name at each call. A CPU build lacks it.
wait_for_device: Callable[[], None] = getattr(torch._C, "_cuda_synchronize", torch.cuda.synchronize)


class GuardedTensor(Guarded):
    """A tensor inside a guarded buffer on its device, with the strides, offset and alignment that the leaf asks for."""

    def __init__(self, leaf: Leaf) -> None:
        strides, span = layout(leaf)
        item = ITEM_SIZES[leaf.dtype]
        self._fill = fill_byte(leaf.dtype)
        total = buffer_bytes(span * item, TENSOR_GUARD_BYTES)
        # On a CPU NumPy looks after the bytes: torch would wake its threads, which takes 30 ms on two busy cores.
        self._sparse = leaf.device == "cpu" and total > SPARSE_BYTES
        self._bytes = sparse_bytes(total) if self._sparse else None
        if leaf.device == "cpu" and self._bytes is None:
            self._bytes = _np_full(total, self._fill, np.uint8)
        if self._bytes is not None:
            self._buffer = _from_numpy(self._bytes)
        else:
            self._buffer = _full((total,), self._fill, dtype=_uint8, device=leaf.device)
        self.address, self.size, self.value_bytes = self._buffer.data_ptr(), total, leaf.raw.size
        start = lead_bytes(self.address, TENSOR_GUARD_BYTES) // item + leaf.offset
        self._leaf = self.leaf = leaf
        with _no_grad():
            self._words = self._words_at(strides, start)
            if leaf.raw.size:
                self._set_words()
            typed = _view(self._buffer, TORCH_DTYPES[leaf.dtype])
            self._own = typed.as_strided(leaf.shape, strides, start)
            self.value = _detach(typed.as_strided(leaf.shape, strides, start))
        if leaf.requires_grad:
            self.value.requires_grad_()

    def _words_at(self, strides: tuple[int, ...], start: int) -> Any:
        """The sent elements in place as integers: an array on a CPU (see `guards.words_of`), else a tensor."""
        leaf = self._leaf
        word, item = word_bytes(leaf), ITEM_SIZES[leaf.dtype]
        if self._bytes is not None:
            return words_of(self._bytes, leaf, strides, start * item)
        words = item // word
        shape, steps = (*leaf.base_shape, words), (*(stride * words for stride in strides), 1)
        return _view(self._buffer, WORD_DTYPES[word]).as_strided(shape, steps, start * words)

    @property
    def own(self) -> Any:
        """The argument as it was made, whatever became of `value`'s shape and strides."""
        return self._own

    @property
    def buffer(self) -> Any:
        """All bytes of the guarded buffer."""
        return self._buffer

    def sent(self) -> Any:
        """The argument's values as words on its device."""
        return self.words(self._leaf.raw)

    def words(self, raw: Any) -> Any:
        """Bytes of as many values in C order as words in the shape that `exchange` takes."""
        words = sent_words(replace(self._leaf, raw=raw))
        if self._bytes is not None:
            return words
        flat = _view(_from_numpy(raw), WORD_DTYPES[word_bytes(self._leaf)])
        return _reshape(flat, words.shape).to(self._leaf.device)

    def exchange(self, expected: Any, words: Any) -> bool:
        """Write other words in place of the argument's; whether it held the expected ones until now."""
        if self._bytes is not None:
            held = _array_equal(self._words, expected)
            self._words[...] = words
            return bool(held)
        with _no_grad():
            held = _equal(self._words, expected)
            self._words.copy_(words)
        return bool(held)

    def _set_words(self) -> None:
        if self._bytes is not None:
            self._words[...] = self.sent()
        else:
            self._words.copy_(self.sent())

    def changed(self) -> bool:
        if self._leaf.raw.size == 0:
            return False
        if self._bytes is not None:
            return not _array_equal(self._words, self.sent())
        with _no_grad():
            return not _equal(self._words, self.sent())

    def current(self) -> Any:
        return self._own.clone()

    def spilled(self) -> bool:
        if self._sparse:
            return False
        word = word_bytes(self._leaf)
        if self._bytes is not None:
            self._words[...] = repeated(self._fill, word)
            return differs(self._bytes, self._fill)
        with _no_grad():
            signed = int.from_bytes(bytes([self._fill]) * word, "little", signed=word > 1)
            self._words.fill_(signed)
            return differs(self._buffer, self._fill)


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
        wait_for_device()


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

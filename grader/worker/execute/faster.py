"""The costliest parts of the interpreter's bookkeeping, told once: shapes, types and what NumPy stores of them.

An interpreted operation on a tile of 16 x 16 spends most of its time in these.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_shapes: dict[tuple[int, ...], tuple[Any, Any, Any]] = {}
"""Sizes → a block type's shape, a tensor's, and its number of elements."""
_stored: dict[str, np.dtype[Any]] = {}
_block_init = tl.block_type.__init__
_SCALAR = tl.core.tuple([]), tl.constexpr(1)


def tensor_init(self: Any, handle: Any, type: Any) -> None:
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    self.shape, self.numel = _sizes(type) if type.is_block() else _SCALAR


def _sizes(block: Any) -> tuple[Any, Any]:
    _, shape, numel = _told(tuple(block.shape.values))
    return shape, numel


def _told(sizes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    found = _shapes.get(sizes)
    if found is None:
        shape = tl.core.tuple([tl.constexpr(size) for size in sizes])
        found = _shapes[sizes] = tl.core.tuple(list(sizes)), shape, tl.constexpr(prod(sizes))
    return found


def block_init(self: Any, element_ty: Any, shape: Any) -> None:
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    if sizes not in _shapes:
        _block_init(self, element_ty, shape)  # checks it
        _told(sizes)
        return
    self.element_ty = element_ty
    self.shape, _, numel = _shapes[sizes]
    self.numel = numel.value
    self.name = f"<{sizes}, {element_ty}>"


_unwrap = tl.core._unwrap_if_constexpr


def unwrap(value: Any) -> Any:
    kind = type(value)
    if kind is tl.constexpr:
        return value.value
    if kind is int or kind is tl.tensor or kind is tl.dtype or value is None:
        return value
    return _unwrap(value)


def dtype_equals(self: Any, other: Any) -> bool:
    if self is other:
        return True
    other = unwrap(other)
    return isinstance(other, tl.dtype) and bool(self.name == other.name)


_np_dtype = interpreter._get_np_dtype


def stored_as(kind: Any) -> np.dtype[Any]:
    """What NumPy holds values of a type as."""
    element = kind.element_ty if isinstance(kind, tl.block_type) else kind
    name = element.name
    found = _stored.get(name)
    if found is None:
        found = _stored[name] = _np_dtype(element)
    return found


def patches() -> list[tuple[Any, str, Any]]:
    """Owner, name and value of what these replace."""
    return [
        (tl.tensor, "__init__", tensor_init),
        (tl.block_type, "__init__", block_init),
        (tl.dtype, "__eq__", dtype_equals),
        (tl.core, "_unwrap_if_constexpr", unwrap),
        (interpreter, "_get_np_dtype", stored_as),
        # Three operations on 64 bits for each sum of integers, which only a kernel compiled for debugging makes.
        (interpreter.interpreter_builder, "options", interpreter.InterpreterOptions(sanitize_overflow=False)),
    ]

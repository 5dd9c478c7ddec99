"""How much memory an operation of a launcher takes, known before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

ALLOCATIONS = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros"}
    | {"ones", "ones_like", "new_ones", "full", "full_like", "new_full", "arange", "linspace", "scalar_tensor", "eye"}
)
"""Operations whose result has no value of a tensor's in it."""
_SMALLEST = 8
"""Bytes an element of what arithmetic makes, at least: types are promoted."""


def bytes_made(
    base: str, args: Sequence[Any], kwargs: dict[str, Any], reads: Sequence[torch.Tensor], exact: bool
) -> int:
    """An upper bound of what an operation allocates.

    Args:
        base: its name without the mark of in-place forms. exact: it keeps its argument's dtype, or takes one.

    Raises:
        IndexError, TypeError, ValueError, OverflowError, AttributeError: the operation doesn't take such arguments.
    """
    dtype = kwargs.get("dtype")
    width = dtype.itemsize if isinstance(dtype, torch.dtype) else max((t.dtype.itemsize for t in reads), default=8)
    return _elements_made(base, args, reads) * (width if exact else max(width, _SMALLEST))


def _elements_made(base: str, args: Sequence[Any], reads: Sequence[torch.Tensor]) -> int:
    shapes = [tuple(map(int, item.shape)) for item in reads]
    lists = [item for item in args if isinstance(item, (list, tuple))]
    if base in ("arange", "linspace"):
        return _steps_made(base, [item for item in args if type(item) in (int, float)])
    if base == "eye":
        return int(args[0] * (args[1] if len(args) > 1 else args[0]))
    if base in ("empty_strided", "new_empty_strided"):
        return 1 + sum(max(0, int(n) - 1) * abs(int(step)) for n, step in zip(lists[0], lists[1], strict=True))
    if base in ALLOCATIONS and not base.endswith("_like"):
        return math.prod(map(int, lists[0])) if lists else 1
    if base in ("cat", "stack"):
        return sum(map(math.prod, shapes))
    if base == "index":
        kept = [
            size for size, place in zip(shapes[0], [*args[1], *[None] * len(shapes[0])], strict=False) if place is None
        ]
        return _broadcast(shapes[1:]) * math.prod(kept)
    if base == "index_select":
        return math.prod(shapes[0]) // max(1, shapes[0][int(args[1])]) * math.prod(shapes[1])
    if base == "repeat":
        return math.prod(shapes[0]) * math.prod(map(int, args[1]))
    if base == "constant_pad_nd":
        grown = list(shapes[0])
        for position, amount in enumerate(args[1]):
            grown[-1 - position // 2] += int(amount)
        return math.prod(grown)
    if base == "index_put":
        return math.prod(shapes[0])
    return _broadcast(shapes)


def _steps_made(base: str, numbers: Sequence[float]) -> int:
    """Elements of `arange` and `linspace`."""
    if base == "linspace":
        return int(numbers[2])
    start, end, step = [0, *numbers, 1][:3] if len(numbers) == 1 else [*numbers, 1][:3]
    return math.ceil(abs((end - start) / step)) + 1 if step else 0


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> int:
    """Elements that tensors of these shapes have together, at most."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    return math.prod(max(sizes) for sizes in zip(*padded, strict=True))

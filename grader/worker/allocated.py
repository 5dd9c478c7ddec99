"""How much memory an operation of a launcher takes and how many numbers it goes over, known before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

_LARGEST = 16
"""Bytes an element of what arithmetic makes, at most: types are promoted."""
_REDUCING_PAIRS = frozenset({"max", "min", "aminmax", "cummax", "cummin", "sort", "topk"})
"""They make two tensors."""


def bytes_made(base: str, given: dict[str, Any], reads: Sequence[torch.Tensor], exact: bool) -> int:
    """An upper bound of what an operation allocates.

    Args:
        base: its name without the mark of in-place forms. given: its arguments by name. reads: the tensors that it
            reads. exact: it keeps its argument's dtype, or takes one.

    Raises:
        IndexError, TypeError, ValueError, OverflowError, AttributeError: the operation doesn't take such arguments.
    """
    dtype = given.get("dtype")
    width = dtype.itemsize if dtype is not None else max((t.dtype.itemsize for t in reads), default=8)
    count = elements_made(base, given, reads) * (2 if base in _REDUCING_PAIRS else 1)
    return count * (int(width) if exact else _LARGEST)


def elements_made(base: str, given: dict[str, Any], reads: Sequence[torch.Tensor]) -> int:
    """An upper bound of the elements of an operation's result; arguments and exceptions as `bytes_made`."""
    shapes = [tuple(map(int, item.shape)) for item in reads]
    if base in ("arange", "linspace"):
        return _steps_made(base, given)
    if base == "eye":
        return int(given["n"] * given.get("m", given["n"]))
    if base in ("empty_strided", "new_empty_strided"):
        strided = zip(given["size"], given["stride"], strict=True)
        return 1 + sum(max(0, int(size) - 1) * abs(int(step)) for size, step in strided)
    if "size" in given:
        return int(math.prod(given["size"]))
    if base in ("cat", "stack"):
        return sum(map(math.prod, shapes))
    if base == "index":
        kept = [size for size, place in zip(shapes[0], _padded(given["indices"], shapes[0]), strict=True) if not place]
        return _broadcast(shapes[1:]) * math.prod(kept)
    if base == "index_select":
        return math.prod(shapes[0]) // max(1, shapes[0][int(given["dim"])]) * math.prod(shapes[1])
    if base == "repeat":
        return math.prod(shapes[0]) * int(math.prod(given["repeats"]))
    if base == "constant_pad_nd":
        grown = list(shapes[0])
        for position, amount in enumerate(given["pad"]):
            grown[-1 - position // 2] += amount
        return math.prod(grown)
    if base in ("gather", "scatter"):
        return max(math.prod(shapes[0]), int(given["index"].numel()))
    if base == "index_put":
        return math.prod(shapes[0]) + _broadcast(shapes[1:])
    if base in ("mm", "bmm"):
        return math.prod(shapes[0][:-1]) * shapes[1][-1]
    return _broadcast(shapes)


def _padded(places: Sequence[Any], shape: tuple[int, ...]) -> list[bool]:
    """For each dimension whether it's indexed."""
    return [place is not None for place in places] + [False] * (len(shape) - len(places))


def _steps_made(base: str, given: dict[str, Any]) -> int:
    """Elements of `arange` and `linspace`."""
    if base == "linspace":
        return int(given["steps"])
    step = given.get("step", 1)
    return math.ceil(abs((given["end"] - given.get("start", 0)) / step)) + 1 if step else 0


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> int:
    """Elements that tensors of these shapes have together, at most."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    return math.prod(max(sizes) for sizes in zip(*padded, strict=True))

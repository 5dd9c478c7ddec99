"""Memory layouts that a submission's tensors arrive in, by name: strides in elements and a storage offset.

A kernel that assumes one layout for all three tensors, or a last stride of 1, is wrong on some of these.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.errors import CourseError
from grader.judge.precision import Array

Shape4 = tuple[int, int, int, int]
Strides = tuple[int, int, int, int]

PADDING = 8
"""Elements between the rows of `padded-rows`: keeps 16-byte alignment in every dtype."""


@dataclass(frozen=True)
class Layout:
    """Strides for a logical (batch, heads, seqlen, head_dim), the storage offset, and the axis that is broadcast."""

    strides: Callable[[Shape4], Strides]
    offset: int = 0
    broadcast_axis: int | None = None


def _contiguous(shape: Shape4) -> Strides:
    _, heads, length, dim = shape
    return (heads * length * dim, length * dim, dim, 1)


def _transposed(shape: Shape4) -> Strides:
    _, heads, length, dim = shape
    return (length * heads * dim, dim, heads * dim, 1)


def _padded_rows(shape: Shape4) -> Strides:
    _, heads, length, dim = shape
    row = dim + PADDING
    return (heads * length * row, length * row, row, 1)


def _every_other_head(shape: Shape4) -> Strides:
    _, heads, length, dim = shape
    return (2 * heads * length * dim, 2 * length * dim, dim, 1)


def _seqlen_last(shape: Shape4) -> Strides:
    _, heads, length, dim = shape
    return (heads * length * dim, length * dim, 1, length)


def _batch_broadcast(shape: Shape4) -> Strides:
    _, _, length, dim = shape
    return (0, length * dim, dim, 1)


def _head_broadcast(shape: Shape4) -> Strides:
    _, _, length, dim = shape
    return (length * dim, 0, dim, 1)


def _seqlen_broadcast(shape: Shape4) -> Strides:
    _, heads, _, dim = shape
    return (heads * dim, dim, 0, 1)


LAYOUTS: dict[str, Layout] = {
    "contiguous": Layout(_contiguous),
    "transposed": Layout(_transposed),
    "padded-rows": Layout(_padded_rows),
    "offset": Layout(_contiguous, offset=40),
    "misaligned": Layout(_contiguous, offset=3),
    "every-other-head": Layout(_every_other_head),
    "seqlen-last": Layout(_seqlen_last),
    "batch-broadcast": Layout(_batch_broadcast, broadcast_axis=0),
    "head-broadcast": Layout(_head_broadcast, broadcast_axis=1),
    "seqlen-broadcast": Layout(_seqlen_broadcast, broadcast_axis=2),
}
"""`transposed` is (batch, seqlen, heads, head_dim) memory; `seqlen-last` is (batch, heads, head_dim, seqlen)."""

MIXED = ("transposed", "padded-rows", "offset")
"""A different layout for each of q, k, v."""


def resolve(layout: str | tuple[str, str, str]) -> tuple[str, str, str]:
    """Layout names of q, k, v; ``mixed`` is `MIXED`, one name is for all three.

    Raises:
        CourseError: no layout is called that.
    """
    names = MIXED if layout == "mixed" else (layout, layout, layout) if isinstance(layout, str) else layout
    for name in names:
        if name not in LAYOUTS:
            close = difflib.get_close_matches(name, [*LAYOUTS, "mixed"], n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known: mixed, {', '.join(LAYOUTS)}."
            raise CourseError(f"Unknown memory layout {name!r}.", hint=hint)
    return names


def share_broadcast(values: Array, layout: str) -> Array:
    """`values` made equal along the axis that `layout` broadcasts, so that they fit its memory."""
    axis = LAYOUTS[layout].broadcast_axis
    if axis is None:
        return values
    first = np.take(values, [0], axis=axis)
    return np.ascontiguousarray(np.broadcast_to(first, values.shape))


def describe(shape: Shape4, layout: str) -> tuple[Strides | None, int]:
    """(strides, offset) of a tensor of `shape`; strides are None where it is contiguous."""
    chosen = LAYOUTS[layout]
    strides = chosen.strides(shape)
    return (None if strides == _contiguous(shape) else strides), chosen.offset


def reread(values: Array, layout: str, strides: Strides, offset: int) -> Array:
    """What a kernel reads that takes `values`, stored in `layout`, to lie at `strides` from `offset`.

    Elements outside of the tensor's own memory read as NaN, as they do in the worker's guarded buffers.
    """
    shape: Shape4 = values.shape
    own = LAYOUTS[layout]
    own_strides = own.strides(shape)
    size = own.offset + sum((n - 1) * s for n, s in zip(shape, own_strides, strict=True)) + 1
    storage = np.full(size, np.nan)
    storage[_addresses(shape, own_strides, own.offset)] = values
    wanted = _addresses(shape, strides, offset)
    inside = wanted < size
    return np.where(inside, storage[np.where(inside, wanted, 0)], np.nan)


def _addresses(shape: Shape4, strides: Strides, offset: int) -> Array:
    axes = np.ogrid[tuple(slice(n) for n in shape)]
    return np.asarray(offset + sum(axis * stride for axis, stride in zip(axes, strides, strict=True)))

"""Whether a kernel's accesses stay inside the tensors that its launch was given, decided before they're made."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..guards import ContractError
from .memory import Storage

Addresses = npt.NDArray[np.uint64]
Place = Callable[[str, int], str]
"""File and line of a frame → the student's file and line, "" for any other (see `Kernels.place`)."""


@dataclass(frozen=True)
class Fault:
    """One access outside of every tensor of its launch.

    Attributes:
        kernel: its name. where: file and line of the access, "" if unknown. action: loads, stores or updates.
        program: ids along x, y and z.
        tensor: name of the nearest tensor of the launch, "" if it was given none. side: before, after or between.
        distance: bytes from the tensor's nearest end, 0 between its rows.
        index: indices that the address would have in the tensor, () where they aren't clear. shape: of the tensor.
    """

    kernel: str
    where: str
    action: str
    program: tuple[int, ...]
    tensor: str
    side: str
    distance: int
    index: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {**asdict(self), **{name: list(getattr(self, name)) for name in ("program", "index", "shape")}}

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        if not self.tensor:
            return f"{self.kernel}{place} {self.action} memory that was not passed to it."
        sides = {"before": "before the start of", "after": "past the end of", "between": "between the rows of"}
        at = ""
        if self.index:
            at = f": index ({', '.join(map(str, self.index))}) of shape ({', '.join(map(str, self.shape))})"
        far = f", {self.distance} bytes away" if self.distance else ""
        return f"{self.kernel}{place} {self.action} {sides[self.side]} `{self.tensor}`{far}{at}."


class OutOfBounds(Exception):
    """A kernel's access outside of every tensor that its launch was given. `fault` says where."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _ReadOnly(ContractError):
    """A store to an input that a call must leave as it is."""


@dataclass(eq=False)
class Region:
    """Addresses that a launch may access: a storage's, or only an input's elements.

    Attributes:
        held: whether each item of the region belongs to the tensor; None where all do.
        loaded, stored: bytes that this launch moved. updated: by atomics, among both. readers: how many of its
            programs loaded some; most: the most bytes that one did.
        stored_at: bytes stored to each item of the storage, by all launches; None where nobody asks.
    """

    storage: Storage
    name: str
    start: int
    stop: int
    held: npt.NDArray[np.bool_] | None = None
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    loaded: int = 0
    stored: int = 0
    updated: int = 0
    readers: int = 0
    most: int = 0
    stored_at: npt.NDArray[np.int64] | None = field(default=None, repr=False)


def region_of(storage: Storage, name: str) -> Region:
    """All bytes of a storage that the tape made, or exactly an input's elements: gaps of a strided one stay outside."""
    tensor = storage.tensor
    if tensor is None:
        return Region(storage, name, storage.start, storage.stop)
    start, item = tensor.data_ptr(), tensor.element_size()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    held = None
    if span != tensor.numel():
        held = np.zeros(span, bool)
        torch.from_numpy(held).as_strided(shape, strides).fill_(True)
        held = None if held.all() else held
    return Region(storage, name, start, start + span * item, held, shape, strides)


class Bounds:
    """The regions of one launch.

    Args:
        place: tells the student's line of a frame.
    """

    def __init__(self, kernel: str, regions: Iterable[Region], place: Place) -> None:
        self.kernel = kernel
        self.regions = sorted(regions, key=lambda region: region.start)
        self.program: tuple[int, ...] = ()
        self._starts = [region.start for region in self.regions]
        self.place = place
        self._last = self.regions[0] if self.regions else None

    def touch(self, live: Addresses, width: int, *, loads: bool, stores: bool) -> list[tuple[Region, Addresses]]:
        """Check and count an access of `width` bytes at each address of `live`, which isn't empty.

        Returns:
            the regions that it falls into, with their addresses.

        Raises:
            OutOfBounds: an address lies outside. ContractError: a store to an input that may not change.
        """
        low, high = int(live.min()), int(live.max()) + width
        region = self._last
        if region is None or low < region.start or high > region.stop:
            region = self._holding(low, high)
        if region is None:
            return self._touch_several(live, width, loads, stores)
        self._last = region
        self._touch_one(region, live, width, loads, stores)
        return [(region, live)]

    def _holding(self, low: int, high: int) -> Region | None:
        position = bisect_right(self._starts, low) - 1
        if position < 0 or high > self.regions[position].stop:
            return None
        return self.regions[position]

    def _touch_several(self, live: Addresses, width: int, loads: bool, stores: bool) -> list[tuple[Region, Addresses]]:
        """An access whose lanes lie in several regions, or outside of all."""
        position = np.searchsorted(np.array(self._starts, np.uint64), live, side="right") - 1
        stops = np.array([region.stop for region in self.regions], np.uint64)
        inside = position >= 0
        if self.regions:
            # A sum of address and width would come round near the end of the address space.
            inside &= live <= stops[position] - np.uint64(width)
        if not inside.all():
            raise OutOfBounds(self._fault(int(live[~inside][0]), width, loads, stores))
        found = [(self.regions[index], live[position == index]) for index in np.unique(position)]
        for region, addresses in found:
            self._touch_one(region, addresses, width, loads, stores)
        return found

    def _touch_one(self, region: Region, live: Addresses, width: int, loads: bool, stores: bool) -> None:
        if stores and not region.storage.writable:
            where = self._where()
            raise _ReadOnly(
                f"{where + ': ' if where else ''}{self.kernel} stores to its input `{region.name}`; inputs must be "
                "left as they are. Store to a tensor of your own."
            )
        if region.held is not None:
            item = region.storage.itemsize
            offsets = live - np.uint64(region.start)
            belongs = region.held[offsets // item]
            if width > item:
                belongs &= region.held[(offsets + np.uint64(width - 1)) // item]
            if not belongs.all():
                raise OutOfBounds(self._fault(int(live[~belongs][0]), width, loads, stores, region))
        size = live.size * width
        if loads:
            region.loaded += size
        if loads and stores:
            region.updated += size
        if stores:
            region.stored += size
            if region.stored_at is not None:
                np.add.at(region.stored_at, (live - np.uint64(region.storage.start)) // region.storage.itemsize, width)

    def _fault(self, address: int, width: int, loads: bool, stores: bool, gap: Region | None = None) -> Fault:
        action = "updates" if loads and stores else "stores" if stores else "loads"
        where = self._where()
        if not self.regions:
            return Fault(self.kernel, where, action, self.program, "", "", 0)
        nearest = gap or min(self.regions, key=lambda r: max(r.start - address, address + width - r.stop, 0))
        side, distance = "between", 0
        if address < nearest.start:
            side, distance = "before", nearest.start - address
        elif address + width > nearest.stop:
            side, distance = "after", max(address - nearest.stop, 0)
        index = _index(address - nearest.start, nearest)
        shape = nearest.shape if index else ()
        return Fault(self.kernel, where, action, self.program, nearest.name, side, distance, index, shape)

    def _where(self) -> str:
        """The student's line of the innermost frame of a kernel."""
        frame = sys._getframe(1)
        while frame is not None:
            found = self.place(frame.f_code.co_filename, frame.f_lineno)
            if found:
                return found
            frame = frame.f_back  # type: ignore[assignment]
        return ""


def _index(offset: int, region: Region) -> tuple[int, ...]:
    """Indices of an address in an input, the outermost too large or negative; () if they say nothing."""
    dims = sorted(
        (
            (stride, place)
            for place, (size, stride) in enumerate(zip(region.shape, region.strides, strict=True))
            if size > 1 and stride
        ),
        reverse=True,
    )
    if not dims or not region.shape or 0 in region.strides:
        return ()
    index = [0] * len(region.shape)
    rest = offset // region.storage.itemsize
    for stride, place in dims:
        index[place], rest = divmod(rest, stride)
    return tuple(index) if rest == 0 else ()

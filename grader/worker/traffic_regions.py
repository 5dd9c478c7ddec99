"""Whose memory an address belongs to: the elements of named tensors, and whole storages of launched buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Addresses = npt.NDArray[np.uint64]
OUTSIDE = -1


@dataclass
class Region:
    """Addresses start <= a < stop; `elements` (sorted addresses) when only some of them belong."""

    name: str
    start: int
    stop: int
    itemsize: int = 1
    elements: Addresses | None = None
    storage_start: int = 0


class Regions:
    """An ordered list of regions; the first that holds an address owns it."""

    def __init__(self) -> None:
        self.all: list[Region] = []
        # Held so that a freed buffer's address can't be given to another tensor while regions are in use.
        self._alive: list[Any] = []

    def add_elements(self, name: str, tensor: torch.Tensor) -> None:
        """Register exactly the elements of a tensor: gaps of a strided view and guards around it stay outside."""
        if tensor.numel() == 0:
            return
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        size = tensor.element_size()
        start = tensor.data_ptr()
        pairs = [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
        span = 1 + sum((n - 1) * s for n, s in pairs)
        region = Region(name, start, start + span * size, size, storage_start=storage.data_ptr())
        distinct = 1
        for n, s in pairs:
            distinct *= n if s else 1
        if distinct != span:
            offsets = np.zeros(1, np.int64)
            for n, s in pairs:
                offsets = (offsets[:, None] + np.arange(n, dtype=np.int64) * s).reshape(-1) if s else offsets
            region.elements = np.unique(offsets * size + start).astype(np.uint64)
        self.all.append(region)

    def add_storage(self, name: str, tensor: torch.Tensor) -> None:
        """Register all bytes behind a tensor that the launcher allocated."""
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        start = storage.data_ptr()
        self.all.append(Region(name, start, start + storage.nbytes(), storage_start=start))

    def knows_storage(self, tensor: torch.Tensor) -> bool:
        start = tensor.untyped_storage().data_ptr()
        return any(region.storage_start == start for region in self.all)

    def owner_of(self, tensor: torch.Tensor) -> str | None:
        """Name of the region that a tensor's first element lies in."""
        if tensor.numel() == 0:
            return None
        index = int(self.owners(np.array([tensor.data_ptr()], np.uint64), 1)[0])
        return None if index == OUTSIDE else self.all[index].name

    def owners(self, addresses: Addresses, width: int) -> npt.NDArray[np.int32]:
        """Index of the owning region for each access of `width` bytes, or OUTSIDE."""
        low, high = int(addresses.min()), int(addresses.max()) + width
        result = np.full(addresses.shape, OUTSIDE, np.int32)
        for index, region in enumerate(self.all):
            if high <= region.start or low >= region.stop:
                continue
            if region.elements is None and low >= region.start and high <= region.stop:
                result[result == OUTSIDE] = index
                return result
            held = (addresses >= region.start) & (addresses <= max(region.stop - width, 0))
            if region.elements is not None:
                at = np.clip(np.searchsorted(region.elements, addresses, side="right") - 1, 0, None)
                held &= (addresses - region.elements[at]) < region.itemsize
            result[held & (result == OUTSIDE)] = index
        return result

    def describe(self, address: int) -> tuple[str, int]:
        """Where an address that nobody owns lies, told from the nearest region, and its distance from it in bytes."""
        if not self.all:
            return "memory that was not passed to it", 0
        nearest = min(self.all, key=lambda r: max(r.start - address, address - r.stop + 1, 0))
        if address >= nearest.stop:
            return f"past the end of {nearest.name}", address - nearest.stop
        if address < nearest.start:
            return f"before the start of {nearest.name}", nearest.start - address
        return f"between the rows of {nearest.name}", 0

"""Runs some programs of each launch where all would take too long, and follows which elements are final nevertheless.

An element is suspect if a program that didn't run might have written it. What a program stores is final unless it read
a suspect element; what atomics add up is final only if all programs ran.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..rules import MOVES
from .bounds import Addresses, Region
from .counting import Launched
from .interpret import Grid, Programs, Stopped
from .memory import Memory, Storage
from .products import Products

Mask = npt.NDArray[np.bool_]
_CHUNKS = (2, 4, 8, 16)
_PARTS = range(2, 9)
_REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "max", "min", "logsumexp", "prod", "argmax", "any", "all"})


@dataclass
class _Written:
    """What one launch wrote to one storage so far, by item."""

    stored: Mask
    updated: Mask


class Shadow:
    """Which elements of a tape's storages are suspect."""

    def __init__(self) -> None:
        self._suspect: dict[int, Mask] = {}
        self._written: dict[int, tuple[Storage, _Written]] = {}
        self._loaded: set[int] = set()
        self._own: list[tuple[int, npt.NDArray[Any]]] = []

    def begin(self) -> None:
        self._written, self._loaded = {}, set()

    def begin_program(self) -> None:
        self._own = []

    def loaded(self, region: Region, live: Addresses, width: int) -> None:
        """Raises Stopped where a suspect element is read."""
        self._loaded.add(region.storage.start)
        suspect = self._suspect.get(region.storage.start)
        if suspect is not None and suspect[_items(region.storage, live)].any():
            raise Stopped

    def stored(self, region: Region, live: Addresses, width: int) -> None:
        items = _items(region.storage, live)
        start = region.storage.start
        self._of(region.storage).stored[items] = True
        self._own.append((start, items))
        if start in self._suspect:
            self._suspect[start][items] = False  # its own program may read it again

    def updated(self, region: Region, live: Addresses, width: int) -> None:
        self._of(region.storage).updated[_items(region.storage, live)] = True

    def stop_program(self) -> None:
        """Take back what a stopped program stored."""
        for start, items in self._own:
            self._written[start][1].stored[items] = False
            if start in self._suspect:
                self._suspect[start][items] = True

    def end(self, launched: Launched, *, partial: bool) -> None:
        """Take note of a launch of which not all programs ran to their end."""
        if not partial:
            return
        for region in launched.regions:
            storage = region.storage
            if storage.start in self._written:
                written = self._written[storage.start][1]
                self._suspect[storage.start] = ~written.stored | written.updated
            elif storage.writable and storage.start not in self._loaded:
                self._suspect[storage.start] = np.ones(_count(storage), bool)

    def writes(self, storage: Storage) -> bool:
        """Whether the launch wrote to a storage so far."""
        return storage.start in self._written

    def updates(self) -> bool:
        """Whether the launch changed anything by atomics."""
        return any(bool(written.updated.any()) for _, written in self._written.values())

    def mask(self, tensor: torch.Tensor, memory: Memory) -> torch.Tensor | None:
        """Suspect elements of a tensor, as a view; None where there are none."""
        storage = memory.of(tensor)
        suspect = self._suspect.get(storage.start) if storage is not None else None
        if storage is None or suspect is None or not suspect.any():
            return None
        if tensor.element_size() != storage.itemsize:
            return torch.ones(tensor.shape, dtype=torch.bool)
        offset = (tensor.data_ptr() - storage.start) // storage.itemsize
        return torch.from_numpy(suspect).as_strided(tensor.shape, tensor.stride(), offset)

    def follow(
        self, function: Any, base: str, args: Any, kwargs: Any, made: Sequence[torch.Tensor], memory: Memory
    ) -> None:
        """Carry suspicion over an operation of torch from what it read to what it made or wrote."""
        tensors = [item for item in tree_leaves([args, kwargs]) if isinstance(item, torch.Tensor)]
        masks = [mask for item in tensors if (mask := self.mask(item, memory)) is not None]
        writes = any(item.alias_info is not None and item.alias_info.is_write for item in function._schema.arguments)
        for result in made:
            storage = memory.of(result)
            view = not writes and any(memory.of(item) is storage for item in tensors)
            if storage is None or view or not (masks or storage.start in self._suspect):
                continue
            found = self._carried(function, base, args, kwargs, masks, result, memory)
            self._suspect.setdefault(storage.start, np.zeros(_count(storage), bool))
            target = self._target(result, storage)
            target.copy_(found)

    def _target(self, result: torch.Tensor, storage: Storage) -> torch.Tensor:
        offset = (result.data_ptr() - storage.start) // storage.itemsize
        return torch.from_numpy(self._suspect[storage.start]).as_strided(result.shape, result.stride(), offset)

    def _carried(
        self,
        function: Any,
        base: str,
        args: Any,
        kwargs: Any,
        masks: list[torch.Tensor],
        result: torch.Tensor,
        memory: Memory,
    ) -> torch.Tensor:
        """Suspect elements of a result; all of them where the operation isn't one of the usual ones."""
        if base in ("fill", "zero") or not masks:
            return torch.zeros(result.shape, dtype=torch.bool)

        def as_mask(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            mask = self.mask(item, memory)
            return torch.zeros(item.shape, dtype=torch.bool) if mask is None else mask

        try:
            if base in ("copy", "_to_copy", "clone"):
                return as_mask(args[1] if base == "copy" else args[0]).expand(result.shape)
            if base in _REDUCTIONS and len(args) > 1:
                dims = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
                keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
                return as_mask(args[0]).sum(dims, keepdim=keep).bool()
            if base in MOVES and base != "where":
                return torch.as_tensor(function(*tree_map(as_mask, args), **tree_map(as_mask, kwargs)))
            everything = torch.zeros(result.shape, dtype=torch.bool)
            for mask in masks:
                everything |= mask
            return everything
        except (RuntimeError, TypeError, IndexError, ValueError):
            return torch.ones(result.shape, dtype=torch.bool)

    def _of(self, storage: Storage) -> _Written:
        if storage.start not in self._written:
            size = _count(storage)
            self._written[storage.start] = storage, _Written(np.zeros(size, bool), np.zeros(size, bool))
        return self._written[storage.start][1]


def _count(storage: Storage) -> int:
    return -(-storage.size // storage.itemsize)


def _items(storage: Storage, live: Addresses) -> npt.NDArray[Any]:
    return (live - np.uint64(storage.start)) // storage.itemsize


@dataclass
class Sampler:
    """Spends a budget of time on a tape's launches, the same part of what is left on each.

    Args:
        seed: of the order in which programs run. budget_s: of all launches together. launches: how many there will be.
        products: of two runs, the second of which runs what the first did.
    """

    seed: int
    budget_s: float
    launches: int
    products: Products | None = None
    shadow: Shadow = field(default_factory=Shadow)
    ran: list[dict[str, Any]] = field(default_factory=list)
    _spent_s: float = 0.0

    def run(self, programs: Programs, launched: Launched, consumed: Callable[[], bool]) -> None:
        """Run programs of one launch until its part of the budget is used up; one at least, all where there's time.

        Args:
            consumed: whether a later step reads what this launch writes; asked after the first program.
        """
        begin = time.monotonic()
        left = max(self.budget_s - self._spent_s, 0.0) / max(self.launches - len(self.ran), 1)
        rng = random.Random(f"{self.seed}:{len(self.ran)}")
        products, launch = self.products, len(self.ran)
        again = products is not None and products.again
        done, flops, idle = 0, 0, 0
        self.shadow.begin()
        order = products.programs(launch) if products is not None and again else _order(programs.grid, rng, consumed)
        for tried, number in enumerate(order):
            if tried and not again and time.monotonic() - begin > left:
                break
            before, stored = launched.core_flops, _stored(launched)
            self.shadow.begin_program()
            if products is not None:
                products.begin(launch, number)
            try:
                programs.run(number, launched.bounds)
                if products is not None:
                    products.end(launch, number)
                done += 1
                flops += launched.core_flops - before
                idle += _stored(launched) == stored
            except Stopped:
                self.shadow.stop_program()
        launched.record.programs = done
        self.shadow.end(launched, partial=done < len(programs))
        self._spent_s += time.monotonic() - begin
        self.ran.append(
            {
                "kernel": programs.name,
                "programs": len(programs),
                "ran": done,
                "idle": idle,
                "atomics": self.shadow.updates(),
                "core_flops": flops,
            }
        )


def _stored(launched: Launched) -> int:
    """Bytes that the launch's programs stored so far."""
    return sum(region.stored for region in launched.bounds.regions)


def _order(grid: Grid, rng: random.Random, consumed: Callable[[], bool]) -> Iterator[int]:
    """Numbers of all programs, each once, at random.

    Where a later launch reads what this one writes, its rows are complete only if all programs did run that have a part
    of them. Those are neighbours along an axis, or stand at equal distances on it, so each random program is followed
    by such groups, small ones first.
    """
    total = grid[0] * grid[1] * grid[2]
    numbers = list(range(total))
    rng.shuffle(numbers)
    seen: set[int] = set()
    grouped: bool | None = None
    for anchor in numbers:
        if anchor in seen:
            continue
        seen.add(anchor)
        yield anchor
        grouped = consumed() if grouped is None else grouped
        for number in _companions(anchor, grid) if grouped else ():
            if number not in seen:
                seen.add(number)
                yield number


def _companions(anchor: int, grid: Grid) -> Iterator[int]:
    """Programs that may share rows with one."""
    steps = (grid[1] * grid[2], grid[2], 1)
    groups: list[list[int]] = []
    for size, step in zip(grid, steps, strict=True):
        own = anchor // step % size
        first = anchor - own * step
        for chunk in _CHUNKS:
            start = own // chunk * chunk
            groups.append([first + place * step for place in range(start, min(start + chunk, size))])
        for parts in _PARTS:
            if size % parts == 0:
                apart = size // parts
                groups.append([first + place * step for place in range(own % apart, size, apart)])
    for group in sorted(groups, key=len):
        yield from group

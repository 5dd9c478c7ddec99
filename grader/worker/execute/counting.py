"""What interpreted launches move and multiply, by tensor, and the check that no access leaves the launch's tensors.

Every access of the interpreter (masked pointers, block pointers, descriptors, atomics) ends in four functions of its
native module; those are replaced for the length of a launch. Lanes whose mask is false don't count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime import interpreter

from ..traffic_model import TOGETHER, LaunchRecord, TensorTraffic, Traffic
from .bounds import Addresses, Bounds, Place, Region, region_of
from .memory import Memory, Storage
from .products import Products, on_tensor_cores

Mask = npt.NDArray[np.bool_]


class Shadow(Protocol):
    """Follows what was written, for sampled runs (see `sampling`)."""

    def loaded(self, region: Region, live: Addresses, width: int) -> None: ...
    def stored(self, region: Region, live: Addresses, width: int) -> None: ...
    def updated(self, region: Region, live: Addresses, width: int) -> None: ...


def _as_bools(mask: Any) -> Mask:
    """A mask that selects lanes, whatever the interpreter holds it as: block pointers and descriptors pass a buffer."""
    return np.asarray(mask).astype(bool, copy=False)


class _Memory:
    """Stands in for the interpreter's native module: checks and counts, then does what that does."""

    def __init__(
        self, native: Any, bounds: Bounds, shadow: Shadow | None, products: Products | None, late: bool
    ) -> None:
        self._native = native
        self._bounds = bounds
        self._shadow = shadow
        self._products = products
        self._late = late
        self._added: dict[int, dict[bytes, list[tuple[Any, ...]]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        mask = _as_bools(mask)
        found = self._touch(pointers, mask, dtype.itemsize, loads=True, stores=False)
        if self._products is not None:
            pointers = self._products.shown(pointers, found)
        return self._native.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        mask = _as_bools(mask)
        self._touch(pointers, mask, values.itemsize, loads=False, stores=True)
        return self._native.store(pointers, values, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, semantic: Any) -> Any:
        mask = _as_bools(mask)
        late = self._late and operation == self._native.RMW_OP.FADD
        found = self._touch(pointers, mask, values.itemsize, loads=True, stores=True, adds=late)
        if not late or len(found) != 1:
            return self._native.atomic_rmw(operation, pointers, values, mask, semantic)
        # What a launcher's programs add may come in any order, whoever of them comes first.
        ((region, _),) = found
        kept = (operation, pointers.copy(), values.copy(), np.array(mask), semantic)
        self._added.setdefault(id(region), {}).setdefault(pointers.tobytes(), []).append(kept)
        return self._native.load(pointers, mask, np.zeros_like(values), values.dtype)

    def settle(self, regions: Sequence[Region] | None = None) -> None:
        """Make the additions that wait, of some regions or of all: to equal places every other one, then the rest."""
        waiting = list(self._added) if regions is None else [id(region) for region in regions]
        for number in waiting:
            for additions in self._added.pop(number, {}).values():
                for addition in (*additions[::2], *additions[1::2]):
                    self._native.atomic_rmw(*addition)

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, semantic: Any) -> Any:
        self._touch(pointers, np.ones(np.shape(pointers), bool), values.itemsize, loads=True, stores=True)
        return self._native.atomic_cas(pointers, expected, values, semantic)

    def _touch(
        self, pointers: Any, mask: Mask, width: int, *, loads: bool, stores: bool, adds: bool = False
    ) -> list[tuple[Region, Addresses]]:
        """Check and count an access; the regions that it meets, and where.

        Args:
            adds: it's an addition that may wait; any other access finds all of them made.
        """
        lanes = np.count_nonzero(mask)
        if lanes == 0:
            return []
        live = pointers if lanes == mask.size == pointers.size else pointers[np.broadcast_to(mask, pointers.shape)]
        if live.size == 0:
            return []
        found = self._bounds.touch(live.reshape(-1), width, loads=loads, stores=stores)
        if self._added and (not adds or len(found) != 1):
            self.settle([region for region, _ in found])
        if self._shadow is not None:
            note = self._shadow.updated if loads and stores else self._shadow.stored if stores else self._shadow.loaded
            for region, addresses in found:
                note(region, addresses, width)
        return found


@dataclass
class Launched:
    """What one launch did: its record so far, and the regions that it was given.

    Attributes:
        core_flops: of its record's, those of tensor cores.
    """

    record: LaunchRecord
    regions: list[Region]
    bounds: Bounds
    core_flops: int = 0

    def run(self, run: Callable[[], None]) -> None:
        """Run one program, and note what it read from."""
        before = [region.loaded for region in self.regions]
        run()
        for region, loaded in zip(self.regions, before, strict=True):
            region.readers += region.loaded > loaded
            region.most = max(region.most, region.loaded - loaded)


@dataclass
class Counter:
    """Counts all launches of a tape.

    Args:
        exact: whether stores are counted by element, to tell padding from results.
    """

    exact: bool = True
    launches: list[Launched] = field(default_factory=list)
    _stored_at: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    def open(
        self,
        kernel: str,
        grid: tuple[int, ...],
        constexprs: dict[str, Any],
        given: Sequence[torch.Tensor],
        memory: Memory,
        place: Place,
    ) -> Launched:
        """The record of a launch that is about to run with these tensors."""
        storages = {id(storage): storage for tensor in given if (storage := memory.of(tensor)) is not None}
        regions = [region_of(storage, self._name(storage)) for storage in storages.values()]
        if self.exact:
            for region in regions:
                region.stored_at = self._elements(region.storage)
        plain = {name: value for name, value in constexprs.items() if isinstance(value, (bool, int, float, str))}
        launched = Launched(LaunchRecord(kernel, grid, constexprs=plain), regions, Bounds(kernel, regions, place))
        self.launches.append(launched)
        return launched

    def _name(self, storage: Storage) -> str:
        if storage.argument:
            return storage.argument
        made = f"the tensor made at {storage.where}" if storage.where else "a tensor of the launcher's own"
        return f"{made} from {_together(storage)}" if storage.copied else made

    def _elements(self, storage: Storage) -> npt.NDArray[np.int64]:
        if storage.start not in self._stored_at:
            self._stored_at[storage.start] = np.zeros(-(-storage.size // storage.itemsize), np.int64)
        return self._stored_at[storage.start]

    def finish(
        self, memory: Memory, results: Sequence[Any], gradients: dict[str, Any], operations: dict[str, int]
    ) -> Traffic:
        """The traffic of all launches; `results` in order and `gradients` name the buffers."""
        names = self._names(memory, results, gradients)
        tensors: dict[str, TensorTraffic] = {}
        for launched in self.launches:
            record = launched.record
            for region in launched.regions:
                if region.loaded or region.stored:
                    record.loaded_bytes += region.loaded
                    record.stored_bytes += region.stored
                    name = names[region.storage.start]
                    for table in (tensors, record.tensors):
                        entry = table.setdefault(name, TensorTraffic())
                        entry.loaded_bytes += region.loaded
                        entry.stored_bytes += region.stored
                        entry.updated_bytes += region.updated
                        entry.readers += region.readers
                        entry.most = max(entry.most, region.most)
        self._split_padding(tensors, memory, results)
        records = [launched.record for launched in self.launches]
        launched_with = {region.storage.start for launched in self.launches for region in launched.regions}
        scratch = {True: 0, False: 0}
        given = [item for item in [*results, *gradients.values()] if isinstance(item, torch.Tensor)]
        for storage in memory:
            of_launch = storage.start in launched_with
            name = names.get(storage.start, "" if of_launch else "tmp:")
            moved = tensors.get(name, TensorTraffic())
            if name.startswith(("scratch:", "tmp:")) or (name.startswith("copy:") and moved.stored_bytes):
                scratch[of_launch] += storage.size
            elif name.startswith(("out:", "grad:")):
                own = sum(item.numel() * item.element_size() for item in given if memory.of(item) is storage)
                scratch[of_launch] += max(0, storage.size - own)
        return Traffic(
            launches=len(records),
            records=records,
            tensors=tensors,
            loaded_bytes=sum(record.loaded_bytes for record in records),
            stored_bytes=sum(record.stored_bytes for record in records),
            scratch_bytes=max(scratch.values()),
            operations=dict(operations),
        )

    def _names(self, memory: Memory, results: Sequence[Any], gradients: dict[str, Any]) -> dict[int, str]:
        """Start of a storage → its name in the report."""
        names: dict[int, str] = {}
        stored = {r.storage.start for launched in self.launches for r in launched.regions if r.stored}
        for made in memory:
            if made.argument or made.copied:
                names[made.start] = made.argument or f"copy:{_together(made)}"
        returned = [(f"out:{position}", item) for position, item in enumerate(results)]
        for name, item in [*returned, *((f"grad:{name}", item) for name, item in gradients.items())]:
            storage = memory.of(item) if isinstance(item, torch.Tensor) else None
            if storage is not None:
                names.setdefault(storage.start, name)
        counts = {"scratch": 0, "tmp": 0}
        for launched in self.launches:
            for region in launched.regions:
                if region.storage.start not in names:
                    kind = "scratch" if region.storage.start in stored else "tmp"
                    names[region.storage.start] = f"{kind}:{counts[kind]}"
                    counts[kind] += 1
        return names

    def _split_padding(self, tensors: dict[str, TensorTraffic], memory: Memory, results: Sequence[Any]) -> None:
        """Tell what was stored to returned elements from what was stored beside them in the same storage."""
        first: dict[int, str] = {}
        for position, item in enumerate(results):
            own = memory.of(item) if isinstance(item, torch.Tensor) else None
            stored_at = self._stored_at.get(own.start) if own is not None else None
            if own is None or stored_at is None or own.argument or own.copied or item.element_size() != own.itemsize:
                continue
            held = np.zeros(stored_at.size, bool)
            offset = (item.data_ptr() - own.start) // own.itemsize
            torch.from_numpy(held).as_strided(item.shape, item.stride(), offset).fill_(True)
            within = int(stored_at[held].sum())
            name = f"out:{position}"
            entry = tensors.setdefault(name, TensorTraffic())
            if first.setdefault(own.start, name) == name:
                entry.padding_bytes, entry.stored_bytes = entry.stored_bytes - within, within
            else:  # Another result lies in the same storage, under whose name all was counted.
                entry.stored_bytes = within
                tensors[first[own.start]].padding_bytes -= within


def _together(storage: Storage) -> str:
    """The inputs of which a storage holds copies."""
    return TOGETHER.join(sorted(storage.copied))


@contextmanager
def watched(
    launched: Launched, shadow: Shadow | None = None, products: Products | None = None, *, late: bool = False
) -> Iterator[None]:
    """Every access of the interpreter in the block is checked and counted for this launch, and every product.

    Args:
        late: floats that programs add up by atomics are added in another order than that in which they come.
    """
    memory = _Memory(interpreter._interpreter, launched.bounds, shadow, products, late)
    with ExitStack() as stack:
        _put(stack, interpreter, "_interpreter", memory)
        for name in ("create_dot", "create_dot_scaled"):
            if hasattr(interpreter.InterpreterBuilder, name):
                original = getattr(interpreter.InterpreterBuilder, name)
                _put(stack, interpreter.InterpreterBuilder, name, _counting(original, launched))
        if products is not None:
            product = interpreter.InterpreterBuilder.create_dot
            _put(stack, interpreter.InterpreterBuilder, "create_dot", products.watching(product))
        yield
        memory.settle()


def _counting(original: Callable[..., Any], launched: Launched) -> Callable[..., Any]:
    def create_dot(self: Any, a: Any, *rest: Any) -> Any:
        result = original(self, a, *rest)
        flops = 2 * result.data.size * a.data.shape[-1]
        launched.record.dot_flops += flops
        launched.core_flops += flops if on_tensor_cores(a, rest[2]) else 0
        return result

    return create_dot


def _put(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)

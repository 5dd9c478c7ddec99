"""Counts what Triton kernels load and store under the interpreter, by tensor.

Every access of the interpreter (masked pointers, block pointers, tensor descriptors, atomics) ends in four functions
of its native module; those are replaced while tracing, so that only lanes whose mask is true are counted.

The numbers are made in the submission's own process: they are evidence only together with a right output, and a
submission that rewrites this module is a known limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction, TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from .decoys import Decoys
from .foreign_calls import imported_peers
from .kernel_names import foreign_names
from .library_ops import watch_library_ops
from .own_operations import plain_triton
from .traffic_model import LaunchRecord, TensorTraffic, Traffic
from .traffic_regions import OUTSIDE, Regions

MAX_OUTSIDE_SENTENCES = 5
_BUFFER = "buffer:"


class Trace:
    """A trace in progress; `finish` turns it into `Traffic`."""

    def __init__(self, named_tensors: Mapping[str, torch.Tensor], decoys: Decoys | None = None) -> None:
        self.decoys = decoys
        self.regions = Regions()
        for name, tensor in named_tensors.items():
            self.regions.add_elements(name, tensor)
        self.records: list[LaunchRecord] = []
        self.tensors: dict[str, TensorTraffic] = {}
        self.outside_bytes = 0
        self.outside: list[str] = []
        self._outside_seen: set[tuple[str, bool, str]] = set()
        self.library_ops: list[str] = []
        self.torch_elements = 0
        self.bytes_known = True
        self.program_ids: set[tuple[int, ...]] = set()

    def begin(self, kernel: str, arguments: Sequence[Any]) -> LaunchRecord:
        """Open the record of a launch and register the buffers that it is given."""
        record = LaunchRecord(kernel)
        self.records.append(record)
        self.program_ids = set()
        for tensor in _tensors_in(arguments):
            if tensor.numel() and not self.regions.knows_storage(tensor):
                self.regions.add_storage(f"{_BUFFER}{len(self.regions.all)}", tensor)
        return record

    def note_copy(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Remember that a torch operation copied an argument, so that reads of the copy are told as such."""
        name = self.regions.owner_of(source)
        if name and not name.startswith(_BUFFER) and result.numel() and not self.regions.knows_storage(result):
            self.regions.add_storage(name if name.startswith("copy:") else f"copy:{name}", result)

    def note_work(self, elements: int) -> None:
        """Add what an operation of torch's arithmetic outside of launches went over."""
        self.torch_elements += elements

    def count(self, pointers: Any, mask: Any, width: int, *, loads: bool, stores: bool) -> None:
        """Count one access of `width` bytes a lane, for the lanes whose mask is true."""
        addresses = np.asarray(pointers, np.uint64)
        live = addresses[np.broadcast_to(np.asarray(mask, bool), addresses.shape)]
        if live.size == 0:
            return
        record = self.records[-1] if self.records else LaunchRecord("")
        owners = self.regions.owners(live, width)
        for index, lanes in zip(*np.unique(owners, return_counts=True), strict=True):
            size = int(lanes) * width
            record.loaded_bytes += size * loads
            record.stored_bytes += size * stores
            if index == OUTSIDE:
                self._note_outside(record.kernel, int(live[owners == OUTSIDE][0]), size * (loads + stores), stores)
                continue
            name = self.regions.all[index].name
            for table in (self.tensors, record.tensors):
                entry = table.setdefault(name, TensorTraffic())
                entry.loaded_bytes += size * loads
                entry.stored_bytes += size * stores

    def _note_outside(self, kernel: str, address: int, size: int, stores: bool) -> None:
        self.outside_bytes += size
        place, distance = self.regions.describe(address)
        place = place.replace(_BUFFER, "launched buffer ")
        key = (kernel, stores, place)
        if key not in self._outside_seen and len(self.outside) < MAX_OUTSIDE_SENTENCES:
            self._outside_seen.add(key)
            at = f", first {distance} bytes away" if distance else ""
            self.outside.append(f"{kernel} {'stores' if stores else 'loads'} {place}{at}")

    def finish(self, results: Sequence[Any] | None = None) -> Traffic:
        """The traffic so far; `results` are what the call returned, in order, to name the buffers by."""
        names = self._final_names(results)
        for record in self.records:
            record.tensors = {names.get(name, name): entry for name, entry in record.tensors.items()}
        return Traffic(
            launches=len(self.records),
            records=self.records,
            tensors={names.get(name, name): entry for name, entry in self.tensors.items()},
            loaded_bytes=sum(record.loaded_bytes for record in self.records),
            stored_bytes=sum(record.stored_bytes for record in self.records),
            outside_bytes=self.outside_bytes,
            outside=self.outside,
            library_ops=self.library_ops,
            torch_elements=self.torch_elements,
            input_ops=self.decoys.read if self.decoys is not None else [],
            scratch_bytes=sum(
                region.stop - region.start
                for region in self.regions.all
                if region.name.startswith(_BUFFER) and not names.get(region.name, "").startswith("out:")
            ),
            bytes_known=self.bytes_known,
        )

    def _final_names(self, results: Sequence[Any] | None) -> dict[str, str]:
        names: dict[str, str] = {}
        for position, result in enumerate(results or ()):
            if isinstance(result, torch.Tensor):
                name = self.regions.owner_of(result)
                if name and name.startswith(_BUFFER):
                    names.setdefault(name, f"out:{position}")
        stored = "out" if results is None else "scratch"
        counts = {stored: 0, "tmp": 0}
        for region in self.regions.all:
            if region.name.startswith(_BUFFER) and region.name in self.tensors and region.name not in names:
                kind = stored if self.tensors[region.name].stored_bytes else "tmp"
                names[region.name] = f"{kind}:{counts[kind]}"
                counts[kind] += 1
        return names


class _CountingMemory:
    """Stands in for the interpreter's native module: counts, then does what that does."""

    def __init__(self, native: Any, trace: Trace) -> None:
        self._native = native
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._trace.count(pointers, mask, np.dtype(dtype).itemsize, loads=True, stores=False)
        return self._native.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        self._trace.count(pointers, mask, np.asarray(values).itemsize, loads=False, stores=True)
        return self._native.store(pointers, values, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, semantic: Any) -> Any:
        self._trace.count(pointers, mask, np.asarray(values).itemsize, loads=True, stores=True)
        return self._native.atomic_rmw(operation, pointers, values, mask, semantic)

    def atomic_cas(self, pointers: Any, expected: Any, values: Any, semantic: Any) -> Any:
        self._trace.count(pointers, True, np.asarray(values).itemsize, loads=True, stores=True)
        return self._native.atomic_cas(pointers, expected, values, semantic)


@contextmanager
def tracing(
    named_tensors: Mapping[str, torch.Tensor], *, count_bytes: bool = True, decoys: Decoys | None = None
) -> Iterator[Trace]:
    """Count loads and stores of every Triton launch in the block.

    Args:
        named_tensors: argument name → tensor as the submission receives it.
        count_bytes: False notes launches and library operations only, which costs next to nothing.
        decoys: stand in for the inputs' values outside of launches.

    Yields:
        the trace; call ``finish(results)`` on it, inside the block or after.
    """
    trace = Trace(named_tensors, decoys)
    trace.bytes_known = count_bytes
    peers = imported_peers()
    with ExitStack() as stack:
        if count_bytes:
            memory = _CountingMemory(interpreter._interpreter, trace)
            stack.enter_context(_patched(interpreter, "_interpreter", memory))
        stack.enter_context(_patched(interpreter.GridExecutor, "__call__", _counting_call(trace)))
        stack.enter_context(_patched(JITFunction, "run", _counting_run(trace)))
        builder = interpreter.InterpreterBuilder
        stack.enter_context(_patched(builder, "set_grid_dim", _counting_grid_dim(trace, builder.set_grid_dim)))
        stack.enter_context(_patched(builder, "set_grid_idx", _counting_grid_idx(trace, builder.set_grid_idx)))
        stack.enter_context(_patched(interpreter.InterpretedFunction, "run", _naming_run(trace)))
        stack.enter_context(plain_triton())
        follow, read = (decoys.run, decoys.read_out) if decoys is not None else (None, None)
        stack.enter_context(watch_library_ops(trace.library_ops, trace.note_copy, follow, read, trace.note_work))
        if decoys is not None:
            stack.enter_context(decoys.hidden())
        yield trace
        trace.library_ops.extend(f"import {name}" for name in sorted(imported_peers() - peers))


@contextmanager
def no_op_kernels() -> Iterator[list[str]]:
    """Every Triton launch in the block does nothing: outputs stay as they were allocated.

    Yields:
        names of the kernels that were asked for, in order.
    """
    skipped: list[str] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        skipped.append(kernel_name(self.fn))

    with _patched(interpreter.InterpretedFunction, "run", run), _patched(JITFunction, "run", run):
        yield skipped


@contextmanager
def reversed_programs() -> Iterator[None]:
    """The interpreter runs the programs of every launch in the block from the last to the first.

    A GPU promises no order, so sums that depend on it (atomics in floating point) show here as other bits.
    """
    original = interpreter.InterpreterBuilder.set_grid_idx

    def set_grid_idx(self: Any, *index: int) -> None:
        original(self, *(size - 1 - place for size, place in zip(self.grid_dim, index, strict=True)))

    with _patched(interpreter.InterpreterBuilder, "set_grid_idx", set_grid_idx):
        yield


def kernel_name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _counting_call(trace: Trace) -> Callable[..., Any]:
    original = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        record = trace.begin(kernel_name(self.fn), [*args, *kwargs.values()])
        given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        record.constexprs = {
            name: given[name] for name in self.constexprs if isinstance(given.get(name), (bool, int, float, str))
        }
        try:
            # The interpreter moves arguments with torch operations of its own, which aren't the submission's.
            with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
                return original(self, *args, **kwargs)
        finally:
            record.programs = len(trace.program_ids)
            if trace.decoys is not None:
                trace.decoys.launched(list(_tensors_in([*args, *kwargs.values()])))

    return call


def _naming_run(trace: Trace) -> Callable[..., Any]:
    original = interpreter.InterpretedFunction.run
    seen: set[int] = set()

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in seen:
            seen.add(id(self))
            trace.library_ops.extend(f"`{name}` of Python in {kernel_name(self.fn)}" for name in foreign_names(self))
        return original(self, *args, **kwargs)

    return run


def _counting_run(trace: Trace) -> Callable[..., Any]:
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        trace.begin(kernel_name(self.fn), [*args, *kwargs.values()])
        trace.bytes_known = False
        decoys = trace.decoys
        if decoys is None:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        # What the launch calls back is the submission's code, no kernel.
        hooks, grid = self.pre_run_hooks, decoys.unlit(grid) if callable(grid) else grid
        self.pre_run_hooks = [decoys.unlit(hook) for hook in hooks]
        decoys.show()
        try:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        finally:
            decoys.launched(list(_tensors_in([*args, *kwargs.values()])))
            self.pre_run_hooks = hooks

    return run


def _counting_grid_dim(trace: Trace, original: Callable[..., Any]) -> Callable[..., Any]:
    def set_grid_dim(self: Any, *sizes: int) -> None:
        if trace.records:
            trace.records[-1].grid = tuple(int(size) for size in sizes)
        if trace.decoys is not None:
            trace.decoys.show()  # Hooks and the grid's function have been called: from here on it's the kernel.
        original(self, *sizes)

    return set_grid_dim


def _counting_grid_idx(trace: Trace, original: Callable[..., Any]) -> Callable[..., Any]:
    def set_grid_idx(self: Any, *index: int) -> None:
        trace.program_ids.add(tuple(index))
        original(self, *index)

    return set_grid_idx


def _tensors_in(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Tensors among launch arguments: bare, in tuples, behind tensor descriptors and reinterpreted ones."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors_in(value)
        elif isinstance(value, (TensorDescriptor, TensorWrapper)):
            yield from _tensors_in([value.base])

"""Everything that a submission did with tensors since its import, as far as a later call may need it.

Tensors hold on to the steps that made them; a storage to the operations that wrote into it. A call that uses a tensor
from before gets these steps at the head of its tape. What earlier calls wrote into it is not repeated: a buffer starts
each call as the import, or the call that made it, left it by operations on constants.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from ..tape import MAX_NAME, MAX_NOTES, MAX_STEPS, MAX_TEXT
from .fast_start import DataFree, settings_alone
from .values import JSON, Encoder, Memory, Origin, Refused, Step, Value, constant, device_name

ALLOCATION_ALIGNMENT = 512
"""torch's CUDA allocator hands out addresses that are multiples of 512."""
_FIRST_ADDRESS = 1 << 40
MAX_WRITES = 512
_SWEEP = 1024
_OVERWRITING = frozenset({"zero_", "fill_", "copy_"})
FILLS: dict[str, Any] = {"zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1}
_SHAPED_LIKE = frozenset({"empty_like", "new_empty", "new_empty_strided", "full_like", "new_full", *FILLS})
"""Operations that take a tensor for its shape and dtype, not for its numbers."""


class Address(int):
    """Where a tensor would lie: a number of its own type, because it means nothing to a kernel."""


class History:
    """The record that lives as long as the worker.

    Args:
        folder: of the submission; steps are placed by its lines.

    Attributes:
        asked: the submission asked which card there is.
    """

    def __init__(self, folder: str) -> None:
        settings_alone()
        self.fake_mode = DataFree(allow_non_fake_inputs=True)
        self._prefix = os.path.abspath(folder) + os.sep
        self._memories: dict[int, Memory] = {}
        self._sweep_at = _SWEEP
        self._address = _FIRST_ADDRESS
        self._number = 0
        self._touched: list[Memory] = []
        self._preserved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._lists: list[list[Step]] = []
        self._count = 0
        self.call = 0
        self.asked = False
        self.notes: list[str] = []
        self.called = ""
        self.phase = "forward"
        self.binders: dict[tuple[int, Any], Any] = {}

    @property
    def recording(self) -> bool:
        return bool(self._lists)

    def where(self) -> str:
        """The submission's innermost line that is running, as "fa2_forward.py:34"."""
        frame = sys._getframe(1)
        while frame is not None:
            place = self.place(frame.f_code.co_filename, frame.f_lineno)
            if place:
                return place
            frame = frame.f_back  # type: ignore[assignment]
        return "" if self.phase == "forward" else "the backward of torch's operations"

    def place(self, filename: str, line: int) -> str:
        """A line of the submission's as "fa2_forward.py:34"; empty for any other file."""
        if not filename.startswith(self._prefix):
            return ""
        return f"{filename[len(self._prefix) :]}:{line}"[-MAX_NAME:]

    def note(self, text: str) -> None:
        """Add a remark for the student, once."""
        if text not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(text[:MAX_TEXT])

    @contextmanager
    def new_call(self) -> Iterator[list[Step]]:
        """Yield the list that the steps of a new call are added to."""
        self._forget_the_call()  # What the import's kernels wrote.
        self.call += 1
        self.notes, self._count, self.phase = [], 0, "forward"
        steps: list[Step] = []
        self._lists = [steps]
        try:
            yield steps
        finally:
            self._lists = []
            self._forget_the_call()

    @contextmanager
    def aside(self) -> Iterator[list[Step]]:
        """Steps of the block go to the yielded list."""
        steps: list[Step] = []
        self._lists.append(steps)
        try:
            yield steps
        finally:
            self._lists.pop()

    def _forget_the_call(self) -> None:
        """Take back what the call wrote into storages that outlive it; constants written at their making stay."""
        for memory in self._touched:
            kept = [step for step in memory.writes[1:] if step.origin is None and step.call == memory.call]
            memory.dropped = True
            memory.writes = [memory.creation, *kept]
            memory.origin = memory.creation.origin
        with torch.utils._python_dispatch._disable_current_modes():
            for numbers, before in self._preserved.values():
                numbers.copy_(before)
        self._touched, self._preserved = [], {}

    def preserve(self, tensor: torch.Tensor) -> None:
        """The known numbers of a tensor from before this call are about to change: the next call shall find them."""
        value = self.value_of(tensor)
        if value.known is not None and value.memory.call != self.call and id(value.memory) not in self._preserved:
            numbers = value.known.untyped_storage()
            with torch.utils._python_dispatch._disable_current_modes():
                self._preserved[id(value.memory)] = (numbers, numbers.clone())

    def value_of(self, tensor: torch.Tensor) -> Value:
        """The value that a tensor of the recorder's stands for.

        Raises:
            Refused: it was made where nothing is recorded, or by an earlier call of that call's own numbers.
        """
        found: Value | None = getattr(tensor, "recorded", None)
        if found is None:
            raise Refused(
                self.where(),
                "a tensor that was made where nothing is recorded (in another thread, or by C++ code). Make it "
                "in the launcher, with torch's functions.",
            )
        made = found.memory.creation
        if found.memory.call != self.call and made.origin is not None:
            raise Refused(
                self.where(),
                f"this call uses a tensor that an earlier call made from {made.origin.text}"
                f"{f' ({made.where})' if made.where else ''}; its numbers belong to that call. Make it anew in every "
                "call.",
            )
        if found.memory.dropped and found.memory.call != self.call and _is_buffer(made):
            self.note(
                f"The buffer made at {made.where or 'an unknown line'} is kept between calls. Every call finds it as "
                "the operations at its making left it, without what earlier calls wrote."
            )
        return found

    def memory_of(self, tensor: torch.Tensor) -> Memory | None:
        return self._memories.get(tensor.untyped_storage()._cdata)

    def address_of(self, tensor: FakeTensor) -> Address:
        """An aligned address, the same for all views of a storage."""
        memory = self.memory_of(tensor)
        if memory is None:
            raise Refused(self.where(), "the address of a tensor that was made where nothing is recorded.")
        if not memory.address:
            size = tensor.untyped_storage().nbytes()
            memory.address = self._address
            self._address += (size // ALLOCATION_ALIGNMENT + 2) * ALLOCATION_ALIGNMENT
        return Address(memory.address + tensor.storage_offset() * tensor.element_size())

    def step(self, content: JSON, inputs: list[Value], origin: Origin | None = None) -> Step:
        """Add a step to the tape.

        Raises:
            Refused: there are too many.
        """
        self._number += 1
        step = Step(self._number, self.call, content, inputs, origin)
        if self.recording:
            self._count += 1
            if self._count > MAX_STEPS:
                raise Refused(
                    step.where,
                    f"this call makes more than {MAX_STEPS} operations and launches; a loop over launches belongs into "
                    "the grid of one.",
                )
            self._lists[-1].append(step)
        return step

    def argument(self, name: str) -> Step:
        """The step that stands for an argument; it isn't part of the tape."""
        self._number += 1
        return Step(self._number, self.call, {"do": "argument"}, [], Origin(f"the argument {name}"))

    def define(self, tensor: torch.Tensor, step: Step) -> Value:
        """Give a new tensor its value, as the next of a step's results."""
        assert isinstance(tensor, FakeTensor)
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is None:
            memory = self._memories[storage._cdata] = Memory(storage, step)
            self._sweep()
        value = tensor.recorded = Value(tensor, step, memory)
        step.outs.append(value)
        return value

    def _sweep(self) -> None:
        """Drop what is known of storages that are gone, now and then."""
        if len(self._memories) > self._sweep_at:
            self._memories = {key: m for key, m in self._memories.items() if not m.reference.expired()}
            self._sweep_at = 2 * len(self._memories) + _SWEEP

    def constant(self, tensor: torch.Tensor, twin: FakeTensor) -> Value:
        """Note a tensor of the launcher's own numbers; `twin` stands for it from now on."""
        content = constant(tensor, self.where())
        value = self.define(twin, self.step(content, []))
        value.known = tensor.detach().clone()
        return value

    def operation(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Step | None:
        """Note an operation of torch's that was done on data-free tensors; None where it made and wrote nothing."""
        schema, where = func._schema, self.where()
        written = [
            given
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for given in tree_leaves(args[position] if position < len(args) else kwargs.get(argument.name))
            if isinstance(given, torch.Tensor)
        ]
        made = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
        if not written and not made:
            return None
        encoder = Encoder(self.value_of, where)
        content = {
            "do": "op",
            "name": f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}",
            "args": [encoder.encode(item) for item in args],
            "kwargs": {name: encoder.encode(item) for name, item in kwargs.items() if name != "pin_memory"},
            "where": where,
        }
        name = schema.name.partition("::")[2]
        read = encoder.inputs[1:] if name in _OVERWRITING else [] if name in _SHAPED_LIKE else encoder.inputs
        origin = next((value.memory.origin for value in read if value.memory.origin is not None), None)
        step = self.step(content, encoder.inputs, origin)
        for tensor in written:
            self._write(tensor, step, covers=name in _OVERWRITING)
        for item in made:
            if any(item is tensor for tensor in written):
                step.outs.append(None)
            else:
                self.define(item, step)
        return step

    def _write(self, tensor: torch.Tensor, step: Step, *, covers: bool) -> None:
        memory = self.value_of(tensor).memory
        whole = tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
        if covers and whole and tensor.is_contiguous():
            memory.origin = step.origin
            if step.origin is None and memory.call == self.call:
                memory.writes = [memory.creation]
        elif step.origin is not None:
            memory.origin = step.origin
        memory.writes.append(step)
        if step.origin is not None or memory.call != self.call:
            self._touched.append(memory)
        if len(memory.writes) > MAX_WRITES:
            raise Refused(step.where, f"a tensor is written more than {MAX_WRITES} times, piece by piece.")

    def written_by_kernel(self, value: Value, kernel: str) -> None:
        """A launch got this tensor: what it holds now is the kernel's, and nobody knows it."""
        memory = value.memory
        if not memory.protected:
            memory.unread = self.call
            memory.origin = Origin(f"what the kernel `{kernel}` wrote")
            self._touched.append(memory)

    def before(self, values: Iterable[Value]) -> list[Step]:
        """The steps before this call that make what these values held when it began, in order."""
        found: dict[int, Step] = {}
        seen: set[int] = set()
        pending = list(values)
        while pending:
            value = pending.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            for step in (value.step, *value.memory.writes):
                if step.call == self.call or step.number in found:
                    continue
                found[step.number] = step
                pending += _needed(step)
                if len(found) > MAX_STEPS:
                    raise Refused(step.where, f"a tensor kept between calls took more than {MAX_STEPS} steps to make.")
        return [step for number in sorted(found) for step in _repeatable(found[number])]


def _is_buffer(creation: Step) -> bool:
    """Whether a tensor was made to be written: what a kernel left in it may be missed, in a table it only read not."""
    name = creation.content.get("name", "").partition(".")[2]
    return bool(name.startswith(("empty", "new_empty", "zeros", "new_zeros")))


def _is_shaped_like(step: Step) -> bool:
    return step.content["do"] == "op" and step.content["name"].split(".")[1] in _SHAPED_LIKE


def _needed(step: Step) -> list[Value]:
    return [] if _is_shaped_like(step) else step.inputs


def _repeatable(step: Step) -> list[Step]:
    """A step of an earlier time as the tape shall have it: a tensor "like" another one no longer needs that one."""
    if not _is_shaped_like(step):
        return [step]
    (made,) = step.outs
    assert made is not None
    name = step.content["name"].split(".")[1]
    content = {
        "do": "op",
        "name": "aten.empty_strided.default",
        "args": [made.shape, made.strides],
        "kwargs": {
            "dtype": {"dtype": str(made.dtype).removeprefix("torch.")},
            "device": {"device": device_name(made.device)},
        },
        "where": step.where,
    }
    allocation = Step(step.number, step.call, content, [], None)
    allocation.outs = [made]
    if name.startswith(("empty", "new_empty")) or not math.prod(made.shape):
        return [allocation]
    number = FILLS.get(name, step.content["args"][-1])
    fill = {"do": "op", "name": "aten.fill_.Scalar", "args": [made, number], "kwargs": {}, "where": step.where}
    filling = Step(step.number, step.call, fill, [made], None)
    filling.outs = [None]
    return [allocation, filling]

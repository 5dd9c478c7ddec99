"""What a recording knows of tensors: the steps that made them, their memory, and how a step is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from ..tape import CONSTANT_DTYPES, MAX_CONSTANT_ELEMENTS, MAX_DEPTH, MAX_NAME, MAX_TEXT

JSON = dict[str, Any]


class Refused(Exception):
    """A launcher did what can't be recorded; the message begins with its line and says what to do instead.

    Attributes:
        where: "fa2_forward.py:34"; empty if no line of the submission's was running.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class Origin:
    """Where numbers come from that only the call which made them can know: an argument, or a kernel.

    Attributes:
        text: "the argument q" or "what the kernel `_forward` wrote".
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Step:
    """One step of a tape, or of the time before it.

    Attributes:
        number: order among all steps of the process.
        call: the call that it belongs to; 0 is the import.
        content: the step as the tape writes it, but with `Value`s in place of ids.
        inputs: the values that it takes.
        outs: the values that it makes; None in place of what it gives back as it was.
        origin: why a later call can't repeat it; None if it can.
    """

    __slots__ = ("call", "content", "inputs", "number", "origin", "outs")

    def __init__(self, number: int, call: int, content: JSON, inputs: list[Value], origin: Origin | None) -> None:
        self.number, self.call, self.content, self.inputs, self.origin = number, call, content, inputs, origin
        self.outs: list[Value | None] = []

    @property
    def where(self) -> str:
        return str(self.content.get("where", ""))


class Memory:
    """One storage.

    Attributes:
        creation: the step that allocated it. writes: that step and the operations that wrote into it since.
        origin: what its numbers derive from, at this point of the call.
        lost: whether values that are known of it would be stale. unread: the call in which a kernel may have written.
        dropped: whether writes of an earlier call were left out.
    """

    __slots__ = (
        "address",
        "call",
        "creation",
        "dropped",
        "lost",
        "origin",
        "protected",
        "reference",
        "unread",
        "writes",
    )

    def __init__(self, storage: torch.UntypedStorage, step: Step) -> None:
        self.reference = StorageWeakRef(storage)
        self.call, self.creation, self.origin = step.call, step, step.origin
        self.writes = [step]
        self.address = 0
        self.lost = self.dropped = self.protected = False
        self.unread = -1


class Value:
    """One tensor as steps refer to it."""

    __slots__ = ("device", "dtype", "known", "memory", "shape", "step", "strides")

    def __init__(self, tensor: FakeTensor, step: Step, memory: Memory) -> None:
        self.step, self.memory = step, memory
        self.shape, self.strides = list(tensor.shape), list(tensor.stride())
        self.dtype, self.device = tensor.dtype, tensor.device
        self.known: torch.Tensor | None = None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def device_name(device: torch.device) -> str:
    return "cuda:0" if device.type == "cuda" else device.type


class Encoder:
    """Writes the arguments of one step down and collects the values that they name.

    Args:
        value_of: gives a tensor's `Value`; refuses one that has none.
    """

    def __init__(self, value_of: Callable[[torch.Tensor], Value], where: str) -> None:
        self._value_of = value_of
        self._where = where
        self.inputs: list[Value] = []

    def tensor(self, tensor: torch.Tensor) -> Value:
        found = self._value_of(tensor)
        self.inputs.append(found)
        return found

    def encode(self, value: Any, depth: int = 0) -> Any:
        """The tape's form of a value that an operation of torch's can take.

        Raises:
            Refused: a value of another kind, or one that is too large.
        """
        if value is None or type(value) in (bool, float):
            return value
        if depth > MAX_DEPTH:
            raise Refused(self._where, f"arguments nested deeper than {MAX_DEPTH} levels can't be recorded.")
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, int):
            return self._whole(int(value))
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            return str(value)
        if isinstance(value, list):
            return [self.encode(item, depth + 1) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.encode(item, depth + 1) for item in value]}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)}
        if isinstance(value, torch.device):
            return {"device": device_name(value)}
        if isinstance(value, (torch.layout, torch.memory_format)):
            kind = "layout" if isinstance(value, torch.layout) else "memory_format"
            return {kind: str(value).removeprefix("torch.")}
        if hasattr(value, "__index__"):  # NumPy's integers
            return self._whole(value.__index__())
        raise Refused(self._where, f"a {type(value).__name__[:MAX_NAME]} as an argument can't be recorded.")

    def _whole(self, value: int) -> int:
        if not -(2**63) <= value < 2**64:
            raise Refused(self._where, f"an integer of {value.bit_length()} bits doesn't fit into 64.")
        return value


def constant(tensor: torch.Tensor, where: str) -> JSON:
    """The step that makes a tensor of the launcher's own numbers.

    Raises:
        Refused: too many, or of a dtype that no constant can have.
    """
    if tensor.numel() > MAX_CONSTANT_ELEMENTS or dtype_name(tensor.dtype) not in CONSTANT_DTYPES:
        raise Refused(
            where,
            f"a tensor of {tensor.numel()} {dtype_name(tensor.dtype)} made from Python's or NumPy's numbers; a "
            f"launcher can make at most {MAX_CONSTANT_ELEMENTS}, of an integer or "
            "float dtype. Use torch.arange or torch.full.",
        )
    return {
        "do": "constant",
        "dtype": dtype_name(tensor.dtype),
        "shape": list(tensor.shape),
        "values": tensor.reshape(-1).tolist(),
        "where": where,
    }

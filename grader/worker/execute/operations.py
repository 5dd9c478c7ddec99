"""Repeats a tape's steps but for launches: operations of torch's dispatcher, and the launcher's own numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from ..guards import ContractError
from ..rules import MOVES, Checker, Forbidden, arranged, operator
from ..tape import JSON
from ..tensors import TORCH_DTYPES
from .memory import Memory
from .sampling import Shadow

_LAYOUTS = {"strided": torch.strided}
_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}
_UNSET = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Allocations that leave what was there."""


class Operations:
    """Tensors of one tape by number, and the operations between them.

    Args:
        memory: where every tensor's storage is registered. checker: what this function's launcher may do.
        shadow: follows what isn't complete; None where everything is.
    """

    def __init__(self, memory: Memory, checker: Checker, shadow: Shadow | None = None) -> None:
        self.memory = memory
        self.checker = checker
        self.shadow = shadow
        self.tensors: dict[int, torch.Tensor] = {}
        self.counts: dict[str, int] = {}
        """Operations that work on the device, by name: views and allocations without a fill aren't among them."""

    def value(self, value: Any) -> Any:
        """What a value of a tape means here; every device is this process's."""
        kind = type(value)
        if kind is list:
            return [self.value(item) for item in value]
        if kind is not dict:
            return value
        ((tag, content),) = value.items()
        if tag == "t":
            return self.tensors[content]
        if tag == "tuple":
            return tuple(self.value(item) for item in content)
        if tag == "dtype":
            return TORCH_DTYPES[content]
        if tag == "device":
            return torch.device(self.memory.device)
        if tag == "layout":
            return _LAYOUTS[content]
        if tag == "memory_format":
            return _FORMATS[content]
        if tag == "descriptor":
            parts = (list(content[name]) for name in ("shape", "strides", "block_shape"))
            try:
                return TensorDescriptor(self.value(content["base"]), *parts, content["padding"])
            except AssertionError as problem:
                raise ContractError(
                    f"The launcher makes a tensor descriptor that no GPU takes: {problem}."
                ) from problem
        return TensorWrapper(self.value(content["base"]), content["dtype"])

    def constant(self, step: JSON) -> None:
        """Make a tensor of numbers that the launcher wrote down itself."""
        dtype, values = TORCH_DTYPES[step["dtype"]], step["values"]
        if dtype.is_floating_point:
            values = list(map(float, values))  # torch takes no integers beyond int64 for them
        plain = torch.tensor(values, dtype=dtype).reshape(step["shape"])
        self.tensors[step["out"][0]] = self.memory.adopt(plain.to(self.memory.device), step["where"])

    def perform(self, step: JSON) -> None:
        """Run one operation.

        Raises:
            ContractError: the launcher may not do this, or torch refuses it on the real tensors.
        """
        args, kwargs = self.value(step["args"]), {name: self.value(item) for name, item in step["kwargs"].items()}
        if kwargs.get("pin_memory") is not None:
            kwargs["pin_memory"] = False
        try:
            function = operator(step["name"])
            self.checker.check(function, args, kwargs)
            args, kwargs = arranged(function, args, kwargs)
            result = function(*args, **kwargs)
        except Forbidden as problem:
            raise ContractError(f"{step['where']}: {problem}") from problem
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as problem:
            message = str(problem).splitlines()[0][:300]
            raise ContractError(f"{step['where']}: {step['name']} fails on the real inputs: {message}") from problem
        made = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
        if len(made) != len(step["out"]):
            raise ContractError(f"{step['where']}: {step['name']} makes {len(made)} tensors, not {len(step['out'])}.")
        base = str(function._schema.name).partition("::")[2].rstrip("_")
        written = any(item.alias_info is not None and item.alias_info.is_write for item in function._schema.arguments)
        if written or (base not in _UNSET and any(self.memory.of(item) is None for item in made)):
            self.counts[step["name"]] = self.counts.get(step["name"], 0) + 1
        kept = [self._kept(item, base, step["where"], [args, kwargs]) for item in made]
        self.checker.note(function, args, kwargs, kept)
        if self.shadow is not None:
            self.shadow.follow(function, base, args, kwargs, kept, self.memory)
        for number, tensor in zip(step["out"], kept, strict=True):
            if number is not None:
                self.tensors[number] = tensor

    def _kept(self, result: torch.Tensor, base: str, where: str, args: Any) -> torch.Tensor:
        """A result where this process keeps it; an operation that made or wrote something is counted."""
        new = result.numel() > 0 and self.memory.of(result) is None
        if new and base in _UNSET and self.memory.guarded:
            return self.memory.allocate(tuple(result.shape), tuple(result.stride()), result.dtype, where)
        kept = self.memory.adopt(result, where)
        storage = self.memory.of(kept)
        if base in MOVES and storage is not None and not storage.argument:
            storage.copied |= self._moved_inputs(args, kept)
        return kept

    def _moved_inputs(self, args: Any, result: torch.Tensor) -> frozenset[str]:
        """Names of the inputs that an operation moved, or copies of which."""
        names: frozenset[str] = frozenset()
        for item in tree_leaves(args):
            storage = self.memory.of(item) if isinstance(item, torch.Tensor) and item is not result else None
            if storage is not None:
                names |= {storage.argument} if storage.argument else storage.copied
        return names

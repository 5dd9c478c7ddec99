"""What a call returned, as a tape tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..guards import ContractError
from ..tape import MAX_DEPTH, MAX_TEXT
from .values import Encoder


class ResultWriter:
    """Writes a result down; `tensors` are those that it holds.

    Args:
        encoder: collects the values. twin: gives the data-free twin of a tensor of the launcher's own numbers.
    """

    def __init__(self, encoder: Encoder, twin: Any) -> None:
        self._encoder, self._twin = encoder, twin
        self.tensors: list[torch.Tensor] = []

    def write(self, value: Any, path: str = "the result", depth: int = 0) -> Any:
        """The tape's form of a result.

        Raises:
            ContractError: a value of a kind that no result can have.
        """
        kind = type(value)
        if depth > MAX_DEPTH:
            raise ContractError(f"{path} is nested deeper than {MAX_DEPTH} levels.")
        if isinstance(value, np.generic):
            value = value.item()
            kind = type(value)
        if value is None or kind in (bool, int, float) or (kind is str and len(value) <= MAX_TEXT):
            return self._encoder.encode(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if kind in (list, tuple):
            items = [self.write(item, f"{path}[{number}]", depth + 1) for number, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        if is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            members = {name: self.write(item, f"{path}.{name}", depth + 1) for name, item in _fields(value)}
            return {"record": kind.__name__[:100], "fields": members}
        raise ContractError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}; expected exactly None, bool, int, float, str, list, "
            "tuple, a named tuple, a dataclass or torch.Tensor (no subclass)."
        )

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        if not isinstance(value, FakeTensor) and type(value) is not torch.Tensor:
            raise ContractError(f"{path} is a {type(value).__name__}; expected exactly torch.Tensor, no subclass.")
        tensor = self._twin(value)
        self.tensors.append(tensor)
        return self._encoder.tensor(tensor)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        return ((item.name, getattr(value, item.name)) for item in fields(value))
    return zip(value._fields, tuple.__iter__(value), strict=True)

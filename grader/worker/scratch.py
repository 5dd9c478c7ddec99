"""What kernels were given to write to: its values are there for kernels and for torch, and for nobody else.

A launcher whose kernels only copy its inputs could compute with the copies elsewhere: in NumPy over the same memory,
through a pointer, with torch's watchers switched off. So between launches such memory holds bytes that mean nothing. An
operation that goes through torch's dispatcher, which is seen and counted, finds the values, and what it makes of them
is treated alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

NOTHING = 0xFF
"""NaN in every floating-point format when all bytes are this."""


@dataclass
class _Held:
    """A tensor's whole storage as bytes, and what belongs there while it's hidden."""

    storage: torch.Tensor
    truth: torch.Tensor | None = None

    def hide(self) -> None:
        if self.truth is None:
            self.truth = self.storage.clone()
            self.storage.fill_(NOTHING)

    def show(self) -> None:
        """Put the values back, but for bytes that were written to meanwhile."""
        if self.truth is not None:
            self.storage.copy_(torch.where(self.storage == NOTHING, self.truth, self.storage))
            self.truth = None


@contextmanager
def unwatched() -> Iterator[None]:
    """Torch's modes see nothing of the block, and a tensor that was made in inference mode may be written to."""
    with _disable_current_modes(), torch.inference_mode():
        yield


class Scratch:
    """The memory of one call's launches.

    Args:
        others: addresses of storages that aren't to be touched.
    """

    def __init__(self, others: Collection[int]) -> None:
        self._others = others
        self._held: dict[int, _Held] = {}

    def claim(self, values: Iterable[Any], but: Collection[int]) -> None:
        """Hide these tensors' memory from now on, except storages at the addresses `but`."""
        with unwatched():
            for value in values:
                address = storage_address(value)
                if address and address not in self._others and address not in but:
                    self._held.setdefault(address, _Held(storage_bytes(value))).hide()

    def reveal(self, values: Iterable[Any]) -> bool:
        """Show what these tensors hold; whether any of it was hidden."""
        found = [self._held[address] for address in map(storage_address, values) if address in self._held]
        with unwatched():
            for held in found:
                held.show()
        return bool(found)

    def hide(self) -> None:
        """Hide all of it again; call it `unwatched`."""
        for held in self._held.values():
            held.hide()

    def show(self) -> None:
        """Show all of it; call it `unwatched`."""
        for held in self._held.values():
            held.show()


def storage_address(value: Any) -> int:
    """Where a tensor's storage begins; 0 for what has none."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) and has_storage(value) else 0


def has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the whole storage of another."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))

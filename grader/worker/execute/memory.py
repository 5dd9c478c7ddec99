"""The memory of a tape: every storage that it uses, in guarded buffers whose other bytes are NaN or a canary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..guards import ContractError, buffer_bytes, differs, fill_byte, lead_bytes
from ..tensors import DTYPE_NAMES, TENSOR_GUARD_BYTES, GuardedTensor

MAX_BYTES = {"cpu": 4 << 30, "cuda": 96 << 30}
"""Of all storages that one tape makes, guards not counted, by device."""

_full, _from_numpy, _from_dlpack, _uint8 = torch.full, torch.from_numpy, torch.from_dlpack, torch.uint8
_np_full = np.full


@dataclass(eq=False)
class Storage:
    """One storage.

    Attributes:
        start: its first address. size: in bytes.
        itemsize: of the tensor that it was made for.
        argument: the input's name; "" for what the tape made.
        tensor: an input's elements, as the tape is given them.
        writable: whether a kernel may store to it.
        copied: names of the inputs whose values were moved here.
        where: the line that made it.
        buffer, lead, fill: the guarded buffer around it, where in it the storage begins, and the byte around it. None
            where the storage isn't guarded, or where its guard is looked after elsewhere (inputs).
    """

    start: int
    size: int
    itemsize: int
    argument: str = ""
    tensor: torch.Tensor | None = None
    writable: bool = True
    copied: frozenset[str] = frozenset()
    where: str = ""
    buffer: torch.Tensor | None = None
    lead: int = 0
    fill: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.size

    def spilled(self) -> bool:
        """Whether a byte around the storage changed."""
        if self.buffer is None:
            return False
        # On a CPU NumPy looks: torch would wake its threads.
        held = self.buffer.numpy() if self.buffer.device.type == "cpu" else self.buffer
        return differs(held[: self.lead], self.fill) or differs(held[self.lead + self.size :], self.fill)


class Memory:
    """All storages of one run of a tape, found by address.

    Args:
        device: "cpu" or "cuda".
        guarded: False leaves what operations make where torch put it, so that replaying costs what the launcher costs.
    """

    def __init__(self, device: str, *, guarded: bool = True) -> None:
        self.device = device
        self.guarded = guarded
        self._storages: dict[int, Storage] = {}
        self._bytes = 0
        self._alive: list[Any] = []
        """A freed storage's address could be given to another while the tape runs."""

    def __iter__(self) -> Iterator[Storage]:
        return iter(self._storages.values())

    def of(self, tensor: torch.Tensor) -> Storage | None:
        """The storage that a tensor lies in; None for one without elements or that nobody registered."""
        return self._storages.get(tensor.untyped_storage().data_ptr())

    def add_input(self, guard: GuardedTensor) -> torch.Tensor:
        """A tensor over the input's elements whose storage ends with them, as the caller of a launcher would make it.

        The guarded buffer's own storage holds the guards too, and offsets in it differ from call to call.
        """
        leaf = guard.leaf
        own = guard.own
        item = own.element_size()
        start = (own.storage_offset() - leaf.offset) * item
        last = sum((size - 1) * stride for size, stride in zip(own.shape, own.stride(), strict=True) if size)
        span = leaf.offset + (last + 1 if own.numel() else 0)
        inner = _from_dlpack(guard.buffer[start : start + span * item])
        tensor = inner.view(own.dtype).as_strided(own.shape, own.stride(), leaf.offset)
        self._register(
            Storage(
                inner.data_ptr(), span * item, item, guard.name, tensor, writable=guard.mutable, where="the caller"
            ),
            inner,
        )
        return tensor

    def allocate(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, where: str = ""
    ) -> torch.Tensor:
        """A tensor in a fresh guarded storage whose every byte is NaN, or a canary for integers.

        Raises:
            ContractError: the tape's storages together are larger than a run may have.
        """
        item = dtype.itemsize
        span = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self._reserve(span * item, where)
        fill = fill_byte(DTYPE_NAMES.get(dtype, ""))
        total = buffer_bytes(span * item, TENSOR_GUARD_BYTES)
        if self.device == "cpu":
            buffer = _from_numpy(_np_full(total, fill, np.uint8))  # torch would wake its threads
        else:
            buffer = _full((total,), fill, dtype=_uint8, device=self.device)
        lead = lead_bytes(buffer.data_ptr(), TENSOR_GUARD_BYTES)
        inner = _from_dlpack(buffer[lead : lead + span * item])
        storage = Storage(inner.data_ptr(), span * item, item, where=where, buffer=buffer, lead=lead, fill=fill)
        self._register(storage, inner)
        return inner.view(dtype).as_strided(shape, strides)

    def adopt(self, result: torch.Tensor, where: str = "") -> torch.Tensor:
        """The result of an operation, in a storage of its own that is guarded; as it is where it's a view of one known.

        Values, shape, strides and offset stay.
        """
        if result.numel() == 0 or self.of(result) is not None:
            return result
        if not self.guarded:
            held = result.untyped_storage()
            self._reserve(held.nbytes(), where)
            self._register(Storage(held.data_ptr(), held.nbytes(), result.element_size(), where=where), result)
            return result
        shape, strides = tuple(result.shape), tuple(result.stride())
        moved = self.allocate(shape, strides, result.dtype, where)
        moved.copy_(result)
        return moved

    def _reserve(self, size: int, where: str) -> None:
        self._bytes += size
        if self._bytes > MAX_BYTES[self.device]:
            raise ContractError(
                f"{where or 'The launcher'}: this call's tensors take more than {MAX_BYTES[self.device] >> 20} MiB."
            )

    def _register(self, storage: Storage, holder: Any) -> None:
        self._alive.append(holder)
        if storage.size:
            self._storages[storage.start] = storage

    def check_guards(self) -> None:
        """Raises ContractError if a byte around one of the tape's own storages changed."""
        for storage in self:
            if storage.spilled():
                raise ContractError(
                    f"A kernel wrote outside the tensor made at {storage.where or 'an unknown line'}: memory next to "
                    "it changed. Check masks and strides of the stores."
                )

"""Inputs that hold their values only while a kernel runs: what is computed from them anywhere else is wrong.

Before a call every floating-point input is overwritten with random numbers. A launch finds the true values, and leaves
the random ones behind again. So an answer that a kernel computes comes out right, and one by torch, NumPy, raw pointers
or Python's own arithmetic doesn't, whatever way it took to read the tensors. Copies that a launcher makes of its inputs
(``contiguous``, ``to``, padding, joining, a scale) are followed: a launch finds true values in them too. What kernels
write is hidden from everything but kernels and torch: see `scratch`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from .guards import ContractError, Guarded
from .scratch import Scratch, storage_address, storage_bytes, unwatched
from .tensors import TORCH_DTYPES, GuardedTensor
from .wire import Leaf

MOVES = frozenset(
    {"clone", "_to_copy", "copy_", "constant_pad_nd", "cat", "stack", "repeat", "flip", "roll"}
    | {"index", "index_select", "gather", "slice_scatter", "select_scatter"}
)
"""Operations of the dispatcher that move or convert values; their result is followed."""
SCALES = frozenset({"mul", "mul_", "div", "div_", "neg"})
"""Followed where they have one tensor: a launcher may fold a scale into Q."""
WITHOUT_VALUES = ("empty", "new_", "zeros", "ones", "full", "rand", "set_", "fill_", "zero_")


@dataclass
class _Input:
    guard: GuardedTensor
    decoy: Any
    """Words, as `GuardedTensor.sent` has them."""


@dataclass
class _Copy:
    """A tensor's whole storage as bytes, what it holds outside of launches, and what inside."""

    storage: torch.Tensor
    decoy: torch.Tensor
    truth: torch.Tensor


class Decoys:
    """The hidden inputs of one call and the copies that were made of them.

    Attributes:
        read: operations that computed with hidden values, by name, once each.
    """

    def __init__(self, guarded: Sequence[Guarded]) -> None:
        self.read: list[str] = []
        self._copies: dict[int, _Copy] = {}
        self._shown = True
        self._changed = ""
        rng = np.random.default_rng(secrets.randbits(64))
        self._inputs = [
            _Input(guard, _decoy_words(guard, rng))
            for guard in guarded
            if isinstance(guard, GuardedTensor) and not guard.mutable and _is_hideable(guard.leaf)
        ]
        self._input_storages = {item.guard.storage_address for item in self._inputs}
        given = {guard.storage_address for guard in guarded if isinstance(guard, GuardedTensor)}
        self._scratch = Scratch(given)

    def hide(self) -> None:
        """Put the random values in place. What a kernel changed meanwhile stays as the kernel left it."""
        if not self._shown:
            return
        self._shown = False
        with unwatched():
            for item in self._inputs:
                self._put(item, item.guard.sent(), item.decoy)
            for address, copy in list(self._copies.items()):
                self._swap(address, copy, copy.truth, copy.decoy)
            self._scratch.hide()

    def show(self) -> None:
        """Put the true values in place."""
        if self._shown:
            return
        self._shown = True
        with unwatched():
            self._scratch.show()
            for item in self._inputs:
                self._put(item, item.decoy, item.guard.sent())
            for address, copy in list(self._copies.items()):
                self._swap(address, copy, copy.decoy, copy.truth)

    def launched(self, tensors: Sequence[torch.Tensor]) -> None:
        """Hide everything again after a launch, and what it was given to write to."""
        self.hide()
        self._scratch.claim(tensors, self._copies)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Random values in the block; true ones after it.

        Raises:
            ContractError: an input was written to.
        """
        self.hide()
        try:
            yield
        finally:
            self.show()
        if self._changed:
            raise ContractError(f"The call changed its input `{self._changed}`; inputs must be left as they are.")

    def unlit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which a launch calls back, with the random values in place while it runs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            shown = self._shown
            self.hide()
            try:
                return function(*args, **kwargs)
            finally:
                if shown:
                    self.show()

        return call

    def _put(self, item: _Input, expected: Any, words: Any) -> None:
        if not item.guard.exchange(expected, words):
            self._changed = self._changed or item.guard.name

    def _swap(self, address: int, copy: _Copy, expected: torch.Tensor, content: torch.Tensor) -> None:
        if torch.equal(copy.storage, expected):
            copy.storage.copy_(content)
        else:  # written to since: what it holds now isn't a copy any more
            del self._copies[address]

    def _hides(self, tensor: torch.Tensor) -> bool:
        address = storage_address(tensor)
        return address in self._input_storages or address in self._copies

    def run(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], call: Callable[[], Any]) -> Any:
        """What an operation of the dispatcher gives, with the values of scratch memory in place for it."""
        given = tree_leaves((args, kwargs))
        if self._shown or not self._scratch.reveal(given):
            result = call()
            self.follow(func, args, kwargs, result)
            return result
        made: list[Any] = []
        try:
            result = call()
            made = tree_leaves(result)
            self.follow(func, args, kwargs, result)
        finally:
            self._scratch.claim((*given, *made), self._copies)
        return result

    def read_out(self, tensor: torch.Tensor, call: Callable[[], Any]) -> Any:
        """What turns a tensor into numbers of Python's or NumPy's gives, with its values in place if it's scratch."""
        if self._shown or not self._scratch.reveal([tensor]):
            return call()
        self._shown = True  # What reads it may be operations of its own, which aren't to hide it again.
        try:
            found = call()
            return found.copy() if isinstance(found, np.ndarray) else found
        finally:
            self._shown = False
            self._scratch.claim([tensor], self._copies)

    def follow(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Take note of a dispatcher's operation that just ran: follow a copy, remember a computation."""
        if self._shown or not self._inputs:
            return
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        name = operation_name(func)
        if not any(map(self._hides, tensors)) or is_view(func) or name.startswith(WITHOUT_VALUES):
            return
        many = sum(tensor.numel() > 1 for tensor in tensors) > 1
        if not isinstance(result, torch.Tensor) or not (name in MOVES or (name in SCALES and not many)):
            if f"torch.{name}" not in self.read:
                self.read.append(f"torch.{name}")
            return
        with unwatched():
            storage = storage_bytes(result)
            decoy = storage.clone()
        address = result.untyped_storage().data_ptr()
        if address in self._input_storages:
            return  # an input was written to; `hide` and `show` find that out
        self._copies.setdefault(address, _Copy(storage, decoy, decoy)).decoy = decoy
        self.show()
        again = func(*args, **kwargs)
        with unwatched():
            truth = storage_bytes(again).clone()
            self._copies[address] = _Copy(storage, decoy, truth)
            storage.copy_(truth)
        self.hide()


def _is_hideable(leaf: Leaf) -> bool:
    return leaf.raw.size > 0 and TORCH_DTYPES[leaf.dtype].is_floating_point


def _decoy_words(guard: GuardedTensor, rng: np.random.Generator) -> Any:
    """Normal numbers in the input's dtype, as words on its device."""
    values = torch.from_numpy(np.asarray(rng.standard_normal(guard.leaf.base_shape), np.float32))
    raw = values.to(TORCH_DTYPES[guard.leaf.dtype]).reshape(-1).view(torch.uint8).numpy()
    return guard.words(raw)


def operation_name(func: Any) -> str:
    """Of an operation of the dispatcher, without namespace and overload: ``aten.mm.default`` is ``mm``."""
    return str(func).split(".")[1] if "." in str(func) else str(func)


def is_view(func: Any) -> bool:
    return any(item.alias_info is not None and not item.alias_info.is_write for item in func._schema.returns)

"""What a launcher may do with torch: allocate, view, move, and the arithmetic that its lab allows.

The recorder asks a `Checker` for its messages, on data-free tensors; the executor asks another one for real. Both
follow where each storage's values come from: names of inputs, `KERNEL`, or nothing for the launcher's own constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .allocated import bytes_made, elements_made
from .operators import ALLOCATIONS, ARITHMETIC, MATRICES, SCALES, VIEWS, base_of, bound, full_name
from .operators import MOVES as _MOVES
from .operators import Forbidden as Forbidden
from .operators import arranged as arranged
from .operators import operator as operator
from .tape import MAX_BYTES

KERNEL = "kernel"
"""Origin of what a kernel wrote; an input's is ``input`` and its name."""
CLASSES = ("moves", "scale", "partials", "integers", "rope")
MOVES = frozenset(name.partition(".")[0] for name in _MOVES)

_PLACES = {"index": "indices", "index_put": "indices"} | dict.fromkeys(
    ("index_select", "index_copy", "index_fill", "gather", "scatter"), "index"
)
_MASKS = {"where": "condition", "masked_fill": "mask"}
"""Moves that take places or a mask from a tensor, and the argument that holds it."""
_ADDING = frozenset({"scatter_add", "scatter_reduce", "index_add", "index_reduce", "put"})
_WRITE_ONLY = frozenset({"copy_", "fill_", "zero_"})
_PRODUCTS = re.compile(
    r"(?:^|_)(?:\w*mm|mv|addmv|v?dot|matmul|conv(?:\dd|_?tbc|olution|_transpose)\w*|(?:bi|tri)?linear|[cp]dist|softmax"
    r"|lstm|gru|rnn|embedding_bag|fft|inverse|inv|solve|cholesky|triangular|lu|matrix|householder|attention"
    r"|linalg(?!_vec))(?:_|$)"
)
"""Parts of the names of operations that multiply matrices, for the message."""
_PUBLIC = {"mm": "torch.matmul", "bmm": "torch.matmul", "_softmax": "torch.softmax", "_to_copy": "Tensor.to"} | {
    "_log_softmax": "torch.log_softmax",
    "_local_scalar_dense": "Tensor.item",
    "_cdist_forward": "torch.cdist",
    "constant_pad_nd": "torch.nn.functional.pad",
    "convolution": "torch.nn.functional.conv2d",
}

PASSES, ROPE_PASSES = 4, 8
"""Operations of a launcher's own arithmetic over each number of what it may compute with and of what it returns.

Attention takes two a pair of query and key for each number of O, and a product of torch's two operations: a launcher
that would multiply in torch what kernels copied for it goes beyond these from a tile of keys on.
"""
SCRATCH_PASSES = 5
"""And over each number of partial results: merging them takes three."""
SCRATCH_PART = 8
"""Partial results beyond so many times what a call returns count for no more."""
MOVE_PASSES = 16
"""Moves, and arithmetic on the launcher's own numbers, over each number that a call is given and returns."""
SPARE = 1 << 12
"""For calls so small that this says nothing."""

Key = Callable[[torch.Tensor], Hashable]


def storage_key(tensor: torch.Tensor) -> Hashable:
    """What tells a tensor's storage from others while it lives."""
    return int(tensor.untyped_storage()._cdata)


class Checker:
    """Follows one call's operations in order: `check` before each, `note` after it, `launched` for kernels.

    Args:
        allow: classes that this function's launcher may use, of `CLASSES`.
        scale: inputs that it may multiply by a number.
        rope: inputs that it may compute with, as rotary embeddings do.
        mutable: inputs that it may write to.
        known: integer inputs whose values the host may use as places.
        key: tells storages apart.
    """

    def __init__(
        self,
        allow: Iterable[str],
        scale: Iterable[str] = (),
        rope: Iterable[str] = (),
        mutable: Iterable[str] = (),
        *,
        known: Iterable[str] = (),
        key: Key = storage_key,
    ) -> None:
        self.allow = frozenset(allow)
        self._scale, self._rope, self._mutable, self._known = map(frozenset, (scale, rope, mutable, known))
        self._key = key
        self._origins: dict[Hashable, frozenset[str]] = {}
        self._inputs: dict[Hashable, str] = {}
        self._bound_integers: set[str] = set()
        self._floats: set[str] = set()
        self._scratch: dict[Hashable, int] = {}
        self._given = self._own = self._done = self._moved = self._allocated = 0

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Take note of an input (or cotangent), before the first step."""
        key = self._key(tensor)
        self._inputs[key] = name
        self._origins[key] = self._origins.get(key, frozenset()) | {_input(name)}
        self._given += tensor.numel()
        floats = tensor.is_floating_point() or tensor.is_complex()
        (self._floats if floats else self._bound_integers).add(_input(name))
        if name.partition("[")[0] in self._scale | self._rope or not floats:
            self._own += tensor.numel()

    @property
    def _integers(self) -> set[str]:
        """Origins of inputs that are integers, or lists of them."""
        return self._bound_integers - self._floats

    def origins(self, tensor: torch.Tensor) -> frozenset[str]:
        """Where a tensor's values come from."""
        return self._origins.get(self._key(tensor), frozenset())

    def from_kernel(self, tensor: torch.Tensor) -> bool:
        """Whether a kernel wrote (or may have written) to the tensor's memory."""
        return KERNEL in self.origins(tensor)

    def launched(self, tensors: Iterable[torch.Tensor]) -> None:
        """A kernel was given these tensors: it may have written to all but the inputs that stay as they are."""
        for tensor in tensors:
            key = self._key(tensor)
            if key in self._inputs and not self._writable(key):
                continue
            self._origins[key] = self._origins.get(key, frozenset()) | {KERNEL}
            if key not in self._inputs:
                self._scratch[key] = tensor.untyped_storage().nbytes()

    def finish(self, results: Sequence[torch.Tensor]) -> None:
        """Check a call's arithmetic as a whole, with what it returns.

        Raises:
            Forbidden: the launcher goes over more numbers than casts, scales and merges take.
        """
        held: dict[Hashable, int] = {}
        for tensor in results:
            key, count = self._key(tensor), _distinct(tensor)
            held[key] = max(held.get(key, 0), count)
        returned = min(sum(held.values()), 2 * self._given + SPARE)
        scratch = sum(size // 4 for key, size in self._scratch.items() if key not in held)
        scratch = min(scratch, SCRATCH_PART * returned)
        size = self._own + returned
        passes = ROPE_PASSES if "rope" in self.allow else PASSES
        most = passes * size + SCRATCH_PASSES * scratch + SPARE
        if self._done > most:
            raise Forbidden(
                f"The launcher does arithmetic on {self._done} numbers outside of its kernels, for {size} that it may "
                f"compute with and returns; at most {most}. Do the work in the kernel."
            )
        most = MOVE_PASSES * (self._given + returned + scratch) + SPARE
        if self._moved > most:
            raise Forbidden(
                f"The launcher copies, or computes of its own numbers, {self._moved} numbers outside of its kernels, "
                f"for {self._given + returned} that it is given and returns; at most {most}. Do it in the kernel."
            )

    def check(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Check one operation before it runs.

        Raises:
            Forbidden: it isn't allowed on these tensors, takes other arguments, or allocates beyond the limit.
        """
        base, full = base_of(func), full_name(func)
        if func.namespace != "aten":
            raise Forbidden(f"{func} is not an operation of torch. Launch the kernel behind it directly.")
        given = bound(func, args, kwargs)
        reads, writes = _split(func, given)
        self._check_writes(base, writes)
        if full in VIEWS:
            if base == "as_strided":
                _check_extent(given)
            return
        if full in ALLOCATIONS:
            self._allocate(base, given, reads, exact=True)
            return
        if any(str(item.type) not in ("Tensor", "List[Tensor]") for item in func._schema.returns):
            self._refuse_reading(base, reads)
        origins = frozenset().union(*map(self.origins, reads)) if reads else frozenset()
        kind = self._kind(full, given, reads, origins)
        if not kind:
            raise Forbidden(self._message(base, full, reads, origins))
        self._allocate(base, given, reads, exact=full in _MOVES)
        count = max([elements_made(base, given, reads), *(item.numel() for item in reads)], default=0)
        if kind == "moves":
            self._moved += count
        else:
            self._done += count * max(1, len(reads) - 1) * max(map(_weight, reads))
            if full in MATRICES:
                self._done += count * given["self"].shape[-1]

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Follow where the values of what an operation made or wrote come from."""
        reads, writes = _split(func, bound(func, args, kwargs))
        before = {self._key(item) for item in (*reads, *writes)}
        without = full_name(func) in ALLOCATIONS
        origins = frozenset().union(*map(self.origins, reads)) if reads and not without else frozenset()
        for item in writes:
            key = self._key(item)
            self._origins[key] = self._origins.get(key, frozenset()) | origins
        for item in tree_leaves(result):
            if isinstance(item, torch.Tensor) and self._key(item) not in before:
                # A new storage, though it may lie where a freed one did.
                self._origins[self._key(item)] = origins
                self._scratch.pop(self._key(item), None)

    def _kind(self, full: str, given: dict[str, Any], reads: Sequence[torch.Tensor], origins: frozenset[str]) -> str:
        """As what one of the allowed classes has the operation on values of these origins: moves, arithmetic or ""."""
        moves = full in _MOVES
        if not (moves or full in ARITHMETIC or full in MATRICES) or _is_masked_index(full, given):
            return ""
        if not origins:
            return "" if full in MATRICES else "moves"
        if moves and "moves" in self.allow and self._known_places(full, given):
            return "moves"
        if "rope" in self.allow and origins <= set(map(_input, self._rope)):
            return "arithmetic"
        if full in MATRICES:
            return ""
        if "partials" in self.allow and origins == {KERNEL}:
            return "arithmetic"
        if "integers" in self.allow and origins <= self._integers:
            return "arithmetic"
        scaled = "scale" in self.allow and full in SCALES and self._is_scale(full, given, reads, origins)
        return "arithmetic" if scaled else ""

    def _is_scale(
        self, full: str, given: dict[str, Any], reads: Sequence[torch.Tensor], origins: frozenset[str]
    ) -> bool:
        """Whether one tensor is multiplied by a number, or divided by it."""
        tensors = [item for item in reads if item.dim() or self.origins(item)]
        divided = full.startswith("div") and tensors[0] is not given["self"]
        own = origins == {KERNEL} or origins <= set(map(_input, self._scale))
        return len(tensors) == 1 and own and not divided

    def _known_places(self, full: str, given: dict[str, Any]) -> bool:
        """Whether a move's places and mask are the launcher's own, or of an input that it may know."""
        base = full.partition(".")[0]
        name = _PLACES.get(base, _MASKS.get(base))
        if name is None:
            return True
        tensors = [item for item in tree_leaves(given[name]) if isinstance(item, torch.Tensor)]
        return all(self.origins(item) <= set(map(_input, self._known)) for item in tensors)

    def _writable(self, key: Hashable) -> bool:
        return self._inputs[key].partition("[")[0] in self._mutable

    def _check_writes(self, base: str, writes: Sequence[torch.Tensor]) -> None:
        for item in writes:
            key = self._key(item)
            if key in self._inputs and not self._writable(key):
                raise Forbidden(
                    f"{_public(base)} writes to the input `{self._inputs[key]}`; inputs must keep their values. Write "
                    "to a tensor of your own (torch.empty_like)."
                )

    def _allocate(self, base: str, given: dict[str, Any], reads: Sequence[torch.Tensor], *, exact: bool) -> None:
        try:
            self._allocated += bytes_made(base, given, reads, exact)
        except (IndexError, TypeError, ValueError, OverflowError, AttributeError) as problem:
            raise Forbidden(f"{_public(base)} is given arguments that it doesn't take ({problem!r:.100}).") from None
        if self._allocated > MAX_BYTES:
            raise Forbidden(
                f"{_public(base)} makes {self._allocated} bytes of tensors together with those before it; a call may "
                f"make {MAX_BYTES}."
            )

    def _refuse_reading(self, base: str, reads: Sequence[torch.Tensor]) -> None:
        raise Forbidden(
            f"{_public(base)} reads a value of {self._described(reads)}. A launcher decides by shapes, dtypes and "
            "strides; the host never sees what the device holds."
        )

    def _described(self, tensors: Sequence[torch.Tensor]) -> str:
        """The tensors of an operation, for people: inputs by name first."""
        origins = sorted(frozenset().union(*map(self.origins, tensors)) - {KERNEL}) if tensors else []
        names = [f"`{origin.removeprefix('input ')}`" for origin in origins]
        if any(self.from_kernel(item) for item in tensors):
            names.append("what a kernel wrote")
        return " and ".join(names) or "a tensor of the launcher's own"

    def _message(self, base: str, full: str, reads: Sequence[torch.Tensor], origins: frozenset[str]) -> str:
        what, whose = _public(base), self._described(reads)
        if _PRODUCTS.search(base):
            return f"{what} on {whose}: a launcher multiplies no matrices. Do it in the kernel, with tl.dot."
        if full.endswith("out"):
            return f"{what} with out=: a launcher may not use it. Let the operation make its result, or copy_ that."
        if (base in MOVES and full not in _MOVES) or base in _ADDING:
            return f"{what} on {whose}: a move that computes ({full}). Do this arithmetic in the kernel."
        if full in _MOVES:
            unknown = sorted(origins & self._integers - set(map(_input, self._known)))
            if "moves" in self.allow and unknown:
                table = unknown[0].removeprefix("input ")
                return f"{what} takes places from `{table}`, whose values only the device has. Load them in the kernel."
            return f"{what} on {whose}: this function's launcher may not copy tensors. Pass them to the kernel as is."
        if not origins or full not in ARITHMETIC:
            return f"{what} on {whose}: a launcher may not use this operation. Let the kernel fill the tensor."
        may = {
            "scale": "multiply " + " and ".join(f"`{name}`" for name in sorted(self._scale)) + " by a number",
            "partials": "merge what kernels wrote",
            "integers": "compute with integer tensors",
            "rope": "rotate " + " and ".join(f"`{name}`" for name in sorted(self._rope)),
            "moves": "copy, pad and cast",
        }
        allowed = ", ".join(text for name, text in may.items() if name in self.allow) or "only allocate and make views"
        return f"{what} on {whose}: this function's launcher may {allowed}. Do this arithmetic in the kernel."


def _input(name: str) -> str:
    """Origin of a parameter's values; the items of a list count as the parameter."""
    return f"input {name.partition('[')[0]}"


def _public(base: str) -> str:
    if "attention" in base:
        return "torch.nn.functional.scaled_dot_product_attention"
    return _PUBLIC.get(base, f"torch.{base.lstrip('_')}")


def _distinct(tensor: torch.Tensor) -> int:
    """Elements of a tensor that lie at different places, at most."""
    spread = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    return min(math.prod(spread), held) if tensor.numel() else 0


def _weight(tensor: torch.Tensor) -> int:
    """How many numbers an element counts for: wide ones hold several, products of complex ones are four."""
    return max(1, int(tensor.dtype.itemsize) // 4) * (2 if tensor.is_complex() else 1)


def _is_masked_index(full: str, given: dict[str, Any]) -> bool:
    """Whether the shape of the result depends on values, or values are added up at places."""
    if full == "index.Tensor":
        places = [item for item in given["indices"] if item is not None]
        return any(item.dtype in (torch.bool, torch.uint8) for item in places)
    return full == "index_put.default" and bool(given["accumulate"])


def _check_extent(given: dict[str, Any]) -> None:
    """Raises Forbidden where strides lead out of the tensor, into whatever lies beside it in memory."""
    own, sizes, strides, first = (given[name] for name in ("self", "size", "stride", "storage_offset"))
    if len(sizes) != len(strides):
        raise Forbidden("torch.as_strided takes as many strides as sizes.")
    first = own.storage_offset() if first is None else first
    steps = [(size - 1) * step for size, step in zip(sizes, strides, strict=True)]
    least = first + sum(step for step in steps if step < 0)
    last = own.storage_offset() + sum((size - 1) * step for size, step in zip(own.shape, own.stride(), strict=True))
    if least < own.storage_offset() or first + sum(step for step in steps if step > 0) > last:
        raise Forbidden("torch.as_strided reaches beyond its tensor. Make a view of the elements that the tensor has.")


def _split(func: Any, given: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors that an operation reads, and those that it writes to; an in-place operation's own is among both."""
    name = func._schema.name.partition("::")[2]
    reads: list[torch.Tensor] = []
    writes: list[torch.Tensor] = []
    for argument in func._schema.arguments:
        tensors = [item for item in tree_leaves(given[argument.name]) if isinstance(item, torch.Tensor)]
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written:
            writes += tensors
        if not (written and (argument.kwarg_only or name in _WRITE_ONLY)):
            reads += tensors
    return reads, writes

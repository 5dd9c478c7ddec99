"""What a launcher may do with torch: allocate, view, move, and the arithmetic that its lab allows.

The recorder asks a `Checker` for its messages, on data-free tensors; the executor asks another one for real. Both
follow where each storage's values come from: names of inputs, `KERNEL`, or nothing for the launcher's own constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .allocated import ALLOCATIONS, bytes_made
from .tape import MAX_BYTES

KERNEL = "kernel"
"""Origin of what a kernel wrote; an input's is ``input`` and its name."""
CLASSES = ("moves", "scale", "partials", "integers", "rope")

MOVES = frozenset(
    {"clone", "_to_copy", "copy", "constant_pad_nd", "cat", "stack", "repeat", "flip", "roll", "where", "_unsafe_view"}
    | {"index", "index_select", "gather", "index_put", "index_copy", "scatter", "masked_fill", "tril", "triu", "fill"}
    | {"slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter", "lift_fresh_copy", "index_fill"}
)
"""They keep values as they are, or cast them. In-place and out= forms are meant too."""
_PLACES = {"index": 1, "index_put": 1, "index_select": 2, "index_copy": 2, "index_fill": 2, "gather": 2, "scatter": 2}
"""Moves that take places or a mask from a tensor, and the argument that holds it."""
_MASKS = {"where": 0, "masked_fill": 1}
_FILLS = frozenset({"fill", "zero"})
_WRITE_ONLY = frozenset({"copy_", "fill_", "zero_"})
SCALES = frozenset({"mul", "div", "neg", "true_divide"})
_OTHER_ARITHMETIC = frozenset(
    {"sum", "mean", "amax", "amin", "max", "min", "aminmax", "argmax", "argmin", "prod", "cumsum", "cumprod", "cummax"}
    | {"cummin", "logsumexp", "logcumsumexp", "any", "all", "var", "std", "sort", "argsort", "topk", "searchsorted"}
    | {"bucketize", "count_nonzero", "floor_divide", "polar", "complex", "isin", "scatter_add", "index_add"}
)
_PRODUCTS = re.compile(
    r"(?:^|_)(?:\w*mm|mv|addmv|v?dot|matmul|conv(?:\dd|_?tbc|olution|_transpose)\w*|(?:bi|tri)?linear|[cp]dist|softmax"
    r"|lstm|gru|rnn|embedding_bag|fft|inverse|inv|solve|cholesky|triangular|lu|matrix|householder|attention"
    r"|linalg(?!_vec))(?:_|$)"
)
"""Parts of the names of operations that multiply matrices, or can be made to."""
_MATRICES = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "dot"})
_PUBLIC = {"mm": "torch.matmul", "bmm": "torch.matmul", "_softmax": "torch.softmax", "_to_copy": "Tensor.to"} | {
    "_log_softmax": "torch.log_softmax",
    "_local_scalar_dense": "Tensor.item",
    "_cdist_forward": "torch.cdist",
    "constant_pad_nd": "torch.nn.functional.pad",
    "convolution": "torch.nn.functional.conv2d",
}
_UNSAFE_TAGS = (
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
    torch.Tag.inplace_view,
)

PASSES = 8
"""Operations of a launcher's own arithmetic over each number that it is given or returns."""
SCRATCH_PASSES = 8
"""And over each number of partial results, which merging them takes."""
SCRATCH_PART = 4
"""Partial results beyond so many times what a call is given and returns count for no more."""
SPARE = 1 << 12
"""For calls so small that this says nothing."""

Key = Callable[[torch.Tensor], Hashable]


class Forbidden(Exception):
    """An operation that a launcher may not do; the message names operation and tensor, and says what to do instead."""


def storage_key(tensor: torch.Tensor) -> Hashable:
    """What tells a tensor's storage from others while it lives."""
    return int(tensor.untyped_storage()._cdata)


def operator(name: str) -> Any:
    """The dispatcher's operation of a tape's name, e.g. ``aten.clone.default``.

    Raises:
        Forbidden: torch has none of that name.
    """
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if namespace == "aten" else None
    if not isinstance(found, torch._ops.OpOverload) or str(found) != name:
        raise Forbidden(f"{name[:80]} is not an operation of torch.")
    return found


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
        self._given = self._done = self._allocated = 0

    def bind(self, name: str, tensor: torch.Tensor) -> None:
        """Take note of an input (or cotangent), before the first step."""
        key = self._key(tensor)
        self._inputs[key] = name
        self._origins[key] = self._origins.get(key, frozenset()) | {_input(name)}
        self._given += tensor.numel()
        if tensor.is_floating_point() or tensor.is_complex():
            self._floats.add(_input(name))
        else:
            self._bound_integers.add(_input(name))

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
        returned = {self._key(tensor) for tensor in results}
        size = self._given + sum(tensor.numel() for tensor in results)
        scratch = sum(count for key, count in self._scratch.items() if key not in returned) // 4
        allowed = PASSES * size + SCRATCH_PASSES * min(scratch, SCRATCH_PART * size) + SPARE
        if self._done > allowed:
            raise Forbidden(
                f"The launcher does arithmetic on {self._done} numbers outside of its kernels, for {size} that it is "
                f"given and returns; at most {allowed}. Do the work in the kernel."
            )

    def check(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Check one operation before it runs.

        Raises:
            Forbidden: it isn't allowed on these tensors, or allocates beyond the limit.
        """
        name, base = _names(func)
        reads, writes = _split(func, args, kwargs, name)
        if func.namespace != "aten":
            raise Forbidden(f"{func} is not an operation of torch. Launch the kernel behind it directly.")
        self._check_writes(base, writes)
        if base in ("as_strided", "as_strided_scatter"):
            _check_extent(func, args, kwargs)
        if _is_view(func, base) or base in ALLOCATIONS:
            self._allocate(base, args, kwargs, reads)
            return
        if any(str(item.type) not in ("Tensor", "List[Tensor]") for item in func._schema.returns):
            self._refuse_reading(base, reads)
        origins = frozenset().union(*map(self.origins, reads)) if reads else frozenset()
        if not self._permits(func, base, args, kwargs, origins):
            raise Forbidden(self._message(base, reads, origins))
        self._allocate(base, args, kwargs, reads)
        if base not in MOVES and base not in _FILLS:
            self._done += max((item.numel() for item in (*reads, *writes)), default=0)

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Follow where the values of what an operation made or wrote come from."""
        name, base = _names(func)
        reads, writes = _split(func, args, kwargs, name)
        before = {self._key(item) for item in (*reads, *writes)}
        without = base in ALLOCATIONS
        origins = frozenset().union(*map(self.origins, reads)) if reads and not without else frozenset()
        for item in writes:
            key = self._key(item)
            self._origins[key] = self._origins.get(key, frozenset()) | origins
        made = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor)]
        for item in made:
            key = self._key(item)
            if key not in before:  # A new storage, though it may lie where a freed one did.
                self._origins[key] = origins
                self._scratch.pop(key, None)
        if not (base in MOVES or base in _FILLS or without or _is_view(func, base)):
            largest = max((item.numel() for item in made if item.dtype != torch.bool), default=0)
            self._done += max(0, largest - max((item.numel() for item in (*reads, *writes)), default=0))

    def _permits(self, func: Any, base: str, args: Any, kwargs: Any, origins: frozenset[str]) -> bool:
        """Whether one of the allowed classes has the operation on values of these origins."""
        if base != "index" and any(tag in func.tags for tag in _UNSAFE_TAGS):
            return False
        rope = "rope" in self.allow and origins <= set(map(_input, self._rope))
        if _PRODUCTS.search(base):
            return rope and base in _MATRICES
        moves = base in MOVES or base in _FILLS
        if not (moves or base in _OTHER_ARITHMETIC or torch.Tag.pointwise in func.tags):
            return False
        if moves and "moves" in self.allow and self._known_places(base, args, kwargs):
            return True
        if not origins or rope:
            return True
        if "partials" in self.allow and origins == {KERNEL}:
            return True
        if "integers" in self.allow and origins <= self._integers:
            return True
        return "scale" in self.allow and base in SCALES and self._is_scale(args, origins)

    def _is_scale(self, args: Sequence[Any], origins: frozenset[str]) -> bool:
        tensors = [item for item in args if isinstance(item, torch.Tensor) and (item.dim() or self.origins(item))]
        return len(tensors) == 1 and (origins == {KERNEL} or origins <= set(map(_input, self._scale)))

    def _known_places(self, base: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether a move's places and mask are the launcher's own, or of an input that it may know."""
        position = _PLACES.get(base, _MASKS.get(base))
        if position is None:
            return True
        if base == "index_put" and (kwargs.get("accumulate") or any(item is True for item in args[3:])):
            return False
        places = args[position] if position < len(args) else kwargs.get("index", kwargs.get("indices"))
        tensors = [item for item in tree_leaves(places) if isinstance(item, torch.Tensor)]
        if base == "index" and any(item.dtype in (torch.bool, torch.uint8) for item in tensors):
            return False
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

    def _allocate(self, base: str, args: Sequence[Any], kwargs: dict[str, Any], reads: Sequence[torch.Tensor]) -> None:
        try:
            exact = base in MOVES or base in ALLOCATIONS
            self._allocated += bytes_made(base, args, kwargs, reads, exact)
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

    def _message(self, base: str, reads: Sequence[torch.Tensor], origins: frozenset[str]) -> str:
        what, whose = _public(base), self._described(reads)
        if _PRODUCTS.search(base):
            return f"{what} on {whose}: a launcher multiplies no matrices. Do it in the kernel, with tl.dot."
        if base in MOVES:
            unknown = sorted(origins & self._integers - set(map(_input, self._known)))
            if "moves" in self.allow and unknown:
                table = unknown[0].removeprefix("input ")
                return f"{what} takes places from `{table}`, whose values only the device has. Load them in the kernel."
            return f"{what} on {whose}: this function's launcher may not copy tensors. Pass them to the kernel as is."
        if not origins:
            return f"{what}: a launcher may not use this operation. Allocate, and let the kernel fill the tensor."
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


def _names(func: Any) -> tuple[str, str]:
    """An operation's name as torch has it, and without the mark of in-place forms."""
    name = str(func._schema.name).partition("::")[2]
    return name, name.rstrip("_") or name


def _public(base: str) -> str:
    if "attention" in base:
        return "torch.nn.functional.scaled_dot_product_attention"
    return _PUBLIC.get(base, f"torch.{base.lstrip('_')}")


def _is_view(func: Any, base: str) -> bool:
    """Whether the operation only looks at its argument's memory; those without checks of their own are left out."""
    returns = func._schema.returns
    if base == "_unsafe_view":
        return True
    if base.startswith("_") or torch.Tag.inplace_view in func.tags or not returns:
        return False
    return all(item.alias_info is not None and not item.alias_info.is_write for item in returns)


def _check_extent(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises Forbidden where strides lead out of the tensor, into whatever lies beside it in memory."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    own = given["self"]
    try:
        first = given.get("storage_offset")
        first = own.storage_offset() if first is None else int(first)
        steps = [(int(size) - 1) * int(step) for size, step in zip(given["size"], given["stride"], strict=True)]
    except (KeyError, TypeError, ValueError) as problem:
        raise Forbidden(f"torch.as_strided is given arguments that it doesn't take ({problem!r:.100}).") from None
    least = first + sum(step for step in steps if step < 0)
    last = own.storage_offset() + sum((size - 1) * step for size, step in zip(own.shape, own.stride(), strict=True))
    if least < own.storage_offset() or first + sum(step for step in steps if step > 0) > last:
        raise Forbidden("torch.as_strided reaches beyond its tensor. Make a view of the elements that the tensor has.")


def _split(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors that an operation reads, and those that it writes to; an in-place operation's own is among both."""
    reads: list[torch.Tensor] = []
    writes: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors = [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written:
            writes += tensors
        if not (written and (argument.kwarg_only or name in _WRITE_ONLY)):
            reads += tensors
    return reads, writes

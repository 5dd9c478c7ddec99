"""One call of a submission's function: guarded arguments, the options that a judge may ask for, checked results."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .codec import Encoder
from .guards import (
    ContractError,
    Guarded,
    GuardedArray,
    array_extent,
    check_not_aliasing,
    check_size,
    poison_small_allocations,
)
from .wire import MAX_BYTES, Bytes, HostRef, Json, Leaf, RefReader, UnsendableError, numpy_leaf, numpy_value

MAX_WARNINGS = 20
MAX_WARNING_TEXT = 500

_ndarray, _generic = np.ndarray, np.generic


class RaisedError(Exception):
    """The submission's code raised; the exception is the cause."""


class Answered(Exception):
    """A request ends in a reply of another kind than a result.

    Attributes:
        kind: of the reply, e.g. ``contract``. body: what the judge reads.
    """

    def __init__(self, kind: str, body: dict[str, Any]) -> None:
        super().__init__(kind)
        self.kind, self.body = kind, body


@dataclass
class Options:
    """What a `call` message asks for beside the call.

    Attributes:
        measure: report the peak of Python's and NumPy's allocations.
        warnings: report the warnings that the call emits.
        mutable: parameters that the call may change; their values come back.
        cotangents: tensors to multiply the results with for a backward pass; the gradients come back.
    """

    measure: bool = False
    warnings: bool = False
    mutable: tuple[str, ...] = ()
    cotangents: list[Any] = field(default_factory=list)


class Arguments:
    """Reads a message's arguments into guarded buffers."""

    def __init__(self, make_ref: RefReader) -> None:
        self.guarded: list[Guarded] = []
        self.make_ref = make_ref

    def leaf(self, leaf: Leaf) -> Any:
        if leaf.kind == "scalar":
            return numpy_value(leaf)
        guard: Guarded
        if leaf.kind == "tensor":
            from .tensors import GuardedTensor

            guard = GuardedTensor(leaf)
        else:
            guard = GuardedArray(leaf)
        self.guarded.append(guard)
        return guard.value

    def ref(self, ref: HostRef) -> Any:
        return self.make_ref(ref)

    def name(self, bound: dict[str, Any], mutable: tuple[str, ...]) -> None:
        """Give each guarded argument the name of the parameter that it's bound to."""
        by_identity = {id(guard.value): guard for guard in self.guarded}
        for name, value in _walk(bound):
            guard = by_identity.get(id(value))
            if guard is not None:
                guard.name = name
                guard.mutable = name.split("[")[0] in mutable

    def named_tensors(self) -> dict[str, Any]:
        return {guard.name: guard.value for guard in self.guarded if not isinstance(guard, GuardedArray)}


def _walk(bound: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    pending = list(bound.items())
    while pending:
        name, value = pending.pop()
        yield name, value
        if type(value) in (list, tuple):
            pending.extend((f"{name}[{i}]", item) for i, item in enumerate(value))
        elif type(value) is dict:
            pending.extend((f"{name}[{key!r}]", item) for key, item in value.items())


class ResultLeaves:
    """Tells results by their parts, refusing what isn't exactly an array or a tensor of its own memory."""

    def __init__(self, guarded: list[Guarded], max_bytes: int, *, with_torch: bool) -> None:
        self._guarded = guarded
        self._max_bytes = max_bytes
        self._with_torch = with_torch

    def __call__(self, value: Any, path: str) -> Leaf | None:
        if isinstance(value, _ndarray):
            if type(value) is not _ndarray:
                raise ContractError(f"{path} is a {type(value).__name__}; expected exactly numpy.ndarray, no subclass.")
            start, end = array_extent(value)
            check_not_aliasing(start, end, self._guarded, path)
            check_size(value.nbytes, self._max_bytes, path)
            return numpy_leaf(value, path)
        if isinstance(value, _generic):
            return numpy_leaf(value, path)
        if self._with_torch:
            from .tensors import tensor_leaf

            return tensor_leaf(value, self._guarded, self._max_bytes, path)
        return None


def perform(
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    arguments: Arguments,
    options: Options,
    *,
    device: str,
    with_torch: bool,
) -> tuple[Json, list[Bytes]]:
    """Call the function and check what it did.

    Returns:
        the reply as written by an encoder: ``value``, and what the options ask for.

    Raises:
        RaisedError: from the submission's exception. ContractError: it broke a rule.
    """
    poison_small_allocations()
    if with_torch:
        from . import tensors

        tensors.poison(device, [guard.value_bytes for guard in arguments.guarded])
        tensors.synchronize(device)
    reply: dict[str, Any] = {}
    value = _watched(function, args, kwargs, arguments, options, reply)
    if with_torch:
        tensors.synchronize(device)
    encoder = Encoder(ResultLeaves(arguments.guarded, MAX_BYTES[device], with_torch=with_torch), records=True)
    try:
        written = encoder.encode(value, "the result")
    except UnsendableError as error:
        raise ContractError(f"{error}.") from error
    except ContractError:
        raise
    except Exception as error:  # no memory for a copy, or a field of a returned dataclass that raises when it's read
        raise RaisedError from error
    for guard in arguments.guarded:
        guard.check_values()
    reply["mutated"] = {guard.name: guard.current() for guard in arguments.guarded if guard.mutable}
    rest = [encoder.encode(item, key) for key, item in reply.items()]
    for guard in arguments.guarded:
        guard.check_surroundings()
    return {"~": "dict", "k": ["value", *reply], "v": [written, *rest]}, encoder.buffers


def _watched(
    function: Callable[..., Any],
    args: list[Any],
    kwargs: dict[str, Any],
    arguments: Arguments,
    options: Options,
    reply: dict[str, Any],
) -> Any:
    """The call itself, inside the watchers that the options ask for; they write what they saw into `reply`."""
    with ExitStack() as stack:
        caught: list[warnings.WarningMessage] | None = None
        if options.warnings:
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
        if options.measure:
            tracemalloc.start(1)
            stack.callback(tracemalloc.stop)
        try:
            value = function(*args, **kwargs)
            if options.cotangents:
                reply["gradients"] = _gradients(value, arguments, options.cotangents)
        except BaseException as error:
            raise RaisedError from error
        if options.measure:
            reply["peak_bytes"] = tracemalloc.get_traced_memory()[1]
        if caught is not None:
            reply["warnings"] = [
                f"{item.category.__name__}: {item.message}"[:MAX_WARNING_TEXT] for item in caught[:MAX_WARNINGS]
            ]
    return value


def _gradients(value: Any, arguments: Arguments, cotangents: list[Any]) -> dict[str, Any]:
    """Gradients of sum(cotangent · result) by each argument that requires one; None where the graph reaches none."""
    import torch

    results = list(value) if type(value) in (tuple, list) else [value]
    pairs = [pair for pair in zip(results, cotangents, strict=False) if pair[1] is not None]
    torch.autograd.backward([result for result, _ in pairs], [cotangent for _, cotangent in pairs])
    return {
        name: None if tensor.grad is None else tensor.grad.detach().clone()
        for name, tensor in arguments.named_tensors().items()
        if tensor.requires_grad
    }

"""Notes which torch operations a call used that could stand in for the kernel it was asked to write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .decoys import MOVES, WITHOUT_VALUES, is_view, operation_name

CopyListener = Callable[[torch.Tensor, torch.Tensor], None]
Follower = Callable[[Any, Sequence[Any], dict[str, Any], Callable[[], Any]], Any]
Reader = Callable[[torch.Tensor, Callable[[], Any]], Any]
WorkListener = Callable[[int], None]

_FUNCTIONS = {
    "matmul": "torch.matmul",
    "__matmul__": "torch.matmul",
    "__rmatmul__": "torch.matmul",
    "mm": "torch.mm",
    "bmm": "torch.bmm",
    "addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "addbmm": "torch.addbmm",
    "einsum": "torch.einsum",
    "tensordot": "torch.tensordot",
    "linear": "torch.nn.functional.linear",
    "softmax": "torch.softmax",
    "log_softmax": "torch.log_softmax",
    "logsumexp": "torch.logsumexp",
    "scaled_dot_product_attention": "torch.nn.functional.scaled_dot_product_attention",
    "multi_head_attention_forward": "torch.nn.functional.multi_head_attention_forward",
    "numpy": "torch.Tensor.numpy",
    "__array__": "torch.Tensor.numpy",
    "tolist": "torch.Tensor.tolist",
}
_OPERATIONS = {
    "mm": "torch.mm",
    "bmm": "torch.bmm",
    "addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "addbmm": "torch.addbmm",
    "mv": "torch.mv",
    "dot": "torch.dot",
    "linear": "torch.nn.functional.linear",
    "_softmax": "torch.softmax",
    "_safe_softmax": "torch.softmax",
    "_log_softmax": "torch.log_softmax",
    "logsumexp": "torch.logsumexp",
}
_ATTENTION = (
    "scaled_dot_product",
    "flash_attention",
    "flash_attn",
    "efficient_attention",
    "cudnn_attention",
    "flex_attention",
)
_COPIES = frozenset({"clone", "_to_copy", "contiguous"})
_READS = frozenset({"numpy", "__array__", "tolist"})
_PRODUCTS = re.compile(
    r"(?:^|_)(?:\w*mm|mv|addmv|v?dot|matmul|conv(?:\dd|_?tbc|olution|_transpose)\w*|(?:bi|tri)?linear|[cp]dist|softmax"
    r"|lstm|gru|rnn|embedding_bag|fft|inverse|inv|solve|cholesky|triangular|lu|matrix|householder|linalg(?!_vec))(?:_|$)"
)
"""Parts of the names of operations that multiply matrices, or can be made to."""
_OWN = frozenset({"aten", "prim", "prims"})
"""Namespaces of torch's own operations; those of others may be Python that calls what it likes."""
SCALAR_WORK = 64
"""What a value that becomes Python's own weighs: a launcher reads a few, who computes in Python reads all."""
PLACE_WORK = 16
"""And a whole number of a tensor that is read at once: tables have a few hundred, copies of Q, K and V more."""


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Sees what Python calls, by its public name."""

    def __init__(self, found: list[str], read: Reader | None, on_work: WorkListener | None) -> None:
        super().__init__()
        self.found = found
        self.read = read
        self.on_work = on_work
        self.depth = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = getattr(func, "__name__", "")
        name = _FUNCTIONS.get(called)
        if name is None:
            return func(*args, **(kwargs or {}))
        if called in _READS and _is_of_places(args):
            return self._read(args[0], lambda: func(*args, **(kwargs or {})))
        _note(self.found, name)
        self.depth += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.depth -= 1

    def _read(self, tensor: torch.Tensor, call: Callable[[], Any]) -> Any:
        """Lengths and tables are the launcher's to read; each number has its weight."""
        if self.on_work is not None:
            self.on_work(PLACE_WORK * tensor.numel())
        return call() if self.read is None else self.read(tensor, call)


class _Operations(TorchDispatchMode):  # type: ignore[misc]
    """Sees what reaches the dispatcher by another way (autograd's backward, compiled code), copies, and arithmetic."""

    def __init__(
        self,
        found: list[str],
        functions: _Functions,
        on_copy: CopyListener,
        follow: Follower | None,
        on_work: WorkListener | None,
    ) -> None:
        super().__init__()
        self.on_work = on_work
        self.found = found
        self.functions = functions
        self.on_copy = on_copy
        self.follow = follow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "namespace", "aten") not in _OWN:
            return self._of_others(func, args, kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            # In inference mode and inside of others' operations such arrive whole: `contiguous`, `matmul`.
            with self:
                return func.decompose(*args, **kwargs)
        result = self._seen(func, args, kwargs, lambda: func(*args, **kwargs))
        name = operation_name(func)
        public = _OPERATIONS.get(name)
        if any(part in name for part in _ATTENTION):
            public = "torch.nn.functional.scaled_dot_product_attention"
        elif _PRODUCTS.search(name.rstrip("_")) and public is None:
            public = f"torch.{name}"
        if public and not self.functions.depth:
            _note(self.found, public)
        if name in _COPIES and isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor):
            self.on_copy(args[0], result)
        elif name == "copy_" and _both_tensors(args):
            self.on_copy(args[1], args[0])
        if self.on_work is not None and not (name in MOVES or name.startswith(WITHOUT_VALUES) or is_view(func)):
            self.on_work(SCALAR_WORK if name == "_local_scalar_dense" else _numbers(args, kwargs, result))
        return result

    def _of_others(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that isn't torch's own: what it calls in turn is seen too, as if the launcher called it."""
        if any(part in operation_name(func) for part in _ATTENTION):
            _note(self.found, str(func))
        key = _backend(args, kwargs)
        if not (key and torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), key)):
            return self._seen(func, args, kwargs, lambda: func(*args, **kwargs))
        keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key))
        with self:
            return func.redispatch(keys, *args, **kwargs)

    def _seen(self, func: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """What the operation gives, with the follower told of it."""
        if self.follow is None:
            return call()
        return self.follow(func, args, kwargs, call)


def _backend(args: Any, kwargs: Any) -> str:
    """The dispatcher's name for the device of the first tensor; empty without one."""
    devices = [item.device.type for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
    return devices[0].upper() if devices else ""


def _is_of_places(args: Sequence[Any]) -> bool:
    """Whether the first argument holds lengths or places, not what a kernel computes with."""
    first = args[0] if args else None
    return isinstance(first, torch.Tensor) and not (first.is_floating_point() or first.is_complex())


def _both_tensors(args: Sequence[Any]) -> bool:
    return len(args) >= 2 and isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.Tensor)


def _numbers(args: Any, kwargs: Any, result: Any) -> int:
    """Elements of the largest tensor of numbers that an operation with such a result went over."""
    results, given = (
        [item.numel() for item in tree_leaves(tree) if isinstance(item, torch.Tensor) and item.dtype != torch.bool]
        for tree in (result, (args, kwargs))
    )
    return max(*results, *given, 0) if results else 0


def _note(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)


@contextmanager
def watch_library_ops(
    found: list[str],
    on_copy: CopyListener,
    follow: Follower | None = None,
    read: Reader | None = None,
    on_work: WorkListener | None = None,
) -> Iterator[None]:
    """Append to `found`, once each, the names of heavy operations used in the block; tell `on_copy` of copies.

    Best effort: native code of a third party isn't seen.

    Args:
        follow: runs every operation of the dispatcher: function, arguments, what calls it; gives the result.
        read: runs what turns a tensor of lengths or places into Python's or NumPy's numbers; gives the result.
        on_work: told of every operation but moves and casts how many numbers it went over.
    """
    functions = _Functions(found, read, on_work)
    compile_before = torch.compile

    def noted_compile(*args: Any, **kwargs: Any) -> Any:
        _note(found, "torch.compile")
        return compile_before(*args, **kwargs)

    torch.compile = noted_compile
    try:
        with functions, _Operations(found, functions, on_copy, follow, on_work):
            yield
    finally:
        torch.compile = compile_before

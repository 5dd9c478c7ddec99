"""Notes which torch operations a call used that could stand in for the kernel it was asked to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .decoys import MOVES, WITHOUT_VALUES, is_view, operation_name

CopyListener = Callable[[torch.Tensor, torch.Tensor], None]
Follower = Callable[[Any, Sequence[Any], dict[str, Any], Any], None]
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


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Sees what Python calls, by its public name."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found
        self.depth = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _FUNCTIONS.get(getattr(func, "__name__", ""))
        if name is None:
            return func(*args, **(kwargs or {}))
        _note(self.found, name)
        self.depth += 1
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.depth -= 1


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
        result = func(*args, **(kwargs or {}))
        name = operation_name(func)
        public = _OPERATIONS.get(name)
        if any(part in name for part in _ATTENTION):
            public = "torch.nn.functional.scaled_dot_product_attention"
        if public and not self.functions.depth:
            _note(self.found, public)
        if name in _COPIES and isinstance(result, torch.Tensor) and isinstance(args[0], torch.Tensor):
            self.on_copy(args[0], result)
        elif name == "copy_" and _both_tensors(args):
            self.on_copy(args[1], args[0])
        if self.on_work is not None and not (name in MOVES or name.startswith(WITHOUT_VALUES) or is_view(func)):
            self.on_work(_floats(args, kwargs, result))
        if self.follow is not None:
            self.follow(func, args, kwargs or {}, result)
        return result


def _both_tensors(args: Sequence[Any]) -> bool:
    return len(args) >= 2 and isinstance(args[0], torch.Tensor) and isinstance(args[1], torch.Tensor)


def _floats(args: Any, kwargs: Any, result: Any) -> int:
    """Elements of the largest floating-point tensor that an operation with a floating-point result went over."""
    results = [item for item in tree_leaves(result) if isinstance(item, torch.Tensor) and item.is_floating_point()]
    given = [
        item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor) and item.is_floating_point()
    ]
    return max(item.numel() for item in (*results, *given)) if results else 0


def _note(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)


@contextmanager
def watch_library_ops(
    found: list[str],
    on_copy: CopyListener,
    follow: Follower | None = None,
    on_work: WorkListener | None = None,
) -> Iterator[None]:
    """Append to `found`, once each, the names of heavy operations used in the block; tell `on_copy` of copies.

    Best effort: native code of a third party isn't seen.

    Args:
        follow: told of every operation of the dispatcher that ran: function, arguments, result.
        on_work: told of every operation but moves and casts how many floating-point elements it went over.
    """
    functions = _Functions(found)
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

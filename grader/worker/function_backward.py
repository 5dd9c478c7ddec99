"""Runs the backward of `torch.autograd.Function`s directly, where no gradient engine can run.

Torch's engine wants a real device for cuda tensors; a launch capture has none. So `Function.apply` is replaced by a
plain call of `forward` with a context that remembers, and `backward` is called afterwards, newest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Context:
    """What `forward` and `backward` expect of `ctx`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Gradients are given for every output all the same."""

    def mark_dirty(self, *tensors: Any) -> None:
        """In-place forwards need no care here."""

    def set_materialize_grads(self, value: bool) -> None:
        """Every gradient is given."""


@contextmanager
def watch_functions() -> Iterator[list[tuple[Any, Context, Any]]]:
    """Yield the list that each differentiable application in the block is added to: (class, context, outputs)."""
    applied: list[tuple[Any, Context, Any]] = []

    def apply(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        needs = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        context = Context(needs)
        with torch.no_grad():
            if cls.setup_context is torch.autograd.Function.setup_context:
                outputs = cls.forward(context, *args, **kwargs)
            else:
                outputs = cls.forward(*args, **kwargs)
                cls.setup_context(context, args, outputs)
        if any(needs):
            applied.append((cls, context, outputs))
        return outputs

    # The code is replaced, not the method: modules commonly keep `attention = Attention.apply`, bound before this runs.
    original = torch.autograd.Function.apply.__func__
    code, names = original.__code__, original.__globals__
    names["_watched_apply"] = apply
    original.__code__ = _Redirect.apply.__code__
    try:
        yield applied
    finally:
        original.__code__ = code
        del names["_watched_apply"]


class _Redirect:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        assert __class__  # type: ignore[name-defined]
        return _watched_apply(cls, args, kwargs)  # type: ignore[name-defined]  # noqa: F821 - set in torch's module


def run_backward(applied: list[tuple[Any, Context, Any]]) -> None:
    """Call each backward with contiguous gradients of its outputs' shapes, newest application first."""
    for cls, context, outputs in reversed(list(applied)):
        each = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = [torch.empty_like(o, memory_format=torch.contiguous_format) for o in each if _is_tensor(o)]
        with torch.no_grad():
            cls.backward(context, *gradients)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)

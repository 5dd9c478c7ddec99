"""`torch.autograd.Function` without torch's gradient engine, which wants a real device.

`Function.apply` becomes a plain call of `forward` with a context that remembers. Its results become the beginning of a
new graph, so that later operations of torch's can be followed back to them (see `gradients`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .history import History
from .values import Refused


class Context:
    """What `forward` and `backward` expect of `ctx`."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.not_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Forward-mode derivatives aren't taken."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.not_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """What a forward writes in place is seen by the operations that do it."""

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


class Application:
    """One call of `apply` that a gradient goes back through.

    Attributes:
        function: the class. outputs: its results, in order. edges: for each argument where its gradient goes to: a node
            of torch's graph and the number of the node's result, or the leaf itself; None if it needs none.
    """

    def __init__(self, function: Any, context: Context, args: tuple[Any, ...]) -> None:
        self.function, self.context, self.args = function, context, args
        needs = context.needs_input_grad
        self.edges = [edge_of(arg) if needed else None for arg, needed in zip(args, needs, strict=True)]
        self.outputs: list[Any] = []


def edge_of(tensor: torch.Tensor) -> tuple[Any, int]:
    """Where the gradient of a tensor goes to: (node, which of its results) or (the leaf itself, 0)."""
    made_by: tuple[Application, int] | None = getattr(tensor, "made_by", None)
    if made_by is not None:
        return made_by
    return (tensor, 0) if tensor.grad_fn is None else (tensor.grad_fn, tensor.output_nr)


def _apply(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    needs = tuple(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
    context = Context(needs)
    differentiable = torch.is_grad_enabled() and any(needs)
    application = Application(cls, context, args) if differentiable else None
    with torch.no_grad():
        if cls.setup_context is torch.autograd.Function.setup_context:
            results = cls.forward(context, *args, **kwargs)
        else:
            results = cls.forward(*args, **kwargs)
            cls.setup_context(context, args, results)
    if application is None:
        return results
    several = isinstance(results, tuple)
    given = [arg for arg in args if isinstance(arg, torch.Tensor)]
    for number, result in enumerate(results if several else (results,)):
        if _is_differentiable(result, context):
            # An argument that is handed on as it is gets a graph of its own.
            result = result.detach() if any(result is arg for arg in given) else result
            result.requires_grad_(True)
            result.made_by = (application, number)
        application.outputs.append(result)
    return tuple(application.outputs) if several else application.outputs[0]


def _is_differentiable(result: Any, context: Context) -> bool:
    if not isinstance(result, torch.Tensor) or not (result.is_floating_point() or result.is_complex()):
        return False
    return not any(result is tensor for tensor in context.not_differentiable)


@contextmanager
def plain_functions(history: History) -> Iterator[None]:
    """In the block `Function.apply` calls the forward and remembers what the backward needs; nothing else has one."""

    def refusal() -> Callable[..., None]:  # one each: torch's own tables tell functions apart by identity
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise Refused(
                history.where(),
                "a launcher can't ask torch for gradients. Write them in the backward of a torch.autograd.Function, or "
                "launch their kernels.",
            )

        return refuse

    # The code is replaced, not the method: modules commonly keep `attention = Attention.apply`, bound before this runs.
    original = torch.autograd.Function.apply.__func__
    code, names = original.__code__, original.__globals__
    engine = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}
    for name in engine:
        setattr(torch.autograd, name, refusal())
    names["_recorded_apply"] = _apply
    original.__code__ = _Redirect.apply.__code__
    try:
        yield
    finally:
        for name, function in engine.items():
            setattr(torch.autograd, name, function)
        original.__code__ = code
        del names["_recorded_apply"]


class _Redirect:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        assert __class__  # type: ignore[name-defined]
        return _recorded_apply(cls, args, kwargs)  # type: ignore[name-defined]  # noqa: F821 - set in torch's module

"""Goes back through torch's graph node by node, and through the `Function`s between, and sums the gradients."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .functions import Application, Context, edge_of
from .history import History
from .values import Refused

Edge = tuple[Any, int]


def gradients(
    results: list[Any], cotangents: list[Any], inputs: dict[str, torch.Tensor], history: History
) -> dict[str, torch.Tensor | None]:
    """Gradients of sum(cotangent · result) by each input that requires one; None where the graph reaches none.

    Raises:
        RuntimeError: a result depends on no such input. Refused: a `Function`'s gradients don't fit its arguments.
    """
    starts: list[tuple[Edge, torch.Tensor]] = []
    for number, (result, cotangent) in enumerate(zip(results, cotangents, strict=False)):
        if cotangent is None:
            continue
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            raise RuntimeError(  # as torch's engine does
                f"result {number} does not require grad: no differentiable operations lead to it from an input that "
                "requires one. Launch kernels in the forward of a torch.autograd.Function."
            )
        starts.append((edge_of(result), cotangent))
    sums: dict[int, dict[int, torch.Tensor]] = {}
    with torch.no_grad():
        for edge, gradient in starts:
            _add(sums, edge, gradient)
        for node in _in_order([edge[0] for edge, _ in starts]):
            arrived = sums.get(id(node), {})
            if isinstance(node, torch.Tensor) or not arrived:
                continue
            if isinstance(node, Application):
                pairs = _through_function(node, arrived, history)
            else:
                pairs = _through_node(node, arrived)
            for edge, gradient in pairs:
                _add(sums, edge, gradient)
    return {name: sums.get(id(tensor), {}).get(0) for name, tensor in inputs.items() if tensor.requires_grad}


def _add(sums: dict[int, dict[int, torch.Tensor]], edge: Edge, gradient: torch.Tensor) -> None:
    """Sum a gradient into its place, in the shape and dtype of what it is the gradient of."""
    node, number = edge
    shape, dtype = _form(node, number)
    if gradient.shape != shape:
        gradient = gradient.sum_to_size(shape)
    if gradient.dtype != dtype:
        gradient = gradient.to(dtype)
    arrived = sums.setdefault(id(node), {})
    arrived[number] = gradient if number not in arrived else arrived[number] + gradient


def _form(node: Any, number: int) -> tuple[torch.Size, torch.dtype]:
    if isinstance(node, torch.Tensor):
        return node.shape, node.dtype
    if isinstance(node, Application):
        return node.outputs[number].shape, node.outputs[number].dtype
    described = node._input_metadata[number]
    return torch.Size(described.shape), described.dtype


def _edges(node: Any) -> list[Edge | None]:
    """Where a node's gradients go to, in the order that it gives them."""
    if isinstance(node, torch.Tensor):
        return []
    if isinstance(node, Application):
        return node.edges
    return [_landing(following, number) for following, number in node.next_functions]


def _landing(node: Any, number: int) -> Edge | None:
    """A graph ends in nodes that hold a leaf; results of a `Function` are such leaves, and it goes on from there."""
    if node is None:
        return None
    variable = getattr(node, "variable", None)
    return (node, number) if variable is None else edge_of(variable)


def _in_order(roots: list[Any]) -> list[Any]:
    """All nodes that can be reached, each before those that it sends gradients to."""
    order: list[Any] = []
    seen: set[int] = set()
    pending: list[tuple[Any, bool]] = [(root, False) for root in roots]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            pending.append((node, True))
            pending += [(edge[0], False) for edge in _edges(node) if edge is not None]
    return order[::-1]


def _through_node(node: Any, arrived: dict[int, torch.Tensor]) -> list[tuple[Edge, torch.Tensor]]:
    made = node(*(arrived.get(number) for number in range(len(node._input_metadata))))
    made = made if isinstance(made, tuple) else (made,)
    pairs = zip(_edges(node), made, strict=False)
    return [(edge, gradient) for edge, gradient in pairs if edge is not None and gradient is not None]


def _through_function(
    application: Application, arrived: dict[int, torch.Tensor], history: History
) -> list[tuple[Edge, torch.Tensor]]:
    """Call a `Function`'s backward and check what it gives."""
    function, context = application.function, application.context
    given = [_arrived(arrived, number, output, context) for number, output in enumerate(application.outputs)]
    own = function.backward is not torch.autograd.Function.backward
    made = (function.backward if own else function.vjp)(context, *given)
    made = made if isinstance(made, tuple) else (made,)
    edges, name = application.edges, function.__name__
    if len(made) < len(edges) or any(item is not None for item in made[len(edges) :]):
        raise Refused(
            _line_of(function, history),
            f"{name}.backward returned {len(made)} gradients; expected {len(edges)}, one for each argument of forward "
            "(None for those that need none).",
        )
    pairs: list[tuple[Edge, torch.Tensor]] = []
    for number, (edge, gradient) in enumerate(zip(edges, made, strict=False)):
        if gradient is None:
            continue
        argument = application.args[number]
        what = f"{name}.backward: the gradient of argument {number} of forward ({_parameter(function, number)})"
        if not _is_tensor(gradient) or not _is_tensor(argument):
            raise Refused(
                _line_of(function, history),
                f"{what} is a {type(gradient).__name__}; expected {'a tensor' if _is_tensor(argument) else 'None'}.",
            )
        if not _is_expandable(argument.shape, gradient.shape):
            raise Refused(
                _line_of(function, history),
                f"{what} has shape {tuple(gradient.shape)}; expected {tuple(argument.shape)}.",
            )
        if edge is not None:
            pairs.append((edge, gradient))
    return pairs


def _arrived(arrived: dict[int, torch.Tensor], number: int, output: Any, context: Context) -> torch.Tensor | None:
    """The gradient of one result as backward gets it: zeros where none came, unless the Function wants None."""
    if number in arrived:
        return arrived[number]
    return torch.zeros_like(output) if context.materialize_grads and _is_tensor(output) else None


def _parameter(function: Any, number: int) -> str:
    own_setup = function.setup_context is not torch.autograd.Function.setup_context
    names = list(inspect.signature(function.forward).parameters)[0 if own_setup else 1 :]
    return names[number] if number < len(names) else "*"


def _is_expandable(shape: torch.Size, to: torch.Size) -> bool:
    if len(shape) > len(to):
        return False
    return all(size in (1, wanted) for size, wanted in zip(reversed(shape), reversed(to), strict=False))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _line_of(function: Any, history: History) -> str:
    """The submission's line where a `Function`'s backward is defined."""
    code = getattr(inspect.unwrap(function.backward), "__code__", None)
    return history.place(code.co_filename, code.co_firstlineno) if code is not None else ""

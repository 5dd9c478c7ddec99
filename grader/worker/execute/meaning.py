"""Gives an interpreted kernel's tree the compiler's meaning where Python's differs."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from ..tape import JSON
from .deciding import DECIDE, key, seen, unwrapped

_AND, _OR, _NOT, _IS, _SEEN, _CHOSEN, _HELD, _COMPARED, _CONSTANT = (
    f"__{name}" for name in ("and", "or", "not", "is", "seen", "chosen", "held", "compared", "constant")
)
_COMPARABLE = (bool, int, float, str, type(None))


class Meaning(ast.NodeTransformer):
    """Rewrites one function's tree; nodes know their place in the written text (see `writing`).

    Names imported from the language are read of its modules, whose members the interpreter replaces. `and`, `or` and
    `not` go element by element. What can decide something is watched (see `deciding`).

    Args:
        entry: the function's. space: its namespace, which gets modules. position: among the closure's functions.
    """

    def __init__(self, entry: JSON, space: dict[str, Any], position: int) -> None:
        self._bindings = entry["bindings"]
        self._space = space
        self._position = position

    def visit(self, node: ast.AST) -> Any:
        found = super().visit(node)
        return self._watched(node, found) if isinstance(node, DECIDE) else found

    def _watched(self, node: Any, found: Any) -> ast.expr:
        name, called = ast.Constant(key(self._position, node.written)), ast.Constant(isinstance(node, ast.Call))
        return _calling(_SEEN, node, name, found, called)

    def _test(self, node: ast.expr) -> ast.expr:
        found: ast.expr = self.visit(node)
        return found if isinstance(node, DECIDE) else self._watched(node, found)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        binding = self._bindings.get(node.id)
        if binding is None or binding["kind"] != "import":
            return node
        module = f"__module_{node.id}"
        self._space[module] = importlib.import_module(binding["module"])
        return ast.copy_location(ast.Attribute(ast.Name(module, ast.Load()), binding["name"], ast.Load()), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        parts = [_later(self.visit(value)) for value in node.values]
        return _calling(_AND if isinstance(node.op, ast.And) else _OR, node, *parts)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return _calling(_NOT, node, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1:
            return node  # Triton compiles none.
        left, right = node.left, node.comparators[0]
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return _calling(_IS, node, left, right, ast.Constant(isinstance(node.ops[0], ast.Is)))
        node.left, node.comparators = _calling(_COMPARED, left, left), [_calling(_COMPARED, right, right)]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = [_later(self.visit(part)) for part in (node.body, node.orelse)]
        return _calling(_CHOSEN, node, self._test(node.test), *parts)

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self._test(node.test)
        node.body, node.orelse = [[self.visit(part) for part in body] for body in (node.body, node.orelse)]
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        node.test = _calling(_HELD, node.test, node.test)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """The compiler reads the arguments of a loop's range, not the range."""
        if isinstance(node.iter, ast.Call):
            self.generic_visit(node.iter)
        node.body = [self.visit(part) for part in node.body]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        """What nobody takes decides nothing."""
        node.value = self.visit_Call(node.value) if isinstance(node.value, ast.Call) else self.visit(node.value)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "static_assert":
            del node.args[1:]  # The compiler reads a message where the assertion fails.
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        assert node.value is not None
        node.value = _calling(_CONSTANT, node.value, self.visit(node.value))
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        """A message, which only the compiler shows."""
        return ast.copy_location(ast.Constant(""), node)

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        return node


def _later(value: ast.expr) -> ast.expr:
    empty = ast.arguments([], [], None, [], [], None, [])
    return ast.copy_location(ast.Lambda(empty, value), value)


def _calling(name: str, place: ast.expr, *values: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(values), []), place)


def _both(*parts: Callable[[], Any]) -> Any:
    return _joined(parts, "logical_and", ends=False)


def _either(*parts: Callable[[], Any]) -> Any:
    return _joined(parts, "logical_or", ends=True)


def _joined(parts: Sequence[Callable[[], Any]], method: str, *, ends: bool) -> Any:
    """Numbers end the evaluation as in Python; tensors are joined, all of them evaluated."""
    tensors = []
    for part in parts:
        value = part()
        if isinstance(value, tl.tensor):
            tensors.append(value)
        elif bool(value) is ends:
            return value
    while len(tensors) > 1:
        last = tensors.pop()
        tensors.append(getattr(tensors.pop(), method)(last))
    return tensors[0] if tensors else value


def _negated(value: Any) -> Any:
    return value.__not__() if isinstance(value, tl.tensor) else not value


def _same(left: Any, right: Any, wanted: bool) -> bool:
    return (unwrapped(left) is unwrapped(right)) is wanted


def _compared(value: Any) -> Any:
    """A side of a comparison: what compares alike for the compiler and in Python."""
    value = unwrapped(value)
    if isinstance(value, tl.tuple):
        value = tuple(value.values)
    items = value if isinstance(value, tuple) else () if isinstance(value, tl.tensor) else (value,)
    if not all(isinstance(unwrapped(item), (*_COMPARABLE, tl.dtype)) for item in items):
        raise TypeError("kernels compare tensors, numbers, texts, dtypes, None, and tuples of those but tensors")
    return tuple(map(unwrapped, value)) if isinstance(value, tuple) else value


def _chosen(test: Any, body: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """A choice by a tensor is a tensor."""
    value = body() if test else otherwise()
    return interpreter.interpreter_semantic.to_tensor(value) if isinstance(test, tl.tensor) else value


def _held(test: Any) -> Any:
    return test.condition if isinstance(test, tl.condition) else test


def _constant(value: Any) -> Any:
    if isinstance(value, tl.tensor):
        raise TypeError("a tl.constexpr holds what is known when a kernel is compiled, not a tensor")
    return value


HELPERS: dict[str, Callable[..., Any]] = {
    _AND: _both,
    _OR: _either,
    _NOT: _negated,
    _IS: _same,
    _SEEN: seen,
    _CHOSEN: _chosen,
    _HELD: _held,
    _COMPARED: _compared,
    _CONSTANT: _constant,
}

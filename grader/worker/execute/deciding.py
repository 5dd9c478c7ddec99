"""What a kernel decides while it's compiled, and that it decides the same while it's interpreted.

Python and Triton's compiler don't take every expression for the same. So each launch's lowering notes what came out of
every expression that can decide something, and the interpreter refuses the first that comes out otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.runtime import interpreter


class Undecided(Exception):
    """An expression comes out as one thing interpreted and as another compiled."""


Decisions = Mapping[str, "frozenset[str]"]
DECIDE = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.IfExp, ast.Call)
ANY = "*"
"""Stands for more outcomes than are kept apart: a loop that is unrolled far."""
MAX_OUTCOMES = 256
_TENSOR = "a tensor"
_PLAIN = (bool, int, float, str, type(None))


class Known(Protocol):
    """Rebuilt functions, as the compiler has them."""

    def position(self, function: Any) -> int | None: ...


def key(position: int, node: Any) -> str:
    """Names an expression of a function; `node` has the places of the written text."""
    return f"{position}:{node.lineno}:{node.col_offset}:{node.end_lineno}:{node.end_col_offset}"


def outcome(value: Any) -> str:
    """What an expression came out as: a compile-time value, or something that is known when the kernel runs."""
    value = unwrapped(value)
    kind = type(value)
    if kind is int and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if kind in _PLAIN:
        return repr(value)[:80]
    if isinstance(value, tl.dtype):
        return str(value)[:80]
    if isinstance(value, (tuple, list, tl.tuple)):
        return f"({', '.join(outcome(item) for item in value)})"[:200]
    return "NotImplemented" if value is NotImplemented else _TENSOR


def unwrapped(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


@contextmanager
def noting(functions: Known) -> Iterator[dict[str, set[str]]]:
    """Collects outcomes of what is lowered in the block, by key."""
    found: dict[str, set[str]] = {}
    visit = CodeGenerator.visit

    def noted(self: Any, node: Any) -> Any:
        if isinstance(node, (ast.If, ast.IfExp)):
            node.test.decides = True  # type: ignore[attr-defined]
        result = visit(self, node)
        if isinstance(node, DECIDE) or getattr(node, "decides", False):
            position = functions.position(self.jit_fn)
            if position is not None and hasattr(node, "end_col_offset"):
                outcomes = found.setdefault(key(position, node), set())
                if len(outcomes) < MAX_OUTCOMES:
                    outcomes.add(outcome(result))
                else:
                    outcomes.add(ANY)
        return result

    CodeGenerator.visit = noted
    try:
        yield found
    finally:
        CodeGenerator.visit = visit


_expected: Decisions | None = None


@contextmanager
def expecting(decisions: Decisions) -> Iterator[None]:
    """What is interpreted in the block has to decide as its lowering did."""
    global _expected
    before, _expected = _expected, decisions
    try:
        yield
    finally:
        _expected = before


def _scalars(value: Any) -> Any:
    """A function's result with tensors for numbers, in tuples too."""
    if isinstance(value, (tuple, tl.tuple)):
        return tl.tuple([_scalars(item) for item in value])
    number = unwrapped(value)
    is_number = type(number) in (bool, int, float)
    return interpreter.interpreter_semantic.to_tensor(number) if is_number else value


def seen(name: str, value: Any, called: bool) -> Any:
    """`value`, which an interpreted expression came out as; numbers that a function returns from branches are tensors.

    Args:
        name: the expression's key. called: it's a call.

    Raises:
        Undecided: it came out otherwise when the kernel was compiled.
    """
    if _expected is None:
        return value
    known = _expected.get(name, frozenset())
    text = _TENSOR if isinstance(value, tl.tensor) else outcome(value)
    if text in known or ANY in known:
        return value
    if called and outcome(scalars := _scalars(value)) in known:
        return scalars
    compiled = " or ".join(sorted(known)[:3]) or "nothing: it isn't reached"
    raise Undecided(
        f"an expression comes out as {text} when Python runs the kernel, and as {compiled} when Triton compiles it. "
        "Decide by numbers, dtypes and None in the plain ways that both take alike."
    )

"""The kernel language as interpreted kernels find it: what compiles and Triton's interpreter can't run is mended here.

Two parts. `Rewriter` changes a kernel's tree before it's compiled to Python: a loop's index becomes a scalar tensor, as
it is on a GPU, and so does every number that is assigned to a name. `language` puts Triton's interpreted operations in
place of those of `triton.language` for the length of a block. `interpreter_fixes` repairs what the operations compute.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from ..guards import ContractError
from . import as_compiled, faster
from . import libdevice as libdevice_in_numpy

_LOOP, _ASSIGNED, _VALUE, _BUILTIN = (f"_interpreted_{name}" for name in ("loop", "assigned", "value", "builtin"))
_ARITHMETIC = ("add", "sub", "mul", "mod", "truediv", "floordiv", "and", "or", "xor", "lshift", "rshift")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class CannotInterpret(Exception):
    """This release's interpreter lacks an operation that its compiler has; the message says where."""


class KernelRaised(Exception):
    """A kernel's code failed while it was interpreted.

    Attributes:
        kind: of the exception, by its name. text: what happened. where: the student's file and line, or empty.
    """

    def __init__(self, kind: str, text: str, where: str) -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.kind, self.text, self.where = kind, text, where


class Rewriter(ast.NodeTransformer):
    """What a kernel's code must look like for Python to do what Triton's compiler makes of it."""

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        node.value = _call(_ASSIGNED, node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], _call(_ASSIGNED, value)), node)

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and _last_name(node.iter.func) == "range":
            node.iter = ast.copy_location(ast.Call(_name(_LOOP), node.iter.args, node.iter.keywords), node.iter)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.Pass:
        """`assert` is `tl.device_assert`, which does nothing where a kernel isn't compiled for debugging."""
        return ast.copy_location(ast.Pass(), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        # A compile-time argument is a plain number here; compiled code may ask a `tl.constexpr` for its value.
        if node.attr == "value" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(_call(_VALUE, node.value), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            node.args.insert(0, node.func)  # The name may mean something else where it's called.
            node.func = ast.copy_location(_name(_BUILTIN), node.func)
        return node


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _call(name: str, value: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(_name(name), [value], []), value)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def assigned(value: Any) -> Any:
    """A value as a name holds it: numbers become scalar tensors, those in tuples too."""
    if isinstance(value, tuple):
        items = [assigned(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return interpreter.interpreter_semantic.to_tensor(value, False)


def loop(first: Any, last: Any = None, step: Any = None, **options: Any) -> Iterator[Any]:
    """`range` and `tl.range`: indices are scalar tensors, of 64 bits where a bound has as many."""
    start, stop = (0, first) if last is None else (first, last)
    bounds = [interpreter.interpreter_semantic.to_tensor(bound) for bound in (start, stop, 1 if step is None else step)]
    if isinstance(step, tl.tensor) and not step.handle.data.item() > 0:
        raise ValueError("a step that is known only when the kernel runs has to be positive")
    kind = bounds[0].dtype
    for bound in bounds[1:]:
        kind = interpreter.interpreter_semantic.integer_promote_impl(kind, bound.dtype)
    stored = interpreter._get_np_dtype(kind)
    limits = np.iinfo(stored)
    low, high, by = (int(bound.handle.data.item()) for bound in bounds)
    numbers = range(low, high, by)
    # Compiled loops compare as signed numbers, and their index goes one step beyond the last.
    most = limits.max if limits.min < 0 else limits.max // 2
    if not all(-most <= number <= most for number in (low, high, (numbers[-1] if numbers else low) + by)):
        raise OverflowError(f"a loop from {low} to {high} by {by} leaves the range of {kind}")
    return (tl.tensor(interpreter.TensorHandle(np.array([index], stored), kind), kind) for index in numbers)


def _value(holder: Any) -> Any:
    return holder.value if hasattr(holder, "value") else holder


def nothing(*values: Any, **options: Any) -> None:
    """Stands for `tl.device_assert`, which does nothing where a kernel isn't compiled for debugging."""


def _builtin(function: Any, *values: Any, **options: Any) -> Any:
    """A call of Python's `min` or `max`, which the compiler takes for others; or of what hides them."""
    if function is min or function is max:
        return _value((tl.core.builtin_min if function is min else tl.core.builtin_max)(*values))
    return function(*values, **options)


HELPERS: dict[str, Callable[..., Any]] = {_LOOP: loop, _ASSIGNED: assigned, _VALUE: _value, _BUILTIN: _builtin}


def apply() -> None:
    """Let kernels that are interpreted from now on be rewritten by `Rewriter`."""
    interpreter.FunctionRewriter.ast_transformer = Rewriter()
    for name, helper in HELPERS.items():
        setattr(interpreter, name, helper)  # Rewritten functions find the interpreter's globals beside their own.
    interpreter.InterpretedFunction.__call__ = _call_helper
    builder = interpreter.InterpreterBuilder
    builder.create_assert = nothing
    builder.create_assume = _assume
    builder.create_extern_elementwise = _extern
    builder.create_descriptor_reduce = _descriptor_reduce
    as_compiled.apply()


def _assume(self: Any, condition: Any) -> None:
    if not condition.data.all():
        raise ContractError("tl.assume is told what isn't true here; a GPU's result is then undefined.")


def _extern(self: Any, library: str, path: str, symbol: str, values: list[Any], kind: Any, pure: bool) -> Any:
    """A function of CUDA's device library."""
    stored = interpreter._get_np_dtype(kind)
    if libdevice_in_numpy.is_bitcast(symbol):
        return interpreter.TensorHandle(values[0].data.view(stored), kind.scalar)
    function = libdevice_in_numpy.function_of(symbol)
    if function is None:
        raise NotImplementedError(f"{symbol} has no counterpart in the interpreter; use operations of triton.language")
    return interpreter.TensorHandle(function(*(value.data for value in values)).astype(stored), kind.scalar)


def _descriptor_reduce(self: Any, kind: Any, descriptor: Any, value: Any, offsets: Any) -> Any:
    """`descriptor.atomic_add` and its like."""
    pointers, mask = descriptor.materialize_pointers(offsets)
    element = pointers.get_element_ty()
    name = {"ADD": "FADD" if element.is_floating() else "ADD"}.get(kind.name, kind.name)
    name = f"U{name}" if name in ("MIN", "MAX") and element.is_int_unsigned() else name
    self.create_atomic_rmw(
        getattr(ir.ATOMIC_OP, name), pointers, value, mask, ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU
    )


def _call_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A kernel's call of another function: the language is in place already, for the length of a launch."""
    return self.rewrite()(*args, **kwargs)


@contextmanager
def language() -> Iterator[None]:
    """`triton.language` holds the interpreter's operations in the block."""
    scope = interpreter._LangPatchScope()
    try:
        for owner, name, value in _patches():
            scope.set_attr(owner, name, value)
        yield
    finally:
        scope.restore()


class _Noted:
    """Collects what the interpreter would set, in the form of its own scope."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, str, Any]] = []

    def set_attr(self, owner: Any, name: str, value: Any) -> None:
        self.found.append((owner, name, value))


@cache
def _patches() -> list[tuple[Any, str, Any]]:
    """Owner, name and value of every attribute that differs when interpreted; found once, the search takes 20 ms."""
    noted, builder = _Noted(), interpreter.interpreter_builder
    for package in (tl, tl.core, tl.math, libdevice, cuda_libdevice, tl.tensor, tl.core.tensor_descriptor_base):
        interpreter._patch_builtin(package, builder, noted)
    for package in (tl, tl.core):
        interpreter._patch_lang_core(package, noted)
        noted.set_attr(package, "range", loop)
        as_compiled.hints(noted, package)
    interpreter._patch_lang_tensor(tl.tensor, noted)
    noted.found += faster.patches()
    for name, value in vars(tl.tensor).items():
        if isinstance(value, JITFunction):
            noted.set_attr(tl.tensor, name, _method(name))
    # `tl.extra.libdevice` stands for the device's own; compiling replaces the module.
    functions = {name: value for owner, name, value in noted.found if owner is cuda_libdevice}
    for name, value in functions.items():
        noted.set_attr(libdevice, name, value)
    for name in (*_ARITHMETIC, *_COMPARISONS):
        for method in (f"__{name}__", f"__r{name}__"):
            if method in vars(tl.constexpr):
                noted.set_attr(tl.constexpr, method, _yielding(vars(tl.constexpr)[method]))
    return noted.found


def _method(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(tl.standard, name)(*args, **kwargs)


def _yielding(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of `tl.constexpr` that leaves it to a tensor on its other side what comes out."""

    def operator(self: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, tl.tensor) else operation(self, other)

    return operator

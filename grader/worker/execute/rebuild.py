"""Rebuilds the functions of a `kernel_closure` in a process that never saw the submission.

Each function lives in a namespace of its own that holds nothing but what its entry binds and a few builtins. It's
rebuilt as Triton compiles it, or as the interpreter runs it; both have the line numbers of the entry's source.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction

from ..kernel_closure import CONSTEXPR
from ..tape import JSON
from .validate import BUILTINS, CannotRebuild, check, member, static

_LAYOUTS = "triton.experimental.gluon.language"
_LANGUAGE = "__language__"
"""Triton's interpreter wants to find the language in a kernel's namespace, under whatever name."""
_BUILTINS = {name: getattr(__import__("builtins"), name) for name in sorted(BUILTINS)}


class Twin(InterpretedFunction):  # type: ignore[misc]
    """A function as the interpreter runs it, rewritten already; `fn` is the rewritten one."""

    def rewrite(self) -> Any:
        return self.fn


class Rebuilt:
    """Functions of one closure by position, each validated and rebuilt when it's first asked for.

    Args:
        functions: entries of a closure.
        folder: where sources go, for Triton to read.
        interpreted: make interpreted twins in place of what Triton compiles.
    """

    def __init__(self, functions: list[JSON], folder: Path, *, interpreted: bool) -> None:
        self._functions = functions
        self._folder = folder
        self._interpreted = interpreted
        self._built: dict[int, Any] = {}
        self._spaces: dict[int, dict[str, Any]] = {}
        self._making: set[int] = set()

    def __getitem__(self, position: int) -> Any:
        """The function at a position, with all that it refers to.

        Raises:
            CannotRebuild: it, or a function that it refers to, isn't of the kernel language.
        """
        made: list[int] = []
        try:
            self._make_all(position, made)
        except BaseException:
            for index in made:  # Half of a function's helpers would be missing from now on.
                self._built.pop(index, None)
            raise
        finally:
            self._making.difference_update(made)
        return self._built[position]

    def _make_all(self, position: int, made: list[int]) -> None:
        """Make a function and those that it refers to, and bind them to each other's names; `made` gets them all."""
        waiting = [position]
        while waiting:
            index = waiting.pop()
            if index not in self._built:
                entry = self._functions[index]
                if index in self._making:
                    raise CannotRebuild(f"`{entry['name']}` is a default value of its own.")
                made.append(index)
                self._making.add(index)
                self._built[index] = self._make(index, entry, check(entry))
                waiting += [inner for binding in entry["bindings"].values() for inner in _referred(binding)]
        for index in made:
            for name, binding in self._functions[index]["bindings"].items():
                if _referred(binding):
                    self._spaces[index][name] = self.value(binding)

    def built(self) -> list[Any]:
        """The functions that were asked for so far."""
        return list(self._built.values())

    def value(self, binding: JSON) -> Any:
        """A value from its plain form (see `kernel_closure.Closure.encode`).

        Raises:
            CannotRebuild: it names what isn't of the kernel language.
        """
        kind = binding["kind"]
        if kind == "function":
            index = int(binding["index"])
            return self._built[index] if index in self._built else self[index]
        if kind == "literal":
            return literal(binding["text"])
        if kind == "constexpr":
            return tl.constexpr(self.value(binding["value"]))
        if kind in ("tuple", "list"):
            items = [self.value(item) for item in binding["items"]]
            return tuple(items) if kind == "tuple" else items
        if kind == "layout":
            return self._layout(binding)
        if kind in ("module", "import", "dtype"):
            return static(binding)
        if kind == "namespace":
            module = ModuleType("namespace")
            module.__dict__.update({name: self.value(item) for name, item in binding["members"].items()})
            return module
        raise CannotRebuild(f"Kernel code names a value of unknown kind {kind!r:.40}.")

    def _layout(self, binding: JSON) -> Any:
        """A layout of Gluon's: a class of the language, called with plain values."""
        named = binding["class"]
        if named["kind"] != "import" or not named["module"].startswith(_LAYOUTS):
            raise CannotRebuild("Kernel code names a layout that isn't Gluon's.")
        layout = member(importlib.import_module(named["module"]), named["name"])
        if not (isinstance(layout, type) and hasattr(layout, "__dataclass_fields__")):
            raise CannotRebuild(f"Kernel code names a layout {named['name']!r:.40}, which Gluon doesn't have.")
        return layout(**{name: self.value(item) for name, item in binding["members"].items()})

    def _make(self, position: int, entry: JSON, tree: ast.Module) -> Any:
        content = f"{entry['source']}\n"
        path = self._folder / f"kernel_{position}_{hashlib.sha256(content.encode()).hexdigest()[:16]}.py"
        if not path.exists():
            path.write_text(content)
        space: dict[str, Any] = {"__builtins__": dict(_BUILTINS), "__name__": f"kernel_{position}"}
        space |= {_LANGUAGE: tl, CONSTEXPR: tl.constexpr}
        for name, item in entry["bindings"].items():
            if name.startswith("_default_") or not _referred(item):
                space[name] = self.value(item)
        self._spaces[position] = space
        is_kernel = entry["kind"] != "constexpr_function"
        if self._interpreted and is_kernel:
            tree = interpreter.FunctionRewriter.ast_transformer.visit(_Meaning(entry, space).visit(tree))
            ast.fix_missing_locations(tree)
            for name, value in vars(interpreter).items():
                space.setdefault(name, value)  # Helpers of the rewritten code, as Triton's own rewriting has it.
        exec(compile(tree, str(path), "exec", dont_inherit=True), space)
        function = space[entry["name"]]
        function.__module__ = f"kernel_{position}"
        return self._wrapped(function, entry)

    def _wrapped(self, function: Any, entry: JSON) -> Any:
        if entry["kind"] == "constexpr_function":
            return triton.constexpr_function(function)
        if self._interpreted:
            if entry["kind"] == "gluon":
                raise CannotRebuild(f"`{entry['name']}` is a Gluon kernel, which Triton's interpreter can't run.")
            return Twin(function)
        make = gluon.jit if entry["kind"] == "gluon" else triton.jit
        names = {name: list(entry[name]) for name in ("do_not_specialize", "do_not_specialize_on_alignment")}
        return make(function, noinline=entry["noinline"], **names)


class _Meaning(ast.NodeTransformer):
    """Gives a kernel's tree the compiler's meaning where Python's differs.

    Names imported from the language are read of its modules, whose members the interpreter replaces. `and`, `or` and
    `not` go element by element.
    """

    def __init__(self, entry: JSON, space: dict[str, Any]) -> None:
        self._bindings = entry["bindings"]
        self._space = space
        space |= {_AND: _both, _OR: _either, _NOT: _negated}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        binding = self._bindings.get(node.id)
        if binding is None or binding["kind"] != "import":
            return node
        module = f"__module_{node.id}"
        self._space[module] = importlib.import_module(binding["module"])
        return ast.copy_location(ast.Attribute(ast.Name(module, ast.Load()), binding["name"], ast.Load()), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        empty = ast.arguments([], [], None, [], [], None, [])
        parts: list[ast.expr] = [ast.copy_location(ast.Lambda(empty, value), value) for value in node.values]
        name = _AND if isinstance(node.op, ast.And) else _OR
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), parts, []), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name(_NOT, ast.Load()), [node.operand], []), node)


_AND, _OR, _NOT = "__and", "__or", "__not"


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


def literal(text: str) -> Any:
    """A number, bool, text or None as `kernel_closure` writes it.

    Raises:
        CannotRebuild: it is something else, or too long.
    """
    if text in ("float('nan')", "float('inf')", "float('-inf')"):
        return float(text[7:-2])
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise CannotRebuild(f"Kernel code names a value {text!r:.60}, which isn't a number or text.") from None
    if type(value) not in (bool, int, float, str, type(None)) or (type(value) is int and value.bit_length() > 128):
        raise CannotRebuild(f"Kernel code names a value {text!r:.60}; it can name numbers of 128 bits and texts.")
    return value


def _referred(binding: JSON) -> list[int]:
    """Positions of the functions that a binding names; they are bound once all are built."""
    if binding["kind"] == "function":
        return [int(binding["index"])]
    inner = [*binding.get("items", ()), *binding.get("members", {}).values()]
    if binding["kind"] == "constexpr":
        inner.append(binding["value"])
    return [position for item in inner for position in _referred(item)]

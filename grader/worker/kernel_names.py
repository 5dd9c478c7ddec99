"""What a kernel names that no kernel can use: Triton's interpreter runs its body as Python, which could do anything."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from types import ModuleType
from typing import Any

from triton.runtime.interpreter import InterpretedFunction

from .kernel_closure import Closure, _look_up, _names_used

_BUILTINS = frozenset(
    ("eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "breakpoint", "setattr", "delattr")
)


def foreign_names(kernel: Any) -> list[str]:
    """Names in the kernel and its helpers that mean Python's objects rather than Triton's, in order, once each."""
    found: list[str] = []
    _look(kernel, found, set())
    return found


def _look(function: Any, found: list[str], seen: set[int]) -> None:
    if id(function) in seen or _is_tritons(function):
        return
    seen.add(id(function))
    try:
        source = textwrap.dedent("".join(inspect.getsourcelines(function.fn)[0]))
        definition = ast.parse(source).body[0]
    except (OSError, SyntaxError):
        _note(found, f"{function.__name__} (its source can't be read)")
        return
    if not isinstance(definition, ast.FunctionDef):
        return
    for problem in _reaches_out(definition, function.fn):
        _note(found, problem)
    for name, attributes in _names_used(definition).items():
        known, value = _look_up(function.fn, name)
        if known:
            _judge(name, value, attributes, found, seen)


def _judge(name: str, value: Any, attributes: set[str], found: list[str], seen: set[int]) -> None:
    if isinstance(value, InterpretedFunction):
        _look(value, found, seen)
    elif isinstance(value, ModuleType) and not _is_language(value):
        for attribute in sorted(attributes):
            _judge(f"{name}.{attribute}", getattr(value, attribute, None), set(), found, seen)
    elif callable(value) and Closure().encode(value) is None:
        _note(found, name)


def _reaches_out(definition: ast.FunctionDef, function: Any) -> list[str]:
    """Ways out of the kernel language that name nothing global, or begin at a module of Triton's."""
    ways = []
    own = set(function.__code__.co_varnames)
    for statement in definition.body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)):
                ways.append(type(node).__name__.lower())
            elif isinstance(node, ast.Name) and (node.id in _BUILTINS or node.id.startswith("__")):
                ways += [node.id] if node.id not in own else []
            elif isinstance(node, ast.Attribute):
                found = _module_at(node, function)
                if node.attr.startswith("__") or (found is not None and not _is_language(found)):
                    ways.append(ast.unparse(node))
    return ways


def _module_at(node: ast.expr, function: Any) -> ModuleType | None:
    """The module that a chain of attributes ends in, if it begins at a module of Triton's and ends in one."""
    if isinstance(node, ast.Name):
        known, value = _look_up(function, node.id)
        return value if known and isinstance(value, ModuleType) and _is_language(value) else None
    if not isinstance(node, ast.Attribute):
        return None
    owner = _module_at(node.value, function)
    found = getattr(owner, node.attr, None) if owner is not None else None
    return found if isinstance(found, ModuleType) else None


def _is_language(module: ModuleType) -> bool:
    return module.__name__.split(".")[0] in ("triton", "math")


def _is_tritons(function: Any) -> bool:
    """Whether this is a function of Triton's own library."""
    module = str(getattr(function.fn, "__module__", ""))
    if module.split(".")[0] != "triton":
        return False
    try:
        return getattr(importlib.import_module(module), function.__name__, None) is function
    except ImportError:
        return False


def _note(found: list[str], name: str) -> None:
    if name not in found:
        found.append(name)

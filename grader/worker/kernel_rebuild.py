"""Rebuilds the functions of a `kernel_closure` in a process that never saw the submission.

Triton's compiler evaluates calls in a kernel's body as Python, so what may be named is limited first: attributes of
Triton's and math's modules, and nothing that reaches another module or the interpreter. The worker is sandboxed too.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon

from .kernel_closure import JSON

_LANGUAGE = ("triton.language", "triton.experimental.gluon", "math")

_READS_PROCESS = ("eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "breakpoint")
_FORBIDDEN = frozenset((*_READS_PROCESS, "getattr", "setattr", "delattr"))
_STATEMENTS = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef, ast.Lambda)


class CannotRebuild(Exception):
    """Kernel code does something that kernel code has no need of; the message says what."""


def rebuild(functions: list[JSON], roots: list[JSON], folder: Path) -> dict[int, Any]:
    """JIT functions by position in `Closure.functions`: those that `roots` refer to, and their helpers.

    Args:
        roots: bindings, e.g. ``{"kind": "function", "index": 0}``.
        folder: where their sources go, for Triton to read.

    Raises:
        CannotRebuild: a function reaches outside of Triton.
    """
    modules: dict[int, ModuleType] = {}
    waiting = [index for root in roots for index in _referred(root)]
    while waiting:
        position = waiting.pop()
        if position not in modules:
            modules[position] = _module(position, functions[position], folder)
            waiting += [i for binding in functions[position]["bindings"].values() for i in _referred(binding)]
    built = {position: module.__dict__[functions[position]["name"]] for position, module in modules.items()}
    for position, module in modules.items():
        for name, binding in functions[position]["bindings"].items():
            if _referred(binding):
                module.__dict__[name] = decode_value(binding, built)
    return built


def _module(position: int, entry: JSON, folder: Path) -> ModuleType:
    """A module that holds one function and the plain values that it names."""
    module = ModuleType(f"kernel_{position}")
    plain = {name: binding for name, binding in entry["bindings"].items() if not _referred(binding)}
    module.__dict__.update({name: decode_value(binding, {}) for name, binding in plain.items()})
    _check(ast.parse(entry["source"]), module)
    path = folder / f"kernel_{position}.py"
    path.write_text(_decorator(entry) + entry["source"] + "\n")
    module.__dict__["_triton"], module.__dict__["_gluon"] = triton, gluon
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def _decorator(entry: JSON) -> str:
    if entry["kind"] == "constexpr_function":
        return "@_triton.constexpr_function\n"
    package = "_gluon" if entry["kind"] == "gluon" else "_triton"
    return f"@{package}.jit(noinline={bool(entry['noinline'])})\n"


def _referred(binding: JSON) -> list[int]:
    """Positions of the functions that a binding names; they are bound once all are built."""
    if binding["kind"] == "function":
        return [int(binding["index"])]
    inner = [*binding.get("items", ()), *binding.get("members", {}).values()]
    if binding["kind"] == "constexpr":
        inner.append(binding["value"])
    return [position for item in inner for position in _referred(item)]


def decode_value(binding: JSON, built: dict[int, Any]) -> Any:
    """A value from its plain form (see `Closure.encode`).

    Args:
        built: functions by position, for those that it refers to.
    """
    kind = binding["kind"]
    if kind == "literal":
        text = binding["text"]
        return float(text[7:-2]) if text.startswith("float(") else ast.literal_eval(text)
    if kind == "constexpr":
        return tl.constexpr(decode_value(binding["value"], built))
    if kind in ("tuple", "list"):
        items = [decode_value(item, built) for item in binding["items"]]
        return tuple(items) if kind == "tuple" else items
    if kind == "layout":
        layout = decode_value(binding["class"], built)
        return layout(**{name: decode_value(item, built) for name, item in binding["members"].items()})
    if kind == "dtype":
        return tl.dtype(binding["name"])
    if kind == "function":
        return built[binding["index"]]
    if kind == "namespace":
        module = ModuleType("namespace")
        module.__dict__.update({name: decode_value(item, built) for name, item in binding["members"].items()})
        return module
    if kind in ("module", "import"):
        name = binding["name" if kind == "module" else "module"]
        if not _in_language(name):
            raise CannotRebuild(f"Kernel code imports {name}; it can use triton.language and math.")
        found = importlib.import_module(name)
        value = found if kind == "module" else getattr(found, binding["name"])
        if not _harmless(value):
            raise CannotRebuild(f"Kernel code imports `{binding['name']}` of {name}.")
        return value
    raise CannotRebuild(f"Kernel code names a value of unknown kind {kind!r}.")


def _check(tree: ast.Module, module: ModuleType) -> None:
    (definition, *rest) = tree.body
    if rest or not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        raise CannotRebuild("Kernel code is more than one function.")
    defaults = [*definition.args.defaults, *(item for item in definition.args.kw_defaults if item is not None)]
    if not all(isinstance(item, (ast.Name, ast.Constant)) for item in defaults):
        raise CannotRebuild("Kernel code computes a default value.")
    for node in ast.walk(tree):
        if isinstance(node, _STATEMENTS):
            raise CannotRebuild(f"Kernel code holds a {type(node).__name__} at line {node.lineno}.")
        if isinstance(node, ast.Name) and (node.id in _FORBIDDEN or node.id.startswith("__")):
            raise CannotRebuild(f"Kernel code names `{node.id}`.")
        if isinstance(node, ast.Attribute):
            if node.attr.startswith("__"):
                raise CannotRebuild(f"Kernel code reads `.{node.attr}`.")
            _resolve(node, module)


def _resolve(node: ast.expr, module: ModuleType) -> Any:
    """The module that an attribute chain ends in, or None; a module outside of Triton is refused."""
    if isinstance(node, ast.Name):
        found = module.__dict__.get(node.id)
        return found if isinstance(found, ModuleType) else None
    if not isinstance(node, ast.Attribute):
        return None
    owner = _resolve(node.value, module)
    found = getattr(owner, node.attr, None) if owner is not None else None
    if not _harmless(found):
        place = getattr(found, "__name__", node.attr)
        raise CannotRebuild(f"Kernel code reaches {place}; it can use triton.language and math.")
    return found if isinstance(found, ModuleType) else None


def _harmless(found: Any) -> bool:
    """Whether kernel code may hold this: a module or callable of the kernel language, or a plain value."""
    if isinstance(found, ModuleType):
        return _in_language(found.__name__) or found.__name__ == "namespace"
    if isinstance(found, tl.dtype) or not callable(found):
        return True
    home = str(getattr(found, "__module__", ""))
    return _in_language(home) or home.startswith("kernel_")


def _in_language(module: str) -> bool:
    return module == "triton" or any(module == name or module.startswith(name + ".") for name in _LANGUAGE)

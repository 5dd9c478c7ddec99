"""What kernel code may say: an allow-list over its syntax tree, before any of it is compiled or interpreted.

Every name must be bound by the code itself, by its entry's bindings or by a fixed table of builtins. Every attribute
must lead to a public member of the kernel language, or be one that tensors, dtypes and descriptors have. So there's no
way from kernel code to a Python object that isn't of the language, however the code is written.
"""

from __future__ import annotations

import ast
import importlib
import math
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any, cast

import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import ConstexprFunction, JITFunction

from ..kernel_closure import CONSTEXPR
from ..tape import JSON
from .loops import read_after_loop
from .vocabulary import (
    ANNOTATION,
    BUILTINS,
    CLASSES,
    GLUON,
    GLUON_ATTRIBUTES,
    MATH,
    MODULES,
    NODES,
    OTHER_BUILTINS,
    REFUSED,
    RESERVED,
    TEXTS,
    TRITON,
    UNINTERPRETED,
    VALUE_ATTRIBUTES,
)

MAX_NODES = 20_000
MAX_NESTING = 60
MAX_INT_BITS = 128


class CannotRebuild(Exception):
    """Kernel code does something that kernel code has no need of; the message says what and where."""


@dataclass(frozen=True)
class Namespace:
    """A helper module of the submission's: what a kernel reads of it, encoded."""

    members: dict[str, JSON]


_VALUE = object()
"""What an expression is whose value is known only when it runs."""


@dataclass
class _Function:
    """One function's check: its entry, the names that it binds itself, and its calls of what prints."""

    entry: JSON
    parameters: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    prints: list[ast.Call] = field(default_factory=list)

    def fail(self, node: ast.AST, problem: str) -> CannotRebuild:
        line = self.entry["line"] + getattr(node, "lineno", 1) - 1
        return CannotRebuild(f"{self.entry['file']}:{line}: kernel code of `{self.entry['name']}` {problem}")


def check(entry: JSON) -> ast.Module:
    """The syntax tree of a function's source, without what it prints: a kernel that is judged prints nothing.

    Raises:
        CannotRebuild: it isn't one function of the kernel language.
    """
    scope = _Function(entry)
    try:
        tree: ast.Module = ast.parse(entry["source"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise CannotRebuild(f"{entry['file']}: kernel code of `{entry['name']}` isn't Python ({problem}).") from None
    definition = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(definition, ast.FunctionDef) or definition.name != entry["name"]:
        raise scope.fail(tree, "is more than one function.")
    _bounded(scope, definition.args)
    _header(scope, definition)
    inner = _bounded(scope, *definition.body)
    scope.own = {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    unpacked = {id(part) for node in inner if isinstance(node, ast.Call) for part in node.args}
    for node in inner:
        if isinstance(node, ast.Starred) and id(node) not in unpacked:
            raise scope.fail(node, "unpacks something outside of a call.")
        _node(scope, node)
    late = read_after_loop(definition)
    if late is not None:
        raise scope.fail(late, f"reads `{late.id}`, a loop's index, after the loop; name them apart.")
    texts = _texts(inner)
    for node in inner:
        if isinstance(node, ast.JoinedStr) and id(node) not in texts:
            raise scope.fail(node, "makes a text (f-string); only messages of static_assert and prints can be one.")
    for printing in scope.prints:
        if not any(isinstance(node, ast.Expr) and node.value is printing for node in inner):
            raise scope.fail(printing, "uses what a print returns.")
    return cast(ast.Module, _Silent(scope.prints).visit(tree))


class _Silent(ast.NodeTransformer):
    """Leaves what is printed and drops the printing: it takes registers, and asks for a host that listens."""

    def __init__(self, prints: list[ast.Call]) -> None:
        self._prints = {id(call) for call in prints}

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if not isinstance(node.value, ast.Call) or id(node.value) not in self._prints:
            return node
        given = [*node.value.args, *(keyword.value for keyword in node.value.keywords)]
        values = [value for value in given if not isinstance(value, (ast.Constant, ast.JoinedStr, ast.Starred))]
        kept = ast.Expr(ast.Tuple(values, ast.Load())) if values else ast.Pass()
        return ast.fix_missing_locations(ast.copy_location(kept, node))


def reserved(name: str) -> bool:
    """Whether rewriting keeps a name for itself."""
    return name.startswith(RESERVED)


def language_module(name: str) -> ModuleType:
    """A module of the language by its name.

    Raises:
        CannotRebuild: it isn't one.
    """
    if not _is_language(name):
        raise CannotRebuild(f"Kernel code imports {name}; it can use triton.language and math.")
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CannotRebuild(f"Kernel code imports {name}, which this Triton doesn't have.") from None


def static(binding: JSON) -> Any:
    """What a binding means before anything runs: an object of the language, a `Namespace`, or an unknown value.

    Raises:
        CannotRebuild: it names what isn't of the language.
    """
    kind = binding["kind"]
    if kind == "namespace":
        return Namespace(binding["members"])
    if kind in ("module", "import"):
        found = language_module(binding["name"] if kind == "module" else binding["module"])
        return found if kind == "module" else member(found, binding["name"])
    if kind == "dtype":
        if not tl.dtype.is_dtype(binding["name"]):
            raise CannotRebuild(f"Kernel code names a dtype {binding['name']!r:.40}, which Triton doesn't have.")
        return tl.dtype(binding["name"])
    return _VALUE


def member(owner: Any, name: str) -> Any:
    """A public member of a module of the language, or of its enum.

    Raises:
        CannotRebuild: it has none of that name that kernels may use.
    """
    home = owner.__name__
    found = None if name.startswith("_") else getattr(owner, name, None)
    if name == "inline_asm_elementwise":
        raise CannotRebuild(
            f"Kernel code uses inline assembly (`{name}`), which no interpreter can run and no check can read; use the "
            "operations of triton.language."
        )
    if name in UNINTERPRETED and not home.startswith(GLUON):
        raise CannotRebuild(
            f"Kernel code uses `{name}`, which Triton's interpreter can't run: no check could see what it does. "
            "Use other operations of triton.language."
        )
    if name in REFUSED or found is None or not _is_public(owner, name, found):
        raise CannotRebuild(f"Kernel code reaches `{home}.{name}`; it can use triton.language and math.")
    return found


def _is_language(module: str) -> bool:
    return module in MODULES or module in (GLUON, f"{GLUON}.language") or module.startswith(f"{GLUON}.language.")


def _is_public(owner: Any, name: str, found: Any) -> bool:
    if owner is tl.PropagateNan:
        return name in ("NONE", "ALL")
    if isinstance(found, ModuleType):
        return _is_language(found.__name__) and (owner is not triton or name in TRITON)
    if owner is triton:
        return name in TRITON
    if owner is math:
        return isinstance(found, float) or name in MATH
    if isinstance(found, (bool, int, float, tl.dtype)) or any(found is kind for kind in CLASSES):
        return True
    if isinstance(found, tl.constexpr):
        return isinstance(found.value, (bool, int, float, str, type(None)))
    home = str(getattr(getattr(found, "fn", found), "__module__", ""))
    if isinstance(found, (JITFunction, InterpretedFunction, ConstexprFunction)):
        return home.startswith(("triton.language", GLUON))
    if home.startswith(f"{GLUON}.language"):
        return callable(found)  # Layouts are classes.
    return bool(getattr(found, "__triton_builtin__", False)) or home.startswith("triton.language.extra.")


def _bounded(scope: _Function, *roots: ast.AST) -> list[ast.AST]:
    """All nodes below `roots`; raises CannotRebuild where they are so many or so deep that a walk is the attack."""
    waiting: list[tuple[ast.AST, int]] = [(root, 0) for root in roots]
    nodes: list[ast.AST] = []
    while waiting:
        node, depth = waiting.pop()
        nodes.append(node)
        if len(nodes) > MAX_NODES or depth > MAX_NESTING:
            raise scope.fail(node, f"is larger than {MAX_NODES} parts or nested deeper than {MAX_NESTING}.")
        waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    return nodes


def _header(scope: _Function, definition: ast.FunctionDef) -> None:
    header = definition.args
    if definition.decorator_list or definition.returns or header.vararg or header.kwarg or header.posonlyargs:
        raise scope.fail(definition, "has a decorator, *args, **kwargs or a `/` among its parameters.")
    arguments = [*header.args, *header.kwonlyargs]
    if len({argument.arg for argument in arguments}) != len(arguments):
        raise scope.fail(definition, "has two parameters of one name.")
    for argument in arguments:
        _name(scope, argument, argument.arg)
        if argument.arg in OTHER_BUILTINS | BUILTINS:
            raise scope.fail(argument, f"gives `{argument.arg}` two meanings.")
        note = argument.annotation
        is_type = isinstance(note, ast.Constant) and type(note.value) is str and ANNOTATION.fullmatch(note.value)
        if not (note is None or is_type or (isinstance(note, ast.Name) and note.id == CONSTEXPR)):
            raise scope.fail(argument, f"computes the annotation of `{argument.arg}`.")
    for default in (*header.defaults, *header.kw_defaults):
        if default is not None and not (isinstance(default, ast.Name) and default.id in scope.entry["bindings"]):
            raise scope.fail(default, "computes a default value.")
    scope.parameters = {argument.arg for argument in arguments}


def _node(scope: _Function, node: ast.AST) -> None:
    if not isinstance(node, NODES):
        raise scope.fail(node, f"holds a {type(node).__name__}, which kernels can't have.")
    if isinstance(node, ast.Constant):
        _constant(scope, node)
    elif isinstance(node, ast.Name):
        _free_name(scope, node)
    elif isinstance(node, ast.Attribute):
        _meaning(scope, node)
        if not isinstance(node.ctx, ast.Load):
            raise scope.fail(node, "assigns to an attribute.")
    elif isinstance(node, ast.Call):
        _call(scope, node)
    elif isinstance(node, (ast.For, ast.While)):
        _loop(scope, node)
    elif isinstance(node, ast.Subscript):
        if not isinstance(node.ctx, ast.Load) or _meaning(scope, node.value) is not _VALUE:
            raise scope.fail(node, "takes an item of something that isn't a tensor or tuple.")
    elif isinstance(node, ast.FormattedValue):
        if node.format_spec is not None:
            raise scope.fail(node, "formats a text.")
    elif isinstance(node, ast.Assign):
        if not all(isinstance(target, (ast.Name, ast.Tuple)) for target in node.targets):
            raise scope.fail(node, "assigns to something that isn't a name.")
    elif isinstance(node, ast.AnnAssign):
        _constant_name(scope, node)
    elif isinstance(node, ast.Compare):
        _comparison(scope, node)


def _constant_name(scope: _Function, node: ast.AnnAssign) -> None:
    is_name = isinstance(node.target, ast.Name) and node.simple and node.value is not None
    if not is_name or _meaning(scope, node.annotation) is not tl.constexpr:
        raise scope.fail(node, "annotates a name; only `name: tl.constexpr = value` means something to Triton.")


def _comparison(scope: _Function, node: ast.Compare) -> None:
    for operation, sides in zip(node.ops, pairwise([node.left, *node.comparators]), strict=True):
        if isinstance(operation, (ast.In, ast.NotIn)):
            raise scope.fail(node, "uses `in`, which Triton doesn't compile.")
        is_none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
        if isinstance(operation, (ast.Is, ast.IsNot)) and not is_none:
            raise scope.fail(node, "uses `is` for something other than None; compare with `==`.")


def _name(scope: _Function, node: ast.AST, name: str) -> None:
    if reserved(name) or not name.isidentifier():
        raise scope.fail(node, f"names `{name}`, a name that is kept for the grader.")


def _free_name(scope: _Function, node: ast.Name) -> None:
    _name(scope, node, node.id)
    bound = node.id in scope.entry["bindings"]
    if isinstance(node.ctx, ast.Store):
        if bound or node.id in OTHER_BUILTINS | BUILTINS:
            # Where the name isn't assigned yet, compiled code would find the other.
            raise scope.fail(node, f"gives `{node.id}` two meanings.")
        return
    if not isinstance(node.ctx, ast.Load):
        raise scope.fail(node, f"deletes `{node.id}`.")
    if node.id in scope.parameters or node.id in scope.own:
        return
    if bound:
        _meaning(scope, node)
    elif node.id not in BUILTINS:
        hint = (
            " Kernels decide by tl.constexpr values and dtypes, not by Python's types."
            if node.id in ("isinstance", "hasattr", "getattr", "type")
            else " A kernel can name its parameters, other @triton.jit functions, triton.language and constants."
        )
        raise scope.fail(node, f"names `{node.id}`, which isn't defined for kernels.{hint}")


def _constant(scope: _Function, node: ast.Constant) -> None:
    value = node.value
    if type(value) not in (bool, int, float, str, type(None)):
        raise scope.fail(node, f"holds a constant of type {type(value).__name__}.")
    if type(value) is int and value.bit_length() > MAX_INT_BITS:
        raise scope.fail(node, f"holds an integer of {value.bit_length()} bits.")


def _meaning(scope: _Function, node: ast.expr) -> Any:
    """What an expression is before it runs; raises CannotRebuild for an attribute that leads out of the language."""
    if isinstance(node, ast.Name):
        if node.id in scope.own or node.id in scope.parameters or node.id not in scope.entry["bindings"]:
            return _VALUE
        try:
            return static(scope.entry["bindings"][node.id])
        except CannotRebuild as problem:
            raise scope.fail(node, f"is refused. {problem}") from None
    if not isinstance(node, ast.Attribute):
        return _VALUE
    owner = _meaning(scope, node.value)
    if isinstance(owner, Namespace):
        if node.attr not in owner.members:
            raise scope.fail(node, f"reads `.{node.attr}` of a module, which didn't travel with it.")
        owner, name = owner.members[node.attr], node.attr
        try:
            return static(owner)
        except CannotRebuild as problem:
            raise scope.fail(node, f"is refused at `{name}`. {problem}") from None
    if isinstance(owner, ModuleType) or owner is tl.PropagateNan:
        try:
            return member(owner, node.attr)
        except CannotRebuild as problem:
            raise scope.fail(node, f"is refused. {problem}") from None
    allowed = VALUE_ATTRIBUTES | (GLUON_ATTRIBUTES if scope.entry["kind"] == "gluon" else frozenset())
    if node.attr not in allowed or not (owner is _VALUE or isinstance(owner, (tl.dtype, tl.constexpr))):
        raise scope.fail(node, f"reads `.{node.attr}`, which isn't an attribute of tensors, dtypes or descriptors.")
    return _VALUE


def _call(scope: _Function, node: ast.Call) -> None:
    called = node.func
    if isinstance(called, ast.Name):
        _free_name(scope, called)
        known = called.id in scope.entry["bindings"] or called.id in BUILTINS or called.id in scope.parameters
        if called.id in scope.own or not known:
            raise scope.fail(node, f"calls `{called.id}`, which isn't a function of kernels.")
    elif not isinstance(called, ast.Attribute):
        raise scope.fail(node, "calls the result of an expression.")
    meaning = _meaning(scope, called)
    if meaning is tl.constexpr:
        raise scope.fail(node, "makes a tl.constexpr; write `name: tl.constexpr = value`.")
    is_print = isinstance(called, ast.Name) and called.id == "print" and "print" not in scope.entry["bindings"]
    if is_print or meaning is tl.device_print or meaning is tl.static_print:
        scope.prints.append(node)
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg.startswith("_"):
            raise scope.fail(node, f"passes {keyword.arg or '**'} to a function.")
    for position, argument in enumerate(node.args):
        if isinstance(argument, ast.Starred) and position != len(node.args) - 1:
            raise scope.fail(node, "unpacks arguments that aren't the last.")


def _loop(scope: _Function, node: ast.For | ast.While) -> None:
    if node.orelse:
        raise scope.fail(node, "has an else at a loop.")
    if isinstance(node, ast.For):
        over = node.iter.func if isinstance(node.iter, ast.Call) else None
        is_range = isinstance(over, ast.Name) and over.id == "range" and "range" not in scope.entry["bindings"]
        if is_range and node.iter.keywords:  # type: ignore[attr-defined]
            raise scope.fail(node, "gives range() a keyword, which the compiler doesn't read; use tl.range.")
        if over is None or not (is_range or _meaning(scope, over) in (tl.range, tl.static_range) or _is_gluon(over)):
            raise scope.fail(node, "loops over something that isn't range, tl.range or tl.static_range.")
        if not isinstance(node.target, ast.Name):
            raise scope.fail(node, "has a loop whose index isn't a name.")


def _is_gluon(over: ast.expr) -> bool:
    return isinstance(over, ast.Attribute) and over.attr in ("range", "static_range", "warp_pipeline_range")


def _texts(inner: list[ast.AST]) -> set[int]:
    """Ids of f-strings that are messages."""
    found: set[int] = set()
    for node in inner:
        arguments: list[ast.expr] = []
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            arguments = list(node.args) if last in TEXTS else []
        elif isinstance(node, ast.Assert) and node.msg is not None:
            arguments = [node.msg]
        found |= {id(argument) for argument in arguments if isinstance(argument, ast.JoinedStr)}
    return found

"""Everything a Triton kernel needs to be compiled elsewhere: its source, its helpers', and the values they name.

The result is plain data: name, kind, `text` as its author wrote it, `source` as it's rebuilt, `bindings`, and the place
in the author's files. Each function keeps a namespace of its own, because two helpers from two files may mean different
things by one name. Default values and annotations are replaced by plain values, so that rebuilding a function (see
`execute.rebuild`) evaluates no expression of the submission's. The lines of `source` are those of `text`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime.jit import get_jit_fn_file_line

JSON = dict[str, Any]
IMPORTABLE = ("triton", "math")
MAX_FILE = 200
CONSTEXPR = "__constexpr"
"""What a rebuilt function's header calls `tl.constexpr`."""
LAYOUTS = "triton.experimental.gluon.language."
_LITERALS = (bool, int, float, str, type(None))


class CannotClose(Exception):
    """A kernel uses a value that can't be taken along; the message names kernel, name and kind."""


class Closure:
    """Collects functions by identity; `functions` is the plain result, referred to by position.

    Args:
        folder: of the submission; names of files are relative to it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self.functions: list[JSON] = []
        self._index: dict[int, int] = {}

    def add(self, function: Any) -> int:
        """Position of a JIT function (or `constexpr_function`), added with all that it refers to.

        Raises:
            CannotClose: it names a value of a kind that no kernel can use.
        """
        known = self._index.get(id(function))
        if known is not None:
            return known
        position = len(self.functions)
        self._index[id(function)] = position
        entry: JSON = {}
        self.functions.append(entry)  # Before the body is read: it may call itself.
        tree = ast.parse(function.src)
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        bindings: dict[str, JSON] = {}
        for name, paths in _names_used(definition).items():
            found, value = _look_up(function.fn, name)
            if found:
                bindings[name] = self._bind(function.__name__, name, value, paths)
        header = self._plain_header(function, definition, bindings)
        file, line = get_jit_fn_file_line(function)
        parameters = getattr(function, "params", ())
        entry.update(
            name=function.__name__,
            kind=_kind(function),
            noinline=bool(getattr(function, "noinline", False)),
            do_not_specialize=[p.name for p in parameters if p.do_not_specialize],
            do_not_specialize_on_alignment=[p.name for p in parameters if p.do_not_specialize_on_alignment],
            text=function.src,
            source=_with_body(header, function.src, definition.body[0]),
            bindings=bindings,
            file=self._file(file),
            line=line,
        )
        return position

    def _file(self, name: str) -> str:
        """A file's name for people: relative to the submission, or its last part."""
        path = Path(name)
        if self._folder is not None and path.is_relative_to(self._folder):
            path = path.relative_to(self._folder)
        else:
            path = Path(path.name)
        return "".join(letter if letter.isprintable() else "?" for letter in path.as_posix())[-MAX_FILE:]

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """What the block added is taken back if it raises, so that no half-read function stays."""
        before = len(self.functions)
        try:
            yield
        except BaseException:
            del self.functions[before:]
            self._index = {key: position for key, position in self._index.items() if position < before}
            raise

    def _plain_header(self, function: Any, definition: ast.FunctionDef, bindings: dict[str, JSON]) -> str:
        """The function's first line with plain defaults and annotations; `bindings` gets the defaults."""
        parameters = inspect.signature(function.fn).parameters
        constexprs = {p.name for p in getattr(function, "params", ()) if p.is_constexpr}
        typed = {p.name: p.annotation for p in getattr(function, "params", ()) if p.annotation and not p.is_constexpr}
        arguments = [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]
        definition.decorator_list, definition.returns = [], None
        for argument in arguments:
            argument.annotation = None
            if argument.arg in constexprs:
                argument.annotation = ast.Name(CONSTEXPR, ast.Load())
            elif argument.arg in typed:
                argument.annotation = ast.Constant(typed[argument.arg])

        def default(name: str) -> ast.expr:
            place = f"_default_{name}"
            bindings[place] = self._bind(function.__name__, name, parameters[name].default, set())
            return ast.Name(place, ast.Load())

        positional = arguments[: len(definition.args.posonlyargs) + len(definition.args.args)]
        with_default = positional[len(positional) - len(definition.args.defaults) :]
        definition.args.defaults = [default(argument.arg) for argument in with_default]
        definition.args.kw_defaults = [
            default(argument.arg) if old is not None else None
            for argument, old in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True)
        ]
        plain = ast.parse(f"def {definition.name}(): pass").body[0]
        assert isinstance(plain, ast.FunctionDef)
        plain.args = definition.args
        return ast.unparse(plain).splitlines()[0]

    def _bind(self, kernel: str, name: str, value: Any, paths: set[str]) -> JSON:
        """The plain form of what a kernel's `name` means; `paths` are the attributes that it reads of it, dotted."""
        encoded = self.encode(value)
        if encoded is not None:
            return encoded
        if isinstance(value, ModuleType):
            # A module of the submission's: only the attributes that the kernel reads travel.
            inner: dict[str, set[str]] = {}
            for path in sorted(paths):
                first, _, rest = path.partition(".")
                inner.setdefault(first, set()).update({rest} if rest else ())
            members = {
                first: self._bind(kernel, f"{name}.{first}", getattr(value, first), rest)
                for first, rest in inner.items()
                if hasattr(value, first)  # Compiling will tell of the others.
            }
            return {"kind": "namespace", "members": members}
        raise CannotClose(
            f"Kernel code of `{kernel}` uses `{name}`, a {type(value).__name__} of Python. A kernel can name other "
            "@triton.jit functions, triton.language and tl.constexpr values; pass the rest as arguments."
        )

    def encode(self, value: Any) -> JSON | None:
        """Plain form of a value that a kernel may name or be given at compile time; None for any other."""
        if type(value) in _LITERALS:
            return {"kind": "literal", "text": literal_of(value)}
        if isinstance(value, tl.constexpr):
            inner = self.encode(value.value)
            return None if inner is None else {"kind": "constexpr", "value": inner}
        if type(value) in (tuple, list):
            items = [self.encode(item) for item in value]
            return None if None in items else {"kind": type(value).__name__, "items": items}
        if dataclasses.is_dataclass(value) and type(value).__module__.startswith(LAYOUTS):
            # A layout of Gluon's, which is data: a class of the language and its fields.
            names = [field.name for field in dataclasses.fields(value) if field.init]
            fields = {name: self.encode(getattr(value, name)) for name in names}
            if None in fields.values():
                return None
            return {"kind": "layout", "class": _importable(type(value)), "members": fields}
        if isinstance(value, tl.dtype) and not isinstance(value, (tl.pointer_type, tl.block_type)):
            return {"kind": "dtype", "name": value.name}
        if isinstance(value, ModuleType):
            if value.__name__.split(".")[0] in IMPORTABLE:
                return {"kind": "module", "name": value.__name__}
            return None
        imported = _importable(value)
        if imported is not None:
            return imported
        if _kind(value):
            return {"kind": "function", "index": self.add(value)}
        return None


def literal_of(value: Any) -> str:
    """A number, bool, text or None as the text that `execute.rebuild.literal` reads."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    return repr(value)


def _kind(value: Any) -> str:
    names = {kind.__name__ for kind in type(value).__mro__}
    if "GluonJITFunction" in names:
        return "gluon"
    if "JITFunction" in names:
        return "jit"
    return "constexpr_function" if "ConstexprFunction" in names else ""


def _importable(value: Any) -> JSON | None:
    """How to import a public object of Triton's own (``tl.load``, ``tl.sum``)."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module.split(".")[0] not in IMPORTABLE:
        return None
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return {"kind": "import", "module": module, "name": name} if found is value else None


def _names_used(definition: ast.FunctionDef) -> dict[str, set[str]]:
    """Names that the body reads → dotted attributes read of them; parameters are left out."""
    own = {a.arg for a in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs)}
    used: dict[str, set[str]] = {}
    for name, path in _chains(definition.body):
        if name not in own:
            used.setdefault(name, set()).update({path} if path else ())
    return used


def _chains(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Each name that is read, with the attributes that follow it, dotted."""
    for node in nodes:
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id, ".".join(path)
        else:
            yield from _chains(ast.iter_child_nodes(node))


def _with_body(header: str, text: str, first: ast.stmt) -> str:
    """`text` with another header, its body on the same lines as before."""
    lines = text.splitlines(keepends=True)
    body = lines[first.lineno - 1 :]
    own_line = not lines[first.lineno - 1].encode()[: first.col_offset].strip()
    if own_line:
        return header + "\n" * (first.lineno - 1) + "".join(body)
    rest = lines[first.lineno - 1].encode()[first.col_offset :].decode()
    return header + " " + rest + "".join(body[1:])


def _look_up(function: Any, name: str) -> tuple[bool, Any]:
    """A name as the function's body means it; not found: a local, a builtin or a mistake that compiling will tell."""
    if name in function.__code__.co_varnames:
        return False, None
    if function.__closure__ and name in function.__code__.co_freevars:
        return True, function.__closure__[function.__code__.co_freevars.index(name)].cell_contents
    if name in function.__globals__:
        return True, function.__globals__[name]
    return False, None

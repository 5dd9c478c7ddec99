"""Rebuilds the functions of a `kernel_closure` in a process that never saw the submission.

Each function lives in a namespace of its own that holds nothing but what its entry binds and a few builtins. It's
rebuilt as Triton compiles it, or as the interpreter runs it. Triton reads the text that `writing` makes of the
validated tree, never the entry's own; interpreted code has the line numbers of the entry's source.
"""

from __future__ import annotations

import ast
import hashlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.runtime.interpreter import InterpretedFunction

from ..kernel_closure import CONSTEXPR
from ..tape import JSON
from .language import HELPERS as LANGUAGE_HELPERS
from .language import Rewriter
from .meaning import HELPERS, Meaning
from .validate import CannotRebuild, check, language_module, member, reserved, static
from .vocabulary import BUILTINS
from .writing import CannotWrite, Written, written

_LAYOUTS = "triton.experimental.gluon.language"
_BUILTINS = {name: getattr(__import__("builtins"), name) for name in sorted(BUILTINS)}


class Constants(list[Any]):
    """A list that kernel code refers to; `+=` makes another one, so that no call leaves something to the next."""

    def __iadd__(self, other: Any) -> list[Any]:  # type: ignore[override, misc]
        return [*self, *other]

    def __imul__(self, times: Any) -> list[Any]:  # type: ignore[override, misc]
        return list(self) * int(times)


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
        self._written: dict[int, Written] = {}
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

    def position(self, function: Any) -> int | None:
        """Where a rebuilt function stands in the closure; None for any other."""
        return next((index for index, built in self._built.items() if built is function), None)

    def place(self, function: Any, node: Any) -> str:
        """The student's file and line of a node of what Triton parsed; empty if unknown."""
        position = self.position(function)
        line = 0 if position is None else self._written[position].line(node)
        if position is None or not line:
            return ""
        entry = self._functions[position]
        return f"{entry['file']}:{entry['line'] + line - 1}"

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
            return tuple(items) if kind == "tuple" else Constants(items)
        if kind == "layout":
            return self._layout(binding)
        if kind in ("module", "import", "dtype"):
            found = static(binding)
            is_patched = found in (tl.range, tl.static_range) or getattr(found, "__triton_builtin__", False)
            return partial(_late, binding) if self._interpreted and kind == "import" and is_patched else found
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
        layout = member(language_module(named["module"]), named["name"])
        if not (isinstance(layout, type) and hasattr(layout, "__dataclass_fields__")):
            raise CannotRebuild(f"Kernel code names a layout {named['name']!r:.40}, which Gluon doesn't have.")
        fields = {name: self.value(item) for name, item in binding["members"].items()}
        try:
            return layout(**fields)
        except Exception as problem:  # noqa: BLE001 - a layout's own checks raise anything
            raise CannotRebuild(f"Kernel code makes a layout {named['name']} of wrong fields ({problem}).") from None

    def _make(self, position: int, entry: JSON, tree: ast.Module) -> Any:
        try:
            text = self._written[position] = written(tree)
        except CannotWrite as problem:
            raise CannotRebuild(f"{entry['file']}: kernel code of `{entry['name']}` is refused: {problem}.") from None
        digest = hashlib.sha256(text.text.encode()).hexdigest()[:16]
        path = self._folder / f"kernel_{position}_{digest}.py"
        if not path.exists():
            path.write_text(text.text, encoding="utf-8")
        space = self._space(position, entry)
        code = text.tree
        if self._interpreted and entry["kind"] != "constexpr_function":
            space |= LANGUAGE_HELPERS | HELPERS
            code = ast.fix_missing_locations(Rewriter().visit(Meaning(entry, space, position).visit(text.original)))
        try:
            exec(compile(code, str(path), "exec", dont_inherit=True), space)
            function = space[entry["name"]]
            function.__module__ = f"kernel_{position}"
            made = self._wrapped(function, entry)
        except CannotRebuild:
            raise
        except Exception as problem:  # noqa: BLE001 - what parses need not compile, and Triton raises anything
            raise CannotRebuild(
                f"{entry['file']}:{entry['line']}: kernel code of `{entry['name']}` isn't a kernel ({problem})."
            ) from None
        parse = getattr(made, "parse", None)
        if parse is not None and ast.dump(parse()) != ast.dump(text.tree):
            raise CannotRebuild(
                f"{entry['file']}: Triton reads other kernel code of `{entry['name']}` than was validated."
            )
        return made

    def _space(self, position: int, entry: JSON) -> dict[str, Any]:
        """The namespace of a function, without the functions that it refers to."""
        space: dict[str, Any] = {}
        for name, item in entry["bindings"].items():
            if reserved(name):
                raise CannotRebuild(f"Kernel code of `{entry['name']}` binds `{name}`, which is kept for the grader.")
            if name.startswith("_default_") or not _referred(item):
                space[name] = self.value(item)
        space |= {"__builtins__": dict(_BUILTINS), "__name__": f"kernel_{position}", CONSTEXPR: tl.constexpr}
        self._spaces[position] = space
        return space

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


def _late(binding: JSON, *args: Any, **kwargs: Any) -> Any:
    """A call of one of the language's functions, as it is where it's called: the interpreter replaces them."""
    return static(binding)(*args, **kwargs)


def literal(text: str) -> Any:
    """A number, bool, text or None as `kernel_closure` writes it.

    Raises:
        CannotRebuild: it is something else, or too long.
    """
    if text in ("float('nan')", "float('inf')", "float('-inf')"):
        return float(text[7:-2])
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
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

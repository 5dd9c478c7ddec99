"""A tape's kernels: rebuilt for the compiler and for the interpreter, described by Triton's own binder, and lowered.

The process runs without ``TRITON_INTERPRET``, so one kernel can be both compiled and interpreted in it: `interpreting`
puts twins in place of the functions of `triton.language` that are kernels themselves (`tl.sum`, `tl.cdiv`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.runtime import cache as triton_cache
from triton.runtime.driver import driver
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from ..kernel_closure import literal_of
from ..tape import JSON
from .deciding import Decisions
from .interpret import Lowered
from .lowering import CannotLower, lower_launch, source_of, strict_pointers
from .rebuild import Rebuilt
from .validate import CannotRebuild

__all__ = ["CannotLower", "CannotRebuild", "Kernels", "compiling", "interpreting"]

# Triton's own key hashes half a gigabyte of compiler in each process that compiles; no cache here outlives its worker.
triton_cache.triton_key = lambda: triton.__version__

MAX_LOWERED, MAX_KNOWN = 4096, 64
_lowered: dict[str, str | Decisions] = {}
"""Content of a launch → why it doesn't compile, or what it decides. No tape can find out what others put here."""


_known: dict[tuple[str, Path], tuple[Rebuilt, Rebuilt]] = {}
"""Content of a closure → its functions. Kernel code can't change what it's made of, so tapes may share them."""


def _rebuilt(functions: list[JSON], folder: Path, digest: str) -> tuple[Rebuilt, Rebuilt]:
    if (digest, folder) not in _known:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        both = (Rebuilt(functions, folder, interpreted=interpreted) for interpreted in (False, True))
        _known[digest, folder] = next(both), next(both)
    return _known[digest, folder]


class Kernels:
    """The functions of one tape.

    Args:
        functions: entries of its closure, of a validated tape.
        folder: where their sources go; this tape's own, or one of tapes that are all of one submission.
    """

    def __init__(self, functions: list[JSON], folder: Path) -> None:
        strict_pointers()
        self.functions = functions
        self._digest = hashlib.sha256(json.dumps(functions).encode()).hexdigest()
        self._compiled, self._interpreted = _rebuilt(functions, folder, self._digest)
        self._binders: dict[int, Any] = {}

    def compiled(self, entry: int) -> JITFunction:
        """A kernel for Triton's compiler.

        Raises:
            CannotRebuild: its code, or a helper's, isn't of the kernel language.
        """
        return self._compiled[entry]

    def interpreted(self, entry: int) -> InterpretedFunction:
        """A kernel for Triton's interpreter; run it inside `interpreting()`.

        Raises:
            CannotRebuild: as `compiled`.
        """
        return self._interpreted[entry]

    def value(self, encoded: JSON, interpreted: bool) -> Any:
        """A compile-time value from its plain form.

        Raises:
            CannotRebuild: it isn't one that kernels can have.
        """
        return (self._interpreted if interpreted else self._compiled).value(encoded)

    def describe(self, launch: JSON, args: dict[str, Any], configuration: JSON | None = None) -> JSON:
        """What Triton would compile for a launch on these arguments: types, constants, alignment, by its own binder.

        Args:
            launch: a tape's step. args: its arguments as they are now, by parameter.
            configuration: of an autotuner's candidate: its index, the count and text of candidates, and `choice`, the
                number of the choice among those of the tape.

        Raises:
            CannotRebuild: see `compiled`. CannotLower: Triton takes no such arguments.
        """
        function = self.compiled(launch["entry"])
        strange = (args.keys() | launch["constexprs"].keys()) - set(function.arg_names)
        if strange or args.keys() & launch["constexprs"].keys():
            raise CannotLower(f"{launch['where']}: {launch['kernel']} is given arguments that it doesn't take.")
        constants = {name: self.value(encoded, interpreted=False) for name, encoded in launch["constexprs"].items()}
        options = {name: value for name, value in launch["options"].items() if value is not None}
        given = {**args, **constants, "debug": False, "instrumentation_mode": "", **options}
        try:
            backend, binder = self._binder(launch["entry"], function)
            bound, specialization, _ = binder(**given)
            chosen, signature, constexprs, attributes = function._pack_args(
                backend, given, bound, specialization, options
            )
        except Exception as problem:  # noqa: BLE001 - Triton's binder and options raise anything
            raise CannotLower(f"{launch['where']}: {launch['kernel']} can't be launched so: {problem}") from None
        return {
            "kernel": function.fn.__name__,
            "phase": launch["phase"],
            "entry": launch["entry"],
            "signature": dict(signature),
            "constexprs": [[list(path), self._encoded(launch, function, path, v)] for path, v in constexprs.items()],
            "attributes": [[list(path), [list(pair) for pair in pairs]] for path, pairs in attributes.items()],
            "options": options,
            "num_warps": chosen.num_warps,
            "num_stages": chosen.num_stages,
            "grid": list(launch["grid"]),
            "configuration": configuration,
            "error": None,
            "shown_constexprs": {
                function.arg_names[path[0]]: value
                for path, value in constexprs.items()
                if len(path) == 1 and isinstance(value, (bool, int, float, str))
            },
            "where": launch["where"],
        }

    def lower(self, description: JSON) -> Decisions:
        """Check that Triton's compiler takes a launch, as far as TTIR; returns what it decides (see `deciding`).

        Raises:
            CannotLower: it doesn't; the message has its reason and the line.
        """
        key = self.identity(description)
        if key not in _lowered:
            if len(_lowered) >= MAX_LOWERED:
                _lowered.clear()
            with compiling():
                _lowered[key] = lower_launch(description, self._compiled)
        found = _lowered[key]
        if isinstance(found, str):
            raise CannotLower(found)
        return found

    def lowered(self, description: JSON) -> Lowered:
        """A launch as the interpreter is to run it.

        Raises:
            CannotLower: see `lower`. CannotRebuild: see `compiled`.
        """
        decisions = self.lower(description)
        constants = {tuple(path): self.value(value, interpreted=True) for path, value in description["constexprs"]}
        return Lowered(description["signature"], constants, decisions)

    def source(self, description: JSON) -> Any:
        """A launch as Triton's compiler takes it.

        Raises:
            CannotRebuild: see `compiled`.
        """
        return source_of(description, self._compiled)

    def place(self, filename: str, line: int) -> str:
        """Where a line of a rebuilt kernel stands in the student's files (``fa2_forward.py:57``); empty if nowhere."""
        return placed(self.functions, filename, line)

    def _binder(self, entry: int, function: JITFunction) -> tuple[Any, Any]:
        if entry not in self._binders:
            _, _, _, backend, binder = function.create_binder()
            self._binders[entry] = backend, binder
        return self._binders[entry]  # type: ignore[no-any-return]

    def _encoded(self, launch: JSON, function: JITFunction, path: tuple[int, ...], value: Any) -> JSON:
        """The plain form of a compile-time value: the tape's, or that of a number that the binder made constant."""
        name = function.arg_names[path[0]]
        if len(path) == 1 and name in launch["constexprs"]:
            return dict(launch["constexprs"][name])
        return {"kind": "literal", "text": literal_of(value)}

    def identity(self, description: JSON) -> str:
        """What a launch's lowering and code depend on, as text."""
        parts = ("entry", "signature", "constexprs", "attributes", "options")
        text = json.dumps([description[part] for part in parts], sort_keys=True, default=list)
        return f"{self._digest} {driver.active.get_current_target()} {text}"


def placed(functions: list[JSON], filename: str, line: int) -> str:
    """As `Kernels.place`, for a closure's functions."""
    _, _, rest = os.path.basename(filename).partition("kernel_")
    number = rest.partition("_")[0]
    if not number.isdecimal() or int(number) >= len(functions) or not rest.endswith(".py"):
        return ""
    entry = functions[int(number)]
    if not 1 <= line <= entry["source"].count("\n") + 1:
        return ""
    return f"{entry['file']}:{entry['line'] + line - 1}"


@cache
def _language_kernels() -> list[tuple[ModuleType, str, JITFunction, InterpretedFunction]]:
    """Every kernel that the language's modules hold, with its interpreted twin."""
    twins: dict[int, InterpretedFunction] = {}
    found = []
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[:2] == ["triton", "language"] and module is not None:
            for name, value in list(vars(module).items()):
                if isinstance(value, JITFunction):
                    twin = twins.setdefault(id(value), InterpretedFunction(value.fn))
                    found.append((module, name, value, twin))
    return found


_interpreting = False


@contextmanager
def interpreting() -> Iterator[None]:
    """`triton.language`'s own kernels are interpreted in the block."""
    global _interpreting
    if _interpreting:
        raise RuntimeError("interpreting() inside of interpreting()")
    _swap(to_twins=True)
    try:
        yield
    finally:
        _swap(to_twins=False)


@contextmanager
def compiling() -> Iterator[None]:
    """The language is as the compiler needs it in the block."""
    swapped = _interpreting
    if swapped:
        _swap(to_twins=False)
    try:
        yield
    finally:
        if swapped:
            _swap(to_twins=True)


def _swap(*, to_twins: bool) -> None:
    global _interpreting
    for module, name, function, twin in _language_kernels():
        setattr(module, name, twin if to_twins else function)
    _interpreting = to_twins

"""Finds and imports the submission's modules, and says where in its files an exception came from."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import traceback
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

MAX_TEXT = 2000
MAX_FRAMES = 6
MAX_NAMES = 20

_signature, _walk_tb = inspect.signature, traceback.walk_tb


class MissingError(Exception):
    """A file or a function that the lab asks for isn't there; the message says what is."""


class SignatureError(Exception):
    """A function can't be called the way that the lab calls it; the message shows both."""


class Submission:
    """The modules of one submission folder."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._modules: dict[str, ModuleType] = {}

    def load(self, name: str) -> ModuleType:
        """Import a module by its file, so that a library or a module of the standard library can't take its place.

        Raises:
            MissingError: the submission has no such file. Whatever importing it raises passes through.
        """
        if name in self._modules:
            return self._modules[name]
        path = os.path.join(self._folder, *name.split(".")) + ".py"
        if not os.path.isfile(path):
            found = sorted(entry for entry in os.listdir(self._folder) if entry.endswith(".py"))
            raise MissingError(
                f"{name.replace('.', '/')}.py isn't in the submission. "
                f"Python files there: {', '.join(found[:MAX_NAMES]) or 'none'}.{_did_you_mean(name + '.py', found)}"
            )
        if "." in name:
            module = import_module(name)
        elif name in sys.modules and getattr(sys.modules[name], "__file__", None) == path:
            module = sys.modules[name]
        else:
            module = self._execute(name, path)
        self._modules[name] = module
        return module

    def _execute(self, name: str, path: str) -> ModuleType:
        taken = name in sys.modules or name in sys.stdlib_module_names
        spec = spec_from_file_location(f"submission_{name}" if taken else name, path)
        if spec is None or spec.loader is None:
            raise MissingError(f"{name}.py can't be loaded as Python source.")
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            if isinstance(error, SyntaxError) and not error.filename:
                error.filename = path  # of a file that isn't text Python says only that much
            sys.modules.pop(spec.name, None)
            raise
        return module

    def function(self, module_name: str, name: str) -> Any:
        """A callable of a module, by name.

        Raises:
            MissingError: it isn't there; lists what is and suggests the nearest name.
        """
        module = self.load(module_name)
        function = getattr(module, name, None)
        if callable(function):
            return function
        own = getattr(module, "__name__", module_name)
        names = sorted(
            key
            for key, value in list(vars(module).items())
            if not key.startswith("_") and callable(value) and getattr(value, "__module__", own) == own
        )
        problem = "has no function" if function is None else "has no function, but a value, called"
        raise MissingError(
            f"{module_name}.py {problem} `{name}`. Defined there: "
            f"{', '.join(names[:MAX_NAMES]) or 'nothing'}.{_did_you_mean(name, names)}"
        )

    def bind(self, name: str, function: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Parameter name → argument, as the call would bind them; numbered names for a callable that tells none.

        Raises:
            SignatureError: the arguments don't fit.
        """
        try:
            signature = _signature(function)
        except (TypeError, ValueError):
            return {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
        try:
            return dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            shown = ", ".join(["…"] * len(args) + [f"{key}=…" for key in kwargs])
            raise SignatureError(f"`{name}{signature}` can't be called as `{name}({shown})`: {error}.") from error

    def describe(self, error: BaseException) -> dict[str, Any]:
        """An exception as plain data, told by the submission's own frames.

        Returns:
            ``type``, ``text``, ``where`` ("fa1.py:34 in f", empty if no frame is the submission's), ``frames``
            (outermost first) and ``memory``: whether memory ran out.
        """
        frames = self._frames(error)
        text = _text_of(error)
        if isinstance(error, SyntaxError) and error.filename:
            file = self._relative(error.filename) or os.path.basename(error.filename)
            where = f"{file}:{error.lineno}" if error.lineno else file
            text = str(error.msg)
        else:
            where = frames[-1] if frames else ""
        name = type(error).__name__[:200]
        memory = (
            isinstance(error, MemoryError)
            or name == "OutOfMemoryError"
            or (isinstance(error, RuntimeError) and "can't allocate memory" in text)
        )
        return {"type": name, "text": text, "where": where, "frames": frames[-MAX_FRAMES:], "memory": memory}

    def _frames(self, error: BaseException) -> list[str]:
        found = []
        for frame, line in _walk_tb(error.__traceback__):
            relative = self._relative(frame.f_code.co_filename)
            if relative:
                found.append(f"{relative}:{line} in {frame.f_code.co_name}"[:300])
        return found[-1000:]

    def _relative(self, path: str) -> str:
        """The path inside the submission; empty for any other file."""
        prefix = self._folder + os.sep
        return path[len(prefix) :] if path.startswith(prefix) else ""


def parameters(function: Any) -> list[dict[str, str | None]]:
    """Name, kind and default (as text) of each parameter.

    Raises:
        ValueError, TypeError: the callable doesn't tell.
    """
    return [
        {
            "name": item.name,
            "kind": item.kind.name.lower(),
            "default": None if item.default is item.empty else repr(item.default)[:200],
        }
        for item in _signature(function).parameters.values()
    ]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except BaseException as second:  # noqa: BLE001 - a submission's __str__ may raise anything
        return f"(its text can't be read: {type(second).__name__[:200]})"


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""

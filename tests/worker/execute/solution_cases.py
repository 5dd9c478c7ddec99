"""Run as a script: closes and rebuilds every kernel of the solutions. Prints JSON: place → what went wrong, or ''."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton.runtime.jit import JITFunction

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from grader.modules import load_module  # noqa: E402
from grader.worker.execute.kernels import CannotRebuild, Kernels  # noqa: E402
from grader.worker.kernel_closure import CannotClose, Closure  # noqa: E402
from grader.worker.tape import InvalidTape, validate_functions  # noqa: E402


def kernels(path: Path) -> Iterator[JITFunction]:
    sys.path.insert(0, str(path.parent))
    module = load_module(path, f"solution_{path.stem}")
    for value in vars(module).values():
        while not isinstance(value, JITFunction) and type(value).__module__.startswith("triton.runtime"):
            value = value.fn  # autotuned
        if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__:
            yield value
    sys.path.pop(0)
    for name, imported in list(sys.modules.items()):
        if str(getattr(imported, "__file__", "")).startswith(str(path.parent)):
            del sys.modules[name]  # Another solution has a file of that name.


def problem_of(function: Any, folder: Path) -> str:
    closure = Closure(folder)
    try:
        entry = closure.add(function)
        functions = json.loads(json.dumps(closure.functions))
        validate_functions(functions)
        with tempfile.TemporaryDirectory() as sources:
            rebuilt = Kernels(functions, Path(sources))
            compiled, twin = rebuilt.compiled(entry), rebuilt.interpreted(entry)
    except (CannotClose, InvalidTape, CannotRebuild) as problem:
        return str(problem)
    same = compiled.arg_names == function.arg_names == twin.arg_names and compiled.constexprs == function.constexprs
    return "" if same else f"other parameters: {compiled.arg_names}"


def main() -> None:
    found = {}
    for path in sorted((ROOT / "solutions").glob("*/**/*.py")):
        if "@triton.jit" in path.read_text():
            place = path.relative_to(ROOT / "solutions")
            for function in kernels(path):
                found[f"{place}:{function.fn.__name__}"] = problem_of(function, path.parent)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

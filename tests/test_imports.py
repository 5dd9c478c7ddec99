"""The rooms of the house import downhill only, and the command starts light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import grader

PACKAGE = Path(grader.__file__).resolve().parent

LEAVES = {"errors", "machine", "grading", "course", "report"}
MAY_IMPORT = {
    "errors": set(),
    "files": set(),
    "editing": {"errors", "files"},
    "modules": set(),
    "machine": {"errors"},
    "report": {"errors"},
    "grading": {"errors"},
    "course": {"errors", "report", "grading"},
    "profiles": LEAVES,
    "provenance": LEAVES,
    "canary": LEAVES,
    "starter": LEAVES | {"canary"},
    "mutants": LEAVES,
    "capstones": LEAVES,
    "pages": LEAVES | {"profiles"},
    "leaderboard": LEAVES | {"classroom", "pages"},
    "classroom": LEAVES | {"files", "editing"},
    "target": LEAVES | {"profiles", "provenance"},
    "worker": set(),
    "sandbox": LEAVES | {"profiles", "worker"},
    "kernels": LEAVES | {"modules", "profiles", "worker", "sandbox"},
    "baselines": LEAVES | {"profiles", "provenance", "sandbox"},
    "judge": LEAVES | {"files", "profiles", "worker", "sandbox", "kernels", "baselines"},
    "calibration": LEAVES | {"files", "editing", "profiles", "provenance", "target", "sandbox", "judge", "session"},
    "bench": LEAVES | {"files", "modules", "profiles", "provenance", "target", "sandbox", "baselines", "judge"},
    "session": LEAVES | {"profiles", "provenance", "target", "sandbox", "judge"},
}
"""Room → rooms that it may import. A room that isn't here stands above all of these, and no one of them sees it."""

HEAVY = ("torch", "triton", "numpy", "matplotlib", "pytest", "jinja2", "dask", "nbclient")


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(module: str, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Modules of this package that the statement names, the most exact name that is a module."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names if alias.name.split(".")[0] == "grader")
        return
    base = statement.module or ""
    if statement.level:
        package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
        above = package[: len(package) - statement.level + 1]
        base = ".".join([*above, base] if base else above)
    if base.split(".")[0] != "grader":
        return
    for alias in statement.names:
        inner = f"{base}.{alias.name}"
        yield inner if inner in MODULES else base


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(tree: ast.AST, *, at_start_only: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run; those inside functions run later, if ever."""
    for node in ast.iter_child_nodes(tree):
        if is_for_types_only(node):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (at_start_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield from statements(node, at_start_only=at_start_only)


def imports_of(module: str, *, at_start_only: bool) -> set[str]:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found = statements(tree, at_start_only=at_start_only)
    return {name for statement in found for name in imported(module, statement)}


def uphill(module: str) -> list[str]:
    """Imports of `module` that its room may not have."""
    room = room_of(module)
    if room not in MAY_IMPORT:
        return []
    allowed = MAY_IMPORT[room] | {room, ""}
    return [name for name in imports_of(module, at_start_only=False) if room_of(name) not in allowed]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_imports_downhill_only(module: str) -> None:
    assert not uphill(module), f"{module} imports {uphill(module)}: its room may import {MAY_IMPORT[room_of(module)]}"


def test_uphill_sees_a_forbidden_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "course.py").write_text("def f():\n    from grader.judge import check\n")
    monkeypatch.setitem(MODULES, "grader.course", tmp_path / "course.py")
    assert uphill("grader.course") == ["grader.judge"]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Paths that come back to where they began, one for every module that is on a cycle first seen there."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
            return
        if module in done:
            return
        for name in sorted(graph.get(module, ())):
            visit(name, [*path, module])
        done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def test_modules_import_without_a_cycle() -> None:
    graph = {module: imports_of(module, at_start_only=True) - {module, "grader"} for module in MODULES}
    # `from package import submodule` runs the package first; a package that imports its own members is no cycle.
    for module, names in graph.items():
        graph[module] = {name for name in names if not module.startswith(f"{name}.")}
    assert not cycles(graph)


def test_cycles_finds_one() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["run", "--help"]])
def test_command_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys, json\n"
        "from grader.cli.main import main\n"
        f"sys.argv = ['grade', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "grader" in loaded
    assert not [name for name in HEAVY if name in loaded]


def test_judge_loads_without_torch() -> None:
    program = "import sys, grader.session, grader.judge; print([m for m in ('torch', 'triton') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr

"""Finds a symbol's definition in Python or CUDA C++, and the calls of a name inside it. Nothing is executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from grader.judge.anatomy.symbols import definitions as cpp_definitions
from grader.judge.anatomy.symbols import without_comments

OPERATOR = "operator_call"
"""Stands for `operator()`, whose name ends in brackets of its own."""


@dataclass(frozen=True)
class Found:
    """One definition: its own name, its code in one spelling, and its syntax tree where it is Python."""

    name: str
    code: str
    tree: ast.AST | None = None


def find(path: str, text: str, symbol: str) -> list[Found]:
    """Every definition of `Class.method`, `Class::method` or a bare name in the file."""
    owner, _, name = symbol.replace("::", ".").rpartition(".")
    if path.endswith(".py"):
        return list(_python(text, owner, name))
    return list(_cpp(text, owner, name))


def calls_of(found: Found, name: str) -> list[str]:
    """The text of every call of a function whose last name is `name`; `partial(f, …)` counts as one of `f`."""
    if found.tree is None:
        pattern = rf"\b{re.escape(name)}\b"
        return [_statement(found.code, match.start()) for match in re.finditer(pattern, found.code)]
    calls = [node for node in ast.walk(found.tree) if isinstance(node, ast.Call)]
    return [ast.unparse(node) for node in calls if name in _called(node)]


def _called(node: ast.Call) -> set[str]:
    names = {_last(node.func)}
    if "partial" in names and node.args:
        bound = node.args[0]
        # `partial(self.a if condition else self.b, …)` binds either.
        either = [bound.body, bound.orelse] if isinstance(bound, ast.IfExp) else [bound]
        names |= {_last(item) for item in either}
    return names


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _python(text: str, owner: str, name: str) -> Iterator[Found]:
    owner = owner.rpartition(".")[2]

    def walk(node: ast.AST, inside: str) -> Iterator[Found]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            if isinstance(child, ast.FunctionDef) and child.name == name and owner in ("", inside):
                yield Found(name, ast.unparse(child), child)
            yield from walk(child, child.name if named else inside)  # type: ignore[attr-defined]

    yield from walk(ast.parse(text), "")


# CUDA C++


def _cpp(text: str, owner: str, name: str) -> Iterator[Found]:
    code = without_comments(text, strings=False)
    if owner and not re.search(rf"\b(?:struct|class)\s+{re.escape(owner.rpartition('.')[2])}\b", code):
        return
    # A lambda's definition reads as a function's once its capture is gone.
    code = re.sub(r"\boperator\s*\(\s*\)", OPERATOR, code)
    code = re.sub(r"\bauto\s+(\w+)\s*=\s*\[[^\]\n]*\]", r"\1", code)
    wanted = OPERATOR if name.replace(" ", "") == "operator()" else name
    if re.fullmatch(r"\w+", wanted):
        for definition in cpp_definitions("kernel.cu", code, wanted):
            yield Found(wanted, re.sub(r"\s+", " ", definition.body))


def _statement(code: str, place: int) -> str:
    """The text between the statement ends around a place."""
    begin = max(code.rfind(mark, 0, place) for mark in ";{}")
    ends = [end for mark in ";{}" if (end := code.find(mark, place)) >= 0]
    return code[begin + 1 : min(ends, default=len(code))].strip()

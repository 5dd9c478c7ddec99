"""Finds where a name is defined in a source file, and which names its body uses: Python by its syntax tree, CUDA C++ by
matching brackets in text without comments. Nothing is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["function", "autograd", "custom-op", "binding", "cpp-function", "kernel"]

_COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_CLOSING = {"(": ")", "{": "}", "<": ">"}
CUSTOM_OP_DECORATOR = "_torch_custom_op_wrapper"


@dataclass(frozen=True)
class Definition:
    """One place where a name is defined.

    Attributes:
        kind: `autograd` is a class deriving from torch.autograd.Function (its forward is the body), `custom-op` a
            Python function registered as an operator, `binding` a pybind11 `m.def`, `kernel` a `__global__` function.
        body: text of what it does; in C++ without comments and what stands in strings.
        uses: identifiers that the body names; in Python, module-level aliases stand with what they stand for.
    """

    name: str
    kind: Kind
    body: str
    uses: frozenset[str]


def definitions(path: str, text: str, name: str) -> list[Definition]:
    """Every definition of `name` in the file, in order; none for a name that is only declared or called there."""
    if path.endswith(".py"):
        return list(_python(text, name))
    return list(_cpp(text, name))


# Python


def _python(text: str, name: str) -> Iterator[Definition]:
    module = ast.parse(text)
    aliases = _aliases(module)
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            decorators = {found for item in node.decorator_list for found in _names(item)}
            kind: Kind = "custom-op" if CUSTOM_OP_DECORATOR in decorators else "function"
            yield _python_definition(text, name, kind, node, aliases)
        elif isinstance(node, ast.ClassDef) and node.name == name:
            bases = {ast.unparse(base) for base in node.bases}
            forward = next((x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "forward"), None)
            if "torch.autograd.Function" in bases and forward is not None:
                yield _python_definition(text, name, "autograd", forward, aliases)


def _python_definition(
    text: str, name: str, kind: Kind, node: ast.FunctionDef, aliases: dict[str, set[str]]
) -> Definition:
    used = {found for statement in node.body for found in _names(statement)}
    for alias in used & set(aliases):
        used = used | aliases[alias]
    return Definition(name, kind, ast.get_source_segment(text, node) or "", frozenset(used))


def _aliases(module: ast.Module) -> dict[str, set[str]]:
    """Module-level names that stand for another: `_wrapped = torch.ops.flash_attn._forward`, also inside an `if`."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, set()).update(list(_names(node.value))[:1])
    return found


def _names(node: ast.AST) -> Iterator[str]:
    """Identifiers in the expression or statement; of a dotted name the last part comes first."""
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute):
            yield item.attr
        elif isinstance(item, ast.Name):
            yield item.id


# CUDA C++


def without_comments(text: str, *, strings: bool) -> str:
    """The text with comments, and unless `strings` what stands in strings, as blanks; every place keeps its number."""

    def blank(found: re.Match[str]) -> str:
        if not found[0].startswith('"'):
            return re.sub(r"[^\n]", " ", found[0])
        return found[0] if strings else f'"{" " * (len(found[0]) - 2)}"'

    return _COMMENT_OR_STRING.sub(blank, text)


def _cpp(text: str, name: str) -> Iterator[Definition]:
    code = without_comments(text, strings=False)
    escaped = re.escape(name)
    for found in re.finditer(rf'\bm\.def\(\s*"{escaped}"\s*,', without_comments(text, strings=True)):
        yield _cpp_definition(name, "binding", code[found.end() : _match(code, code.index("(", found.start()))])
    for found in re.finditer(rf"\bDEFINE_\w*KERNEL\(\s*{escaped}\b", code):
        end = _match(code, code.index("(", found.start()))
        yield from _braced(code, end, name, "kernel")
    for found in re.finditer(rf"\b{escaped}\b", code):
        place = _skip(code, found.end())
        if code[place : place + 1] == "<":  # arguments of an explicit specialisation
            place = _skip(code, _match(code, place))
        if code[place : place + 1] == "(":
            head = code[: found.start()]
            kernel = "__global__" in head[max(head.rfind(";"), head.rfind("}"), 0) :]
            yield from _braced(code, _match(code, place), name, "kernel" if kernel else "cpp-function")


def _braced(code: str, place: int, name: str, kind: Kind) -> Iterator[Definition]:
    """The definition whose body opens at the next character that isn't blank; none when something else is there."""
    place = _skip(code, place)
    if code[place : place + 1] == "{":
        yield _cpp_definition(name, kind, code[place : _match(code, place)])


def _cpp_definition(name: str, kind: Kind, body: str) -> Definition:
    return Definition(name, kind, body, frozenset(_IDENTIFIER.findall(body)))


def _skip(code: str, place: int) -> int:
    while place < len(code) and code[place].isspace():
        place += 1
    return place


def _match(code: str, place: int) -> int:
    """The place after the bracket that closes the one at `place`; the end of the text when none does.

    Angle brackets are matched only in template arguments, where flash-attn has no comparison.
    """
    opening, closing = code[place], _CLOSING[code[place]]
    depth = 0
    for at in range(place, len(code)):
        if code[at] == opening:
            depth += 1
        elif code[at] == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        elif opening == "<" and code[at] in ";{}":
            return place  # a comparison, no template arguments
    return len(code)

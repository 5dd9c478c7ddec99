"""Writes a kernel's validated tree out again, as the only text that Triton reads, and keeps the student's lines.

Nothing of an untrusted text is compiled: comments, docstrings, cookies and spacing are gone, and what parses from the
written text is compared with the tree that was validated.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

Position = tuple[int, int]


class CannotWrite(Exception):
    """A tree that no text stands for."""


@dataclass(frozen=True)
class Written:
    """A function's text as Triton finds it.

    Attributes:
        text: begins with `def name(`. tree: what `text` parses to. original: the same tree with the student's lines.
        lines: line and column in `text` → the line in the entry's source.
    """

    text: str
    tree: ast.Module
    original: ast.Module
    lines: dict[Position, int]

    def line(self, node: Any) -> int:
        """The source's line of a node of `text`, or of a line of it; 0 if unknown."""
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        return self.lines.get((line, column)) or self.lines.get((line, -1), 0)


class _Plain(ast.NodeTransformer):
    """Leaves out what only people read: docstrings, other statements that are constants, ends of lines in messages."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        self.generic_visit(node)
        return ast.copy_location(ast.Pass(), node) if isinstance(node.value, ast.Constant) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.JoinedStr:
        self.generic_visit(node)
        for part in node.values:
            if isinstance(part, ast.Constant) and type(part.value) is str:
                part.value = " ".join(part.value.splitlines()) if "\n" in part.value else part.value
        return node


def written(tree: ast.Module) -> Written:
    """The text of a validated function.

    Raises:
        CannotWrite: what the text parses to is something else.
    """
    original: ast.Module = _Plain().visit(tree)
    try:
        text = f"{ast.unparse(original)}\n"
        text.encode()
        again = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise CannotWrite(f"it can't be written out ({problem})") from None
    if not text.startswith("def ") or ast.dump(again) != ast.dump(original):
        raise CannotWrite("it reads otherwise once it's written out")
    lines: dict[Position, int] = {}
    for old, new in zip(ast.walk(original), ast.walk(again), strict=True):
        if hasattr(new, "lineno"):
            lines.setdefault((new.lineno, new.col_offset), old.lineno)  # type: ignore[attr-defined]
            lines.setdefault((new.lineno, -1), old.lineno)  # type: ignore[attr-defined]
            old.written = new  # type: ignore[attr-defined]
    return Written(text, again, original, lines)

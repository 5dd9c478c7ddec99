"""Where a loop's index is read after the loop: compiled code finds any value there, interpreted code the last."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def read_after_loop(definition: ast.FunctionDef) -> ast.Name | None:
    """The first such name; one that is assigned anew beside the loop, after it, is another."""
    loops = [node for node in ast.walk(definition) if isinstance(node, (ast.For, ast.While))]
    within = {id(loop): set(map(id, _inside(loop.body))) for loop in loops}
    for body in _bodies(definition):
        for position, loop in enumerate(body):
            if not isinstance(loop, ast.For) or not _target(loop):
                continue
            name, after = _target(loop), body[position + 1 :]
            anew = next((i for i, item in enumerate(after) if _assigns(item, name)), None)
            if anew is not None:
                reached = _inside([*after[:anew], *ast.iter_child_nodes(after[anew])])
            else:
                around = [node for outer in loops if id(loop) in within[id(outer)] for node in ast.walk(outer)]
                reached = around + [node for node in ast.walk(definition) if _start(node) >= _end(loop)]
            own = {inner for other in loops if _target(other) == name for inner in within[id(other)]}
            for node in reached:
                read = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
                if read and id(node) not in own:
                    assert isinstance(node, ast.Name)
                    return node
    return None


def _inside(body: Iterable[ast.AST]) -> list[ast.AST]:
    return [node for statement in body for node in ast.walk(statement)]


def _bodies(definition: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(definition):
        yield from (getattr(node, part) for part in ("body", "orelse") if isinstance(getattr(node, part, None), list))


def _assigns(statement: ast.stmt, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _target(loop: ast.AST) -> str:
    return str(getattr(getattr(loop, "target", None), "id", ""))


def _start(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _end(loop: ast.For) -> tuple[int, int]:
    return loop.end_lineno or 0, loop.end_col_offset or 0

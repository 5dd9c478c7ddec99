"""Takes out of TOML files what says how hidden checks judge (thresholds, limits, remarks), and who has more time."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

from grader.course import Lab
from grader.errors import CourseError

Keep = Callable[[tuple[str, ...]], bool]
"""Whether a key, told by its path from the top, may be handed out."""

SHOWN_OF_HIDDEN = frozenset({"title", "kind", "points", "hidden", "requires"})
"""What a scorecard needs of a check that isn't there."""


def lab_keys(lab: Lab) -> Keep:
    """For `lab.toml`: of a hidden check, what the scorecard shows."""

    def keep(path: tuple[str, ...]) -> bool:
        hidden = len(path) > 2 and path[0] == "checks" and path[1] in lab.checks and lab.checks[path[1]].hidden
        return not hidden or path[2] in SHOWN_OF_HIDDEN

    return keep


def profile_keys(labs: list[Lab]) -> Keep:
    """For a hardware profile: no thresholds of hidden checks."""
    hidden = {(lab.id, check_id) for lab in labs for check_id, spec in lab.checks.items() if spec.hidden}

    def keep(path: tuple[str, ...]) -> bool:
        return not (len(path) > 2 and path[0] == "thresholds" and path[1:3] in hidden)

    return keep


def course_keys(path: tuple[str, ...]) -> bool:
    """For `course.toml`: nothing about single students."""
    return path[:2] != ("grading", "extensions")


def redact(text: str, keep: Keep, name: str) -> str:
    """`text` without comments and without the keys that `keep` refuses; other lines stay as they are.

    Raises:
        CourseError: the file is written in a way that can't be told apart line by line; names it.
    """
    kept: list[str] = []
    section: tuple[str, ...] = ()
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        try:
            table = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue  # A value that goes on in the next line.
        statement, pending = pending, ""
        if statement.lstrip().startswith("["):
            section = _path(table)
            if keep(section):
                kept.append(statement)
        elif table:
            if keep((*section, *_path(table))):
                kept.append(statement)
        elif not statement.strip() and kept and kept[-1].strip():
            kept.append(statement)
    redacted = "".join(kept).rstrip("\n") + "\n"
    try:
        same = not pending and _pruned(tomllib.loads(redacted)) == _pruned(_filtered(tomllib.loads(text), keep, ()))
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise CourseError(
            f"{name}: what students must not see can't be taken out of it.",
            hint="Write one key a line, each under the header of its own table.",
        )
    return redacted


def _path(table: dict[str, Any]) -> tuple[str, ...]:
    """The one path of keys that a header or an assignment names; a value's own keys aren't part of it."""
    path: list[str] = []
    node: Any = table
    while isinstance(node, dict) and len(node) == 1:
        key, node = next(iter(node.items()))
        path.append(key)
    return tuple(path)


def _filtered(table: dict[str, Any], keep: Keep, above: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for key, value in table.items():
        path = (*above, key)
        if keep(path):
            found[key] = _filtered(value, keep, path) if isinstance(value, dict) else value
    return found


def _pruned(table: dict[str, Any]) -> dict[str, Any]:
    """Without tables that hold nothing: a header may stay where all its keys went."""
    pruned = {key: _pruned(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in pruned.items() if value != {}}

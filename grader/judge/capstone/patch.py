"""Reads patch.diff and applies it, in memory, strictly: no fuzz, no path that leaves the tree, text only.

What a unified diff is: https://www.gnu.org/software/diffutils/manual/html_node/Detailed-Unified.html, and git's
extended headers (git-diff, "Generating patch text with -p"). Lines outside of hunks that belong to neither, as a mail's
text, are skipped, as `git apply` does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

FILE = "patch.diff"
MAX_BYTES = 1 << 20
MAX_FILES = 20
_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+(\d{1,7})(?:,(\d{1,7}))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
_REFUSED = (
    ("GIT binary patch", "a binary patch"),
    ("Binary files ", "a binary patch"),
    ("rename ", "a rename"),
    ("copy ", "a copy"),
    ("old mode ", "a change of a file's mode"),
    ("new file mode 120000", "a symbolic link"),
    ("new file mode 160000", "a submodule"),
    ("deleted file mode ", "the removal of a file"),
)


class PatchError(ValueError):
    """The patch can't be read or applied; the text is for its author."""


@dataclass
class Hunk:
    """`old` lines from `start` (1 is the first) become `new`; each line ends as it does in the file."""

    start: int
    line: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass
class FilePatch:
    """What happens to one file; `adds` says that it isn't there before."""

    path: str
    adds: bool
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def changed_lines(self) -> int:
        """Lines added and removed."""
        return sum(_differing(hunk) for hunk in self.hunks)


def _differing(hunk: Hunk) -> int:
    kept = 0
    for old, new in zip(hunk.old, hunk.new, strict=False):
        if old != new:
            break
        kept += 1
    tail = 0
    for old, new in zip(reversed(hunk.old[kept:]), reversed(hunk.new[kept:]), strict=False):
        if old != new:
            break
        tail += 1
    return len(hunk.old) + len(hunk.new) - 2 * (kept + tail)


def parse(raw: bytes) -> list[FilePatch]:
    """The patch's files, in order.

    Raises:
        PatchError: it isn't a text patch that stays inside of the tree; names the line.
    """
    if len(raw) > MAX_BYTES:
        raise PatchError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        lines = _lines(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise PatchError("it isn't text in UTF-8") from None
    files: list[FilePatch] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        bare = line.rstrip("\r\n")
        for start, what in _REFUSED:
            if bare.startswith(start):
                raise PatchError(f"line {number + 1} is {what}, expected changes of text only")
        if line.startswith("--- ") and number + 1 < len(lines) and lines[number + 1].startswith("+++ "):
            files.append(_header(lines, number))
            number += 2
        elif line.startswith("@@"):
            if not files:
                raise PatchError(f"line {number + 1}: a hunk before any file is named")
            number = _hunk(lines, number, files[-1])
        else:
            number += 1
    if not files or not all(file.hunks for file in files):
        raise PatchError("it changes nothing" if not files else f"{files[-1].path}: the file has no hunk")
    if len(files) > MAX_FILES:
        raise PatchError(f"it changes {len(files)} files")
    names = [file.path for file in files]
    if len(set(names)) < len(names):
        raise PatchError(f"{next(name for name in names if names.count(name) > 1)} is patched twice")
    return files


def _lines(text: str) -> list[str]:
    """The text's lines, each with its end. Only a newline ends one: a form feed or U+2028 may stand within a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])


def _header(lines: list[str], number: int) -> FilePatch:
    old, new = (line[4:].split("\t")[0].rstrip("\r\n ") for line in lines[number : number + 2])
    if new == "/dev/null":
        raise PatchError(f"line {number + 2} removes a file, expected changes of text only")
    path = _inside(new, number + 2)
    if old != "/dev/null" and _inside(old, number + 1) != path:
        raise PatchError(f"line {number + 1}: the file is {old[:80]!r} before and {new[:80]!r} after")
    return FilePatch(path, old == "/dev/null")


def _inside(name: str, line: int) -> str:
    """The path without its a/ or b/."""
    path = name[2:] if name.startswith(("a/", "b/")) else name
    parts = PurePosixPath(path).parts
    strange = not re.fullmatch(r"[A-Za-z0-9_.+\-/ ]{1,200}", path)
    if not parts or path.startswith("/") or ".." in parts or strange:
        raise PatchError(f"line {line}: {name[:80]!r} leaves the tree or is no plain path")
    return str(PurePosixPath(path))


def _hunk(lines: list[str], number: int, file: FilePatch) -> int:
    """Read one hunk; the number of the line behind it."""
    found = _HUNK.match(lines[number])
    if not found:
        raise PatchError(f"line {number + 1}: {lines[number].strip()[:60]!r} is no hunk's head (@@ -a,b +c,d @@)")
    want_old, want_new = (int(found[place] if found[place] is not None else 1) for place in (2, 4))
    hunk = Hunk(int(found[1]), number + 1)
    at = number + 1
    while len(hunk.old) < want_old or len(hunk.new) < want_new:
        line = lines[at] if at < len(lines) else ""
        # Editors strip the space of an empty context line.
        mark, body = (line[0], line[1:]) if line.rstrip("\r\n") else (" ", line)
        if not line or mark not in " +-":
            raise PatchError(f"line {at + 1}: the hunk of line {number + 1} ends early; its head promises more lines")
        if mark in " -":
            hunk.old.append(body)
        if mark in " +":
            hunk.new.append(body)
        at += 1
        if at < len(lines) and lines[at].startswith(_NO_NEWLINE):
            for side in [hunk.old] if mark == "-" else [hunk.new] if mark == "+" else [hunk.old, hunk.new]:
                side[-1] = side[-1].rstrip("\r\n")
            at += 1
    if len(hunk.old) > want_old or len(hunk.new) > want_new:
        raise PatchError(f"line {number + 1}: the hunk has other counts of lines than its head says")
    file.hunks.append(hunk)
    return at


def apply(files: list[FilePatch], tree: Mapping[str, str]) -> dict[str, str]:
    """Path → new text of every file that the patch names.

    Args:
        tree: path → text of the tree that it's made for; empty where it only adds files.

    Raises:
        PatchError: a file isn't there, or already is, or a hunk's lines aren't those of the file.
    """
    result = {}
    for file in files:
        if file.adds:
            if file.path in tree:
                raise PatchError(f"{file.path} is in the tree already, and the patch adds it")
            if len(file.hunks) != 1 or file.hunks[0].old:
                raise PatchError(f"{file.path}: a new file has one hunk, without old lines")
            result[file.path] = "".join(file.hunks[0].new)
        elif file.path not in tree:
            raise PatchError(f"{file.path} isn't in the tree that the patch is for")
        else:
            result[file.path] = _patched(file, tree[file.path])
    return result


def _patched(file: FilePatch, text: str) -> str:
    lines = _lines(text)
    out: list[str] = []
    position = 0
    for hunk in file.hunks:
        first = hunk.start - 1 if hunk.old else hunk.start
        if first < position or lines[first : first + len(hunk.old)] != hunk.old:
            raise PatchError(
                f"{file.path}: the hunk of line {hunk.line} doesn't apply: lines {hunk.start} to "
                f"{hunk.start + len(hunk.old) - 1} of the file aren't those that it changes"
            )
        out += lines[position:first] + hunk.new
        position = first + len(hunk.old)
    return "".join(out + lines[position:])


def changes_something(path: str, before: str, after: str) -> bool:
    """Whether more than white space, comments and docstrings differs."""
    return not _alike(path, before, after, _without_docstrings)


def same_code(path: str, one: str, other: str) -> bool:
    """Whether two texts are the same but for white space and comments. Docstrings count: code can read them."""
    return _alike(path, one, other, ast.parse)


def _alike(path: str, one: str, other: str, parse: Callable[[str], ast.AST]) -> bool:
    """By Python's tree where both texts have one; else by the characters that count."""
    if path.endswith(".py"):
        try:
            return ast.dump(parse(one)) == ast.dump(parse(other))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return _bare(path, one) == _bare(path, other)


def _without_docstrings(text: str) -> ast.Module:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                node.body = node.body[1:]
    return tree


def _bare(path: str, text: str) -> str:
    if path.endswith((".c", ".h", ".cu", ".cuh", ".cpp", ".hpp")):
        # A comment that never ends reaches to the end: were it none, each /* would be looked for an end of its own.
        text = re.sub(r"//[^\n]*|/\*.*?(?:\*/|\Z)", " ", text, flags=re.DOTALL)
    else:
        text = re.sub(r"(?m)^\s*#.*$", " ", text)
    return "".join(text.split())

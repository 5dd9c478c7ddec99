"""Reads lab03's NOTES.md: the pseudocode says how often each tensor moves, and the closed form must say the same.

The pseudocode is counted, not searched for words: a tensor moves once for every turn of a loop around it whose index it
doesn't carry.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from grader.judge.tiles.forms import FA1, FA2, FUNCTIONS, STANDARD
from grader.report.model import Diagnosis

MAX_BYTES = 1 << 16
KEYS, ROWS = "keys", "rows"
_LOOP = re.compile(r"^for\s+([a-z])\s+in\s+.*?\b(Q|K|V|O|S|P|rows?)\b", re.IGNORECASE)
_MOVE = re.compile(r"^(load|store)\s+(.*)$", re.IGNORECASE)
_BLOCK = re.compile(r"\b(Q|K|V|O|S|P|LSE|l|m)_\{?([a-z]{1,2})\}?(?![A-Za-z_])")
_FENCE = re.compile(r"^ {0,3}```")
_FORM = re.compile(r"closed form\W*?[:=]\s*(.+)$", re.IGNORECASE)

Repeats = dict[tuple[str, str], tuple[str, ...]]
"""(direction, tensor) → what the loops go over that move it again and again; empty for once."""

WANTED: dict[str, Repeats] = {
    STANDARD: {
        ("load", "K"): (), ("load", "Q"): (KEYS,), ("store", "S"): (), ("load", "S"): (), ("store", "P"): (),
        ("load", "P"): (), ("load", "V"): (ROWS,), ("store", "O"): (),
    },
    FA1: {
        ("load", "K"): (), ("load", "V"): (), **{("load", name): (KEYS,) for name in ("Q", "O", "l", "m")},
        **{("store", name): (KEYS,) for name in ("O", "l", "m")},
    },
    FA2: {
        ("load", "Q"): (), ("load", "K"): (ROWS,), ("load", "V"): (ROWS,), ("store", "O"): (), ("store", "LSE"): (),
    },
}  # fmt: skip

FORMS: dict[str, Callable[[dict[str, Fraction]], Fraction]] = {
    STANDARD: lambda x: 4 * x["N"] ** 2 + 2 * x["N"] * x["d"] + 2 * x["Tc"] * x["N"] * x["d"],
    FA1: lambda x: 2 * x["N"] * x["d"] + x["Tc"] * (3 * x["N"] * x["d"] + 4 * x["N"]),
    FA2: lambda x: 2 * x["N"] * x["d"] + x["N"] + x["Tr"] * 2 * x["N"] * x["d"],
}
POINTS = ({"N": 90, "d": 7, "Tc": 5, "Tr": 11}, {"N": 64, "d": 13, "Tc": 2, "Tr": 3})

TEXTS = {
    "notes-incomplete": "A section, its pseudocode, its closed form or its text is missing.",
    "notes-moves-wrong": "The pseudocode moves a tensor more or less often than the algorithm does.",
    "notes-form-wrong": "The closed form isn't the one that the pseudocode counts up to.",
}


class NotesError(ValueError):
    """What is wrong with the notes, for the student; `diagnosis` names the kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.diagnosis = Diagnosis(id=kind, text=TEXTS[kind])


@dataclass(frozen=True)
class Section:
    """One section: `code` are the lines inside of fences, `prose` all others."""

    code: list[str]
    prose: list[str]


def judge_notes(raw: bytes, *, min_words: int) -> None:
    """Hold NOTES.md to its content rules.

    Raises:
        NotesError: the first rule that it breaks.
    """
    if len(raw) > MAX_BYTES:
        raise NotesError("notes-incomplete", f"NOTES.md is larger than {MAX_BYTES} bytes")
    sections = _sections(raw.decode("utf-8", errors="replace"))
    for function in FUNCTIONS:
        section = _find(sections, function)
        _require_text(section, function, min_words)
        found = repeats(section.code, function)
        _compare(found, function)
        _judge_form(section, function)
    paper = _find(sections, "paper")
    _require_text(paper, "the paper's setting", min_words)
    numbers = set(re.findall(r"\d+\.\d+", " ".join(paper.prose)))
    for one_of in (("1.53", "1.527"), ("2.57", "2.58", "2.575"), ("4.10", "4.1", "4.102"), ("4.4",)):
        if not numbers & set(one_of):
            raise NotesError("notes-incomplete", f"the paper's setting doesn't mention {one_of[0]} (GB)")


def _sections(text: str) -> dict[str, Section]:
    """Sections by heading, lower case. A heading inside a fence is none."""
    sections: dict[str, Section] = {}
    current, fenced = Section([], []), False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.startswith("#"):
            current = sections.setdefault(line.strip("# ").lower(), Section([], []))
        elif not line.lstrip().startswith("<!--"):
            (current.code if fenced else current.prose).append(line)
    return sections


def _find(sections: dict[str, Section], word: str) -> Section:
    for heading, section in sections.items():
        if word in heading:
            return section
    raise NotesError("notes-incomplete", f"NOTES.md has no section whose heading names {word}")


def _require_text(section: Section, what: str, min_words: int) -> None:
    words = len(set(re.findall(r"[A-Za-z]{3,}", " ".join(section.prose).lower())))
    if words < min_words:
        message = f"{what}: the section has {words} different words of text beside its pseudocode, expected {min_words}"
        raise NotesError("notes-incomplete", message)


def repeats(code: list[str], what: str) -> Repeats:
    """How often the pseudocode moves each tensor.

    Raises:
        NotesError: no loop or no load is there, or an index is used outside of its loop.
    """
    open_loops: list[tuple[int, str, str]] = []
    found: Repeats = {}
    for line in code:
        text = line.strip()
        if not text:
            continue
        depth = len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip())
        open_loops = [loop for loop in open_loops if loop[0] < depth]
        if loop := _LOOP.match(text):
            over = KEYS if loop[2].upper() in ("K", "V") else ROWS
            open_loops.append((depth, loop[1], over))
        elif move := _MOVE.match(text):
            for name, index in _BLOCK.findall(move[2]):
                if not set(index) <= {loop[1] for loop in open_loops}:
                    raise NotesError(
                        "notes-moves-wrong", f"{what}: {name}_{index} is used outside of a loop over {index}"
                    )
                outside = tuple(over for _, letter, over in open_loops if letter not in index)
                found[move[1].lower(), name] = outside
    if not found:
        hint = "`for j in K blocks:`, `load K_j, V_j`, `store O_i`, nested by indentation"
        raise NotesError("notes-incomplete", f"{what}: no pseudocode was found; its lines read {hint}")
    return found


def _compare(found: Repeats, function: str) -> None:
    wanted = WANTED[function]
    for way, name in sorted({*wanted, *found}):
        if (way, name) not in found:
            raise NotesError("notes-moves-wrong", f"{function}: the pseudocode never {way}s {name}")
        if (way, name) not in wanted:
            raise NotesError("notes-moves-wrong", f"{function}: the algorithm doesn't {way} {name}")
        if found[way, name] != wanted[way, name]:
            times = {(): "once", (KEYS,): "once a block of keys", (ROWS,): "once a block of rows"}
            said = times.get(found[way, name], "more often")
            raise NotesError("notes-moves-wrong", f"{function}: by the pseudocode all of {name} is {way}ed {said}")


def _judge_form(section: Section, function: str) -> None:
    lines = [match[1] for line in (*section.prose, *section.code) if (match := _FORM.search(line))]
    if not lines:
        hint = "a line `closed form: ...` in elements, in Python's notation, of N, d, Tc and Tr"
        raise NotesError("notes-incomplete", f"{function}: no closed form was found; write {hint}")
    for point in POINTS:
        values = {name: Fraction(value) for name, value in point.items()}
        try:
            value = evaluate(lines[0].strip().strip("`$ .").split("`")[0], values)
        except (SyntaxError, ValueError, ZeroDivisionError) as error:
            message = f"{function}: the closed form can't be read; use N, d, Tc, Tr, numbers, + - * / and brackets"
            raise NotesError("notes-form-wrong", message) from error
        if value != FORMS[function](values):
            raise NotesError("notes-form-wrong", f"{function}: the closed form is not that of the algorithm")


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(text: str, values: dict[str, Fraction]) -> Fraction:
    """The value of an arithmetic expression, exactly. Nothing but names, whole numbers, + - * / and N**2 is read.

    Raises:
        ValueError, SyntaxError, ZeroDivisionError: it isn't one.
    """
    if len(text) > 200:
        raise ValueError("too long")
    return _value(ast.parse(text.replace("^", "**"), mode="eval").body, values)


def _value(node: ast.expr, values: dict[str, Fraction]) -> Fraction:
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        if not isinstance(node.right, ast.Constant) or node.right.value != 2:
            raise ValueError("only squares are read")
        return _value(node.left, values) ** 2
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    raise ValueError(f"{type(node).__name__} is not read")

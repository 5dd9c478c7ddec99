"""A capstone's README.md: its sections, and whether its tables say what benchmark.csv says.

Seven headings of level two, in this order, each with six different words or more below it (tables and code blocks don't
count), and none of the template's text, nor TODO, TBD or FIXME; what each must hold:

What
    the change in one or two sentences, and for which shapes it is.
Why
    the bottleneck: the workload that has it and the evidence (a figure, a profile, a count) that it's one.
How
    the idea and where it is: every file that patch.diff touches, by name.
Correctness
    what is compared with what, to which tolerance; names correctness_report.json.
Performance
    a table of benchmark.csv's figures with at least three lines, the hardware, and how it was timed.
Limitations
    what isn't covered, and every shape at which `after` is slower beyond the spread (an audit: every one out of
    tolerance): its name, and next to it, in the same paragraph or item, what it costs, in two digits or more as the
    table has it: the speed-up, its inverse, what is lost in per cent, a median; of an audit `max`, or max over
    tolerance.
What I would do next
    the next step, and what would make it worth while.

A table under Performance has a column `shape`; its other columns are named as benchmark.csv's are (of the `after` row),
with `before` or `after` in front (``before median_ms``), or ``speedup``. A cell may have a unit or a trailing ``x``
behind its number and must be the table's figure, to the digits shown. At least one column is measured: shapes and
versions alone are no figures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

FILE = "README.md"
MAX_BYTES = 512 << 10
HEADINGS = ("What", "Why", "How", "Correctness", "Performance", "Limitations", "What I would do next")
PLACEHOLDERS = re.compile(r"\b(TODO|TBD|FIXME|lorem ipsum)\b|\.\.\. ?fill", re.IGNORECASE)
TOLD = 4
"""Faults of one kind that a message tells."""
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FENCE = re.compile(r"(?ms)^(```|~~~).*?(?:^\1\s*$|\Z)")
NUMBER = re.compile(
    r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,4})?(?![\s.,]*(?:[eE][-+]?)?[0-9])"
)
"""A number with commas between thousands or none; more digits behind it, as in `1.5 000` or `1,5`, make it none."""


class ReadmeError(ValueError):
    """README.md isn't as it must be.

    Attributes:
        kind: ``section-missing``, ``section-empty``, ``template-text``, ``table-missing``, ``not-the-csv``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Cell:
    """A figure in a table: the line of its table, column as in the heading, text, and the shape that it's of."""

    shape: str
    column: str
    text: str


def text_of(raw: bytes) -> str:
    """The file's text, without comments.

    Raises:
        ReadmeError: it's too large or not UTF-8.
    """
    if len(raw) > MAX_BYTES:
        raise ReadmeError("section-missing", f"it is larger than {MAX_BYTES >> 10} KiB, nothing to read in ten minutes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ReadmeError("section-missing", "it isn't text in UTF-8") from None
    return _COMMENT.sub("", text)


def sections(text: str) -> dict[str, str]:
    """Heading → what stands below it, of the seven.

    Raises:
        ReadmeError: some aren't there, twice, or in another order; names all of them.
    """
    found: list[tuple[str, list[str]]] = []
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith(("```", "~~~"))
        if not fenced and re.match(r"##\s", line):
            found.append((line[2:].strip().rstrip("#").strip(), []))
        elif not fenced and re.match(r"#\s", line):
            found.append(("", []))
        elif found:
            found[-1][1].append(line)
    names = [name.lower() for name, _ in found]
    counts = {heading: names.count(heading.lower()) for heading in HEADINGS}
    for what, wrong in (
        ("has no section", [heading for heading, count in counts.items() if count == 0]),
        ("has twice the section", [heading for heading, count in counts.items() if count > 1]),
    ):
        if wrong:
            raise ReadmeError("section-missing", f"it {what} {', '.join(f'`## {heading}`' for heading in wrong)}")
    places = [names.index(heading.lower()) for heading in HEADINGS]
    if places != sorted(places):
        raise ReadmeError("section-missing", f"its sections stand in another order than {', '.join(HEADINGS)}")
    return {heading: "\n".join(found[place][1]) for heading, place in zip(HEADINGS, places, strict=True)}


def faults(found: dict[str, str], template: dict[str, str], min_words: int) -> list[ReadmeError]:
    """Sections that say nothing of their own: those that are empty, or still the template's.

    Args:
        template: what the laid-out README has there.
    """
    wrong = []
    for heading, body in found.items():
        words = {word.lower() for word in re.findall(r"[^\W_]+", prose(body))}
        if PLACEHOLDERS.search(body) or (body.split() and body.split() == template.get(heading, "").split()):
            wrong.append(ReadmeError("template-text", f"`## {heading}` still holds the template's text"))
        elif len(words) < min_words:
            few = f"`## {heading}` has {len(words)} different words; expected {min_words} or more"
            wrong.append(ReadmeError("section-empty", few))
    return wrong


def prose(body: str) -> str:
    """A section's text without tables and code blocks."""
    return "\n".join(line for line in _FENCE.sub("", body).splitlines() if not line.lstrip().startswith("|"))


def names(body: str, word: str) -> bool:
    """Whether a section names a shape or a file: the word by itself, not inside of a longer one."""
    return re.search(rf"(?<![\w\-./]){re.escape(word)}(?![\w\-]|\.\w)", body) is not None


def mentions(body: str, path: str) -> bool:
    """Whether a section names a file, by its path or its last part."""
    return (
        names(body, path) or re.search(rf"(?<![\w\-]){re.escape(path.rpartition('/')[2])}(?![\w\-])", body) is not None
    )


def cells(body: str, shapes: list[str]) -> list[Cell]:
    """The figures of a section's tables that have a column `shape`.

    Raises:
        ReadmeError: there's no such table, or a line of it names no shape of capstone.toml.
    """
    found = []
    for table in _tables(_FENCE.sub("", body)):
        head = [cell.strip("` *").lower() for cell in table[0]]
        if "shape" not in head:
            continue
        for line in table[2:]:
            row = [cell.strip("` *") for cell in line]
            name = row[head.index("shape")] if len(row) == len(head) else ""
            if name not in shapes:
                raise ReadmeError(
                    "table-missing", f"a table's line {' | '.join(row)[:80]!r} is of no shape that is known"
                )
            found += [
                Cell(name, column, text) for column, text in zip(head, row, strict=True) if column != "shape" and text
            ]
    return found


def _tables(body: str) -> list[list[list[str]]]:
    """Every table: its lines, each a list of cells."""
    tables: list[list[list[str]]] = [[]]
    for line in body.splitlines():
        if line.strip().startswith("|"):
            tables[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif tables[-1]:
            tables.append([])
    return [table for table in tables if len(table) >= 3 and set("".join(table[1])) <= set("-: ")]


def fits(text: str, value: float) -> bool:
    """Whether a cell's number is `value` to the digits that it shows."""
    found = NUMBER.match(text.strip())
    if not found:
        return False
    shown = found[0].replace(",", "")
    mantissa, _, exponent = shown.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals) if abs(int(exponent or 0)) < 300 else 0.0
    return abs(float(shown) - value) <= 0.5000001 * unit + 1e-12 * abs(value)


def judge_cells(
    found: list[Cell], figure: Callable[[str, str], float | str | None], min_lines: int, measured: Collection[str]
) -> int:
    """Every figure is the CSV's; how many there were.

    Args:
        figure: (shape, column) → the CSV's value: a number, a word, or None where there's no such figure.
        measured: columns of which one must be there for `min_lines` shapes.

    Raises:
        ReadmeError: too few lines, columns that aren't the CSV's, or other numbers; tells the first few.
    """
    if len({cell.shape for cell in found if cell.column.rpartition(" ")[2] in measured}) < min_lines:
        raise ReadmeError(
            "table-missing",
            f"`## Performance` has no table with a column `shape`, a measured one ({', '.join(measured)}) and "
            f"{min_lines} lines or more",
        )
    wrong = [fault for cell in found if (fault := _cell_fault(cell, figure))]
    if wrong:
        more = f"; and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
        raise ReadmeError("not-the-csv", "; ".join(wrong[:TOLD]) + more)
    return len(found)


def _cell_fault(cell: Cell, figure: Callable[[str, str], float | str | None]) -> str:
    value = figure(cell.shape, cell.column)
    if value is None:
        return f"the column {cell.column[:40]!r} is no figure of benchmark.csv"
    if cell.text == value if isinstance(value, str) else fits(cell.text, value):
        return ""
    shown = value if isinstance(value, str) else f"{value:.6g}"
    return f"{cell.column[:40]} of {cell.shape} is {cell.text[:40]!r}; benchmark.csv has {shown}"

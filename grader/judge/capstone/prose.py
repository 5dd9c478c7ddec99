"""What a README and claims say in words: numbers beside a shape's name, factors in words, figures that no table has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from grader.judge.capstone.benchmark import Table
from grader.judge.capstone.readme import NUMBER, fits, prose

_COUNTS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "twenty": 20,
    "thirty": 30, "fifty": 50, "hundred": 100, "a": 1,
}  # fmt: skip
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
_NAMED = {"twice": 2.0, "thrice": 3.0, "doubl": 2.0, "tripl": 3.0, "quadrupl": 4.0}

_DECIMAL = r"[0-9]+(?:\.[0-9]+)?"
_COUNT = rf"(?:{_DECIMAL}|{'|'.join(sorted(_COUNTS, key=len, reverse=True))})"
_PART = "|".join(_PARTS)
_UNIT = r"(?:[\s-]*times\b|[\s-]?fold\b|\s?[x\u00d7](?!\s*[0-9]|\w))"
_TIMES = re.compile(rf"\b({_COUNT})( and a (?:half|quarter))?{_UNIT}", re.IGNORECASE)
_SINGLE = re.compile(r"\b(twice|thrice|(?:doubl|tripl|quadrupl)(?:e[sd]?|ing)?)\b", re.IGNORECASE)
_OF_TIME = re.compile(rf"\b(?:(half)|(a|one|two|three) ({_PART})s?)(?: of)? the (?:time|latency)\b", re.IGNORECASE)
_MORE = re.compile(rf"\b(?:(half)(?: as much| again)|(?:a|one) ({_PART})) (?:faster|more|quicker)\b", re.IGNORECASE)
_PERCENT = re.compile(rf"\b({_DECIMAL}) ?(?:%|percent) (?:faster|more|quicker)\b", re.IGNORECASE)
CLOSE = 1.05
"""A word may be this much above the bound that it stands for."""
MIN_DIGITS = 2
MOST_LISTED = 40


def factors(text: str) -> list[tuple[str, float]]:
    """(words, factor) of every speed-up that a text tells: ``twelve times``, ``2.1x``, ``a fifth faster``."""
    found = [
        *((match[0], _count(match[1]) + _rest(match[2])) for match in _TIMES.finditer(text)),
        *((match[0], _named(match[1])) for match in _SINGLE.finditer(text)),
        *((match[0], _parts(match[3] or match[1]) / _count(match[2] or "one")) for match in _OF_TIME.finditer(text)),
        *((match[0], 1.0 + 1.0 / _parts(match[1] or match[2])) for match in _MORE.finditer(text)),
        *((match[0], 1.0 + float(match[1]) / 100.0) for match in _PERCENT.finditer(text)),
    ]
    return [(words.strip(), factor) for words, factor in found]


def _count(text: str) -> float:
    return float(_COUNTS.get(text.lower(), text))


def _named(text: str) -> float:
    return next(factor for start, factor in _NAMED.items() if text.lower().startswith(start))


def _rest(text: str | None) -> float:
    return 0.0 if text is None else 0.5 if text.endswith("half") else 0.25


def _parts(name: str) -> int:
    return _PARTS[name.lower()]


def beyond(text: str, bound: float) -> str:
    """The words of a text that promise more than `bound`, where none of its factors is the bound's; else empty."""
    told = factors(text)
    if told and min(factor for _, factor in told) > bound * CLOSE:
        return min(told, key=lambda each: each[1])[0]
    return ""


def beside(body: str, name: str, others: Collection[str]) -> Iterator[str]:
    """What stands next to a shape's name: from the name before it to the one behind, within its paragraph or item."""
    known = sorted({name, *others}, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w\-./])(?:{'|'.join(map(re.escape, known))})(?![\w\-]|\.\w)")
    for item in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|[0-9]+[.)]|\|)\s*)", body):
        places = [*pattern.finditer(item)]
        for number, place in enumerate(places):
            if place[0] == name:
                start = places[number - 1].end() if number else 0
                end = places[number + 1].start() if number + 1 < len(places) else len(item)
                yield f"{item[start : place.start()]} ; {item[place.end() : end]}"


def tells(text: str, wanted: Sequence[float]) -> bool:
    """Whether a text has one of the numbers, to the digits that it shows: two or more, or as a percentage any."""
    for match in NUMBER.finditer(text):
        percent = text[match.end() :].lstrip().startswith(("%", "percent"))
        digits = len(re.sub(r"[eE].*|[^0-9]", "", match[0]).lstrip("0"))
        for value in wanted:
            held = 100.0 * value if percent else value
            if (digits >= MIN_DIGITS or percent) and fits(match[0], held):
                return True
    return False


def cost_of(table: Table, name: str) -> list[float]:
    """The numbers by which a regression may be told: of a time the speed-up, its inverse, what is lost, the medians."""
    line = table.line(name)
    assert line is not None  # its regression was found in it
    if table.audit:
        worst = line.figures["max"]
        return [worst, worst / line.figures["tolerance"]] if line.figures["tolerance"] else [worst]
    gain = table.figure(name, "speedup")
    before = table.line(name, "before")
    assert isinstance(gain, float)
    assert before is not None
    medians = [one.figures["median_ms"] for one in (before, line)]
    return [gain, 1.0 / gain, 1.0 / gain - 1.0, 1.0 - gain, *medians, medians[1] - medians[0]]


def strangers(sections: dict[str, str], table: Table, bounds: Sequence[float]) -> list[str]:
    """Numbers and factors in a README's prose that benchmark.csv doesn't have, with where they stand: for a reader.

    Most will be honest: a count, a page, a card's peak. Nothing is held against them; a person looks whether one is a
    result that nobody measured.
    """
    known = [number for line in table.lines.values() for number in line.figures.values()]
    known += [gain for name in table.shapes() if isinstance(gain := table.figure(name, "speedup"), float)]
    known += bounds
    found = []
    for heading, body in sections.items():
        text = prose(body)
        for words, factor in factors(text):
            if not any(_near(factor, value) for value in known):
                found.append(f"{words} ({heading})")
        for match in _RESULT.finditer(text):
            if not any(fits(match[1], value) for value in known):
                found.append(f"{match[0].strip()} ({heading})")
    return list(dict.fromkeys(found))[:MOST_LISTED]


_RESULT = re.compile(rf"({_DECIMAL}) ?(?:ms|us|µs|TFLOP/s|TFLOPS|TB/s|GB/s|tokens a second|%)", re.IGNORECASE)


def _near(factor: float, value: float) -> bool:
    """Whether words round to a number: within a twentieth."""
    return value > 0 and 1 / CLOSE <= factor / value <= CLOSE

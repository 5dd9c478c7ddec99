"""`similarity.json` and `similarity.html`: the same bytes for the same result, and nothing of a submission runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from grader.classroom.similarity.fingerprints import GRAM, WINDOW
from grader.classroom.similarity.pairs import Pair, Passage, Similarity
from grader.classroom.similarity.works import Work
from grader.report.inert import markup

FORMAT_VERSION = 1
PAIRS_WITH_CODE = 40
"""Of one lab on the page; the table has them all."""

MAX_LINES = 1500
MAX_CHARACTERS = 300
"""Shown of one file, and of one line."""

COLOURS = 6


def dumps(found: Sequence[Similarity]) -> str:
    """The result as canonical JSON."""
    table = {
        "format_version": FORMAT_VERSION,
        "method": {"tokens_a_hash": GRAM, "window": WINDOW},
        "labs": [_lab(similarity) for similarity in found],
    }
    return json.dumps(table, indent=2, sort_keys=True) + "\n"


def _lab(similarity: Similarity) -> dict[str, Any]:
    return {
        "lab": similarity.lab,
        "threshold": similarity.threshold,
        "typical": similarity.typical,
        "compared": list(similarity.compared),
        "too_short": list(similarity.too_short),
        "identical": [list(labels) for labels in similarity.identical],
        "more_pairs": similarity.more,
        "notes": list(similarity.notes),
        "pairs": [
            {
                "left": pair.left.label,
                "right": pair.right.label,
                "score": pair.score,
                "left_share": pair.left_share,
                "right_share": pair.right_share,
                "shared": pair.shared,
                "passages": [
                    {
                        "left": {"file": passage.left_file, "lines": list(passage.left_lines)},
                        "right": {"file": passage.right_file, "lines": list(passage.right_lines)},
                        "tokens": passage.tokens,
                    }
                    for passage in pair.passages
                ],
            }
            for pair in similarity.pairs
        ],
    }


_STYLE = """
:root { color-scheme: light dark; --line: #8886; --faint: #8882; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 100rem; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { border-bottom: 1px solid var(--line); padding: .2rem .8rem .2rem 0;
text-align: left; vertical-align: top; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .6rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } .sides { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: .8rem; }
@media (max-width: 50rem) { .sides { grid-template-columns: minmax(0, 1fr); } }
h4 { margin: .6rem 0 .2rem; overflow-wrap: anywhere; } pre { font: 12px/1.4 ui-monospace, monospace; margin: 0;
overflow-x: auto; background: var(--faint); padding: .4rem; } pre i { font-style: normal; opacity: .55; }
mark { color: inherit; } .c0 { background: #e6b80055; } .c1 { background: #3b82f655; } .c2 { background: #22c55e55; }
.c3 { background: #ec489955; } .c4 { background: #a855f755; } .c5 { background: #f9731655; }
""".strip()


def page(found: Sequence[Similarity]) -> str:
    """One page for all labs, with no script and nothing from elsewhere."""
    body = "\n".join(part for similarity in found for part in _section(similarity))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Similar submissions</title>
<style>
{_STYLE}
</style>
</head>
<body>
<h1>Similar submissions</h1>
<p>Shared code is a reason to read two submissions, not a verdict. Compared are normalised tokens: names, numbers,
texts, comments and layout don't count, and what the course handed out is left out. A score is the part of the shorter
submission's own fingerprints that the other one has too.</p>
{body}
</body>
</html>
"""


def _section(similarity: Similarity) -> Iterator[str]:
    lab = markup(similarity.lab)
    yield f"<h2>{lab}</h2>"
    count = len(similarity.compared)
    yield (
        f"<p>{count} submissions and folders compared. Half of the class have a nearest neighbour of at least "
        f"{similarity.typical:.2f}; pairs from {similarity.threshold:.2f} on are told.</p>"
    )
    for labels in similarity.identical:
        yield f"<p>The same but for names, numbers, texts and comments: {_list(labels)}.</p>"
    if similarity.too_short:
        yield f"<p>Too little of their own to compare: {_list(similarity.too_short)}.</p>"
    for note in similarity.notes:
        yield f"<p>{markup(note)}.</p>"
    if not similarity.pairs:
        yield "<p>No pair is that much alike.</p>"
        return
    yield "<table><thead><tr><th>score</th><th>left</th><th>has</th><th>right</th><th>has</th></tr></thead><tbody>"
    for number, pair in enumerate(similarity.pairs):
        target = f"{lab}-{number}"
        score = f"{pair.score:.2f}"
        linked = f'<a href="#{target}">{score}</a>' if number < PAIRS_WITH_CODE else score
        left, right = markup(pair.left.label), markup(pair.right.label)
        shares = _percent(pair.left_share), _percent(pair.right_share)
        yield f'<tr><td class="n">{linked}</td><td>{left}</td><td class="n">{shares[0]}</td>'
        yield f'<td>{right}</td><td class="n">{shares[1]}</td></tr>'
    yield "</tbody></table>"
    if similarity.more:
        yield f"<p>… and {similarity.more} pairs more.</p>"
    for number, pair in enumerate(similarity.pairs[:PAIRS_WITH_CODE]):
        yield _pair(pair, f"{lab}-{number}")


def _list(labels: Iterable[str]) -> str:
    return ", ".join(markup(label) for label in labels)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _pair(pair: Pair, target: str) -> str:
    left = _side(pair.left, [(passage.left_file, passage.left_lines) for passage in pair.passages], f"{target}-l")
    right = _side(pair.right, [(passage.right_file, passage.right_lines) for passage in pair.passages], f"{target}-r")
    return (
        f'<details id="{target}"><summary><strong>{pair.score:.2f}</strong> {markup(pair.left.label)} and '
        f"{markup(pair.right.label)}: {_said(pair.passages)}</summary>\n"
        f'<div class="sides"><div>{left}</div><div>{right}</div></div></details>'
    )


def _said(passages: Sequence[Passage]) -> str:
    tokens = sum(passage.tokens for passage in passages)
    return f"{len(passages)} shared passages, {tokens} tokens"


def _side(work: Work, places: Sequence[tuple[str, tuple[int, int]]], prefix: str) -> str:
    """The files of one work that have a shared passage, its lines marked by the passage's number."""
    opposite = f"{prefix[:-1]}{'r' if prefix.endswith('l') else 'l'}"
    marked: dict[tuple[str, int], int] = {}
    for number, (name, (first, last)) in enumerate(places):
        for line in range(first, last + 1):
            marked.setdefault((name, line), number)
    shown = []
    begun: set[int] = set()
    for name in work.files:
        if not any(name == place for place, _ in places):
            continue
        lines = work.files[name].split("\n")
        cells = []
        for number, text in enumerate(lines[:MAX_LINES], start=1):
            code = markup(text, max_characters=MAX_CHARACTERS, max_lines=1)
            passage = marked.get((name, number))
            if passage is not None:
                link = ""
                if passage not in begun:
                    begun.add(passage)
                    link = f'<a id="{prefix}{passage}" href="#{opposite}{passage}">[{passage + 1}]</a> '
                code = f'{link}<mark class="c{passage % COLOURS}">{code}</mark>'
            cells.append(f"<i>{number:4d}</i> {code}")
        cells += [f"… {len(lines) - MAX_LINES} lines more"] if len(lines) > MAX_LINES else []
        title = markup(f"{work.label}: {name}", max_lines=1)
        shown.append(f"<h4>{title}</h4><pre>" + "\n".join(cells) + "</pre>")
    return "".join(shown)

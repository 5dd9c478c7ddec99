"""What words promise against what bounds and tables have."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.capstone import benchmark, manifest, prose, readme

REFERENCE = Path(__file__).resolve().parents[2] / "solutions" / "lab10_capstone" / "reference"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("twice as fast", [2.0]),
        ("Doubles the rate", [2.0]),
        ("five and a half times", [5.5]),
        ("three-fold, threefold", [3.0, 3.0]),
        ("12x faster and 1.25\u00d7 on the other", [12.0, 1.25]),
        ("a quarter more, a fifth faster", [1.25, 1.2]),
        ("30 % faster", [1.3]),
        ("less than two thirds of the time", [1.5]),
        ("half the time", [2.0]),
        ("a third of the latency", [3.0]),
        ("At 2k, where skipping can win no more than 2.3 times, 1.8 times", [2.3, 1.8]),
        ("tiles of 64 x 64 and 128\u00d764", []),
        ("at most 5 % of the call path; sometimes one copy a step in place of two", []),
        ("timestep 3, x86, in 0x10", []),
    ],
)
def test_factors_are_read_from_words(text: str, wanted: list[float]) -> None:
    assert sorted(factor for _, factor in prose.factors(text)) == pytest.approx(sorted(wanted))


@pytest.mark.parametrize(
    ("text", "bound", "words"),
    [
        ("twelve times as fast", 1.2, "twelve times"),
        ("twice as fast", 1.9, "twice"),
        ("twice as fast", 1.95, ""),
        ("twice as fast", 3.0, ""),
        ("no more than 2.3 times, 1.8 times", 1.8, ""),
        ("faster", 1.1, ""),
        ("half the time", 1.2, "half the time"),
    ],
)
def test_words_may_not_promise_more_than_their_bound(text: str, bound: float, words: str) -> None:
    assert prose.beyond(text, bound) == words


def table(**changes: float) -> benchmark.Table:
    """The reference's, n256 twice as slow."""
    text = (REFERENCE / benchmark.FILE).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    for row in rows:
        if (row["shape"], row["variant"]) == ("n256", "after"):
            row["median_ms"] = "978.984"
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return benchmark.read(out.getvalue().encode(), manifest.read((REFERENCE / manifest.FILE).read_bytes()))


NAMES = ("n128-covered", "n256", "n384", "n384-causal")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("- `n256` behaves as expected.", False),
        ("- `n256` is slower, 0.50 of its speed before.", True),
        ("- `n256` takes 2.0 times as long.", True),
        ("- `n256` takes 100 % longer.", True),
        ("- `n256` loses 50% of its speed.", True),
        ("- `n256`: 979 ms where it took 489.", True),
        ("- 0.50x at n256.", True),
        ("- `n256` is slower. Measured in 2 runs.", False),
        ("- `n256` is slower.\n- Another item has 0.50 in it.", False),
        ("`n256` is slower.\n\nAnother paragraph has 0.50.", False),
        ("- `n128-covered` 0.89, `n256`, `n384-causal` 2.9", False),
        ("- `n128-covered` 0.89, `n256` 0.50, `n384-causal` 2.9", True),
        ("| shape | speedup |\n|---|---|\n| n256 | 0.50 |\n", True),
        ("- `n256` has 0.51 of its speed", False),
        ("- `n256-long` 0.50", False),
    ],
)
def test_a_regression_is_told_by_its_number_beside_its_name(body: str, told: bool) -> None:
    found = table()
    assert "n256" in found.regressions()
    cost = prose.cost_of(found, "n256")
    assert any(prose.tells(text, cost) for text in prose.beside(body, "n256", NAMES)) is told


def test_numbers_that_no_table_has_are_listed_for_a_person_and_others_are_not() -> None:
    sections = readme.sections(readme.text_of((REFERENCE / readme.FILE).read_bytes()))
    found = benchmark.read(
        (REFERENCE / benchmark.FILE).read_bytes(), manifest.read((REFERENCE / manifest.FILE).read_bytes())
    )
    sections["What"] += (
        "\nUp to 12x faster on an H200; 2.68 times at n384, 487 ms there.\n\n| a | 99 ms |\n|---|---|\n| b | 98 ms |\n"
    )
    listed = prose.strangers(sections, found, [1.5])
    assert "12x (What)" in listed
    assert not any(text.endswith("(What)") for text in listed if text != "12x (What)")


def model_sentences() -> list[tuple[str, str]]:
    """(section, the sentence that the handout gives as a good one) of its table."""
    text = (REFERENCE.parents[2] / "assignments" / "lab10_capstone" / "README.md").read_text()
    lines = [line.strip("|\n ").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [(cells[0].strip(), cells[2].strip()) for cells in lines if cells[0].strip() in readme.HEADINGS]


def min_words() -> int:
    thresholds = Course.find(REFERENCE).lab("lab10").checks["readme"].thresholds
    return int(thresholds["min_words"])


def test_every_model_sentence_of_the_handout_is_enough_for_its_section() -> None:
    told = dict(model_sentences())
    assert set(told) == set(readme.HEADINGS)
    assert readme.faults(told, {}, min_words()) == []


def test_a_readme_is_told_all_of_its_faults_at_once() -> None:
    sections = {"What": "TODO", "Why": "None.", "How": "| a | table |", "Limitations": "One two three four five six."}
    found = readme.faults(sections, {}, min_words())
    assert [(fault.kind, str(fault).split("`")[1]) for fault in found] == [
        ("template-text", "## What"),
        ("section-empty", "## Why"),
        ("section-empty", "## How"),
    ]
    with pytest.raises(readme.ReadmeError, match="`## Why`, `## Limitations`"):
        readme.sections("\n".join(f"## {name}" for name in readme.HEADINGS if name not in ("Why", "Limitations")))


def test_figures_that_are_not_the_tables_are_told_together() -> None:
    cells = [readme.Cell(f"s{number}", "median_ms", "9") for number in range(6)]
    with pytest.raises(readme.ReadmeError) as caught:
        readme.judge_cells(cells, lambda shape, column: 1.0, 1, ("median_ms",))
    assert all(f"of s{number} is '9'" in str(caught.value) for number in range(4))
    assert "and 2 more" in str(caught.value)

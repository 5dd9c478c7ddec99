from __future__ import annotations

import pytest

from grader.report.text import clean, count_points, one_line, points


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1bPq#0\x1b\\after", "after"),
        ("\x1b(0box\x1b7", "box"),
        ("half \x1b[", "half"),
        ("half \x1b", "half"),
        ("\x9b2Jgone", "gone"),
        ("a\tb", "a   b"),
        ("one\rtwo\r\nthree\u2028four", "one\ntwo\nthree\nfour"),
        ("bell\x07 null\x00", "bell\ufffd null\ufffd"),
        ("\u202eright-to-left", "\ufffdright-to-left"),
        ("zero\u200bwidth", "zero\ufffdwidth"),
        ("lone \ud800", "lone \ufffd"),
        ("tags stay [red]", "tags stay [red]"),
        ("Größe ∑ 数", "Größe ∑ 数"),
    ],
)
def test_clean_leaves_only_printable_text(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_clean_long_text_says_that_it_was_cut() -> None:
    assert clean("x" * 100, max_characters=10) == "x" * 10 + " … (cut)"
    assert clean("\n".join("abcdef"), max_lines=3) == "a\nb\nc … (cut)"
    assert clean("x" * 10, max_characters=10) == "x" * 10


def test_clean_stacked_marks_are_thinned() -> None:
    assert clean("a" + "\u0301" * 500) == "a" + "\u0301" * 4


def test_clean_megabytes_are_cut_before_the_work() -> None:
    # It would take hours, if every mark were looked at again and again.
    assert clean("\x1b[31m" * 2_000_000).endswith("… (cut)")


def test_one_line_joins_lines() -> None:
    assert one_line("a\n  b\tc") == "a b c"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (6.0, "6"), (2.5, "2.5"), (1 / 3, "0.33"), (9.999, "9.99"), (10, "10"), (100.0, "100")],
)
def test_points_never_round_up(value: float, shown: str) -> None:
    assert points(value) == shown


def test_count_points_singular() -> None:
    assert [count_points(1), count_points(1.5), count_points(0)] == ["1 point", "1.5 points", "0 points"]

"""The -k expression."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_course import LAB_ID, write_course

from grader.course import Lab
from grader.errors import UsageError
from grader.judge.selection import select


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return write_course(tmp_path).lab(LAB_ID)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("", {"small", "long", "negative"}),
        ("small", {"small"}),
        ("LONG", {"long"}),
        ("arrays", {"small", "long"}),
        ("arrays and not small", {"long"}),
        ("not (small or long)", {"negative"}),
        ("small or long and negative", {"small"}),
        ("not not small", {"small"}),
    ],
)
def test_select_expression_picks_checks(lab: Lab, expression: str, chosen: set[str]) -> None:
    assert select(lab, expression) == chosen


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nothing", r"picks no check of lab01. Its checks: small, long, negative"),
        ("small and", "it ends too early"),
        ("(small", "a parenthesis is not closed"),
        ("small long", "'long' is out of place"),
        (") small", r"'\)' is out of place"),
        ("or", "'or' is out of place"),
    ],
)
def test_select_unreadable_expression_is_usage_error(lab: Lab, expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select(lab, expression)

"""A student's page: what it shows, what it keeps, and that hostile text in it is text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from classroom.factory import HOSTILE_NAMES
from hypothesis import given
from hypothesis import strategies as st
from leaderboard.ranked_class import on_gpu
from report.report_factory import FACTORIES, MASK_TOP_LEFT, TAIL_MAP, outcomes, report

from grader.pages import drawings
from grader.pages.environment import render
from grader.pages.index import IndexRow, index_page
from grader.pages.student import Section, student_page
from grader.pages.svg import Drawing
from grader.profiles import load_profile
from grader.report.model import ErrorMap, Report, Status
from grader.report.moved import moved

PROJECT = Path(__file__).resolve().parents[2]
PROFILES = {name: load_profile(PROJECT, name) for name in ("h200", "a100-80gb")}
SECRET = "expected 3.14159 at q_len=77"
COUNTED = {
    "forward: moved_bytes": 3_000_000,
    "forward: bound_bytes": 2_000_000,
    "forward: flops": 600_000_000,
    "other": 7,
}


def full() -> Report:
    """A wrong tail with its map, counted bytes in a public check, hidden failures that carry inputs, timed shapes."""
    gpu = on_gpu(1.5)
    hidden = {"message": SECRET, "measured": {"hidden: moved_bytes": 5, "hidden: bound_bytes": 4}}
    checks = outcomes(
        ragged_tails={"status": Status.FAIL, "message": "O is wrong in 2 of 8 tiles.", "error_map": TAIL_MAP},
        benchmark={"measured": COUNTED},
        mask_bottom_right={
            "status": Status.FAIL,
            "diagnosis": MASK_TOP_LEFT,
            "error_map": TAIL_MAP.model_copy(update={"title": "hidden slice"}),
        }
        | hidden,
        **gpu["checks"],
    )
    return report(checks, **gpu["report_fields"])


def section(shown: Report) -> Section:
    return Section(shown.lab.id, shown.lab.title, shown, ("Handed in 2 h late.",))


def page(shown: Report, **options: Any) -> str:
    return student_page("ada", [section(shown)], PROFILES, **options)


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_student_page_any_report_renders_every_check_and_the_same_bytes(make: Callable[[], Report]) -> None:
    text = page(make())
    assert text == page(make())
    assert text.count('<th scope="row">') == len(make().checks)
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_student_page_shows_scorecard_roofline_traffic_and_map() -> None:
    text = page(full())
    assert "Handed in 2 h late." in text
    assert "Roofline of NVIDIA H200" in text
    assert "timed shape 1: 450 TFLOP/s at 900 FLOP/byte, measured" in text
    assert "forward: 3,000,000 bytes moved, the bound is 2,000,000" in text
    assert "forward: 1.5 times the bound" in text
    assert "Where the output is wrong: O, batch 0, head 1" in text
    assert "Fix this first" in text


def test_student_page_hidden_check_tells_category_and_diagnosis_only() -> None:
    text = page(full())
    assert SECRET not in text
    assert "hidden slice" not in text
    assert "hidden: 5" not in text
    assert "(4, 16, 4096, 128)" not in text
    assert "Hidden correctness check 1" in text
    assert MASK_TOP_LEFT.text in text
    assert "/home/planted" not in text
    for shown in (SECRET, "hidden slice", "(4, 16, 4096, 128)"):
        assert shown in page(full(), instructor=True)


@given(st.text(max_size=60))
def test_student_page_any_text_opens_no_element_of_its_own(text: str) -> None:
    checks = outcomes(contract={"status": Status.FAIL, "message": f"{text}<b onclick=x>&'\""})
    checks[0] = checks[0].model_copy(update={"title": f"<i>{text}"})
    shown = student_page(f"<u>{text}</u>", [section(report(checks))], {})
    assert not re.search(r"<(b|i|u)[\s>]", shown)


def test_student_page_not_graded_says_why() -> None:
    refused = Section("lab06_fa2_forward", "FA2", None, ("Not graded (refused): The archive leads out.",))
    assert "The archive leads out." in student_page("fay", [refused], {})


def test_roofline_points_lie_on_or_under_the_roof() -> None:
    found = drawings.points_of(PROFILES["h200"], [], moved(full().checks))
    (point,) = found
    assert point.intensity == 200
    assert point.tflops == pytest.approx(PROFILES["h200"].attainable_tflops(200, "float16"))
    assert drawings.roofline(None, [], moved(full().checks)) is None
    assert drawings.roofline(PROFILES["h200"], [], []) is None


def test_moved_odd_measures_are_left_out() -> None:
    odd = {"a: moved_bytes": 5, "b: moved_bytes": "x", "b: bound_bytes": 2, "c: moved_bytes": 0, "c: bound_bytes": 1}
    assert moved(report(outcomes(benchmark={"measured": odd})).checks) == []


def test_error_map_counts_every_tile_and_shades_by_level() -> None:
    text = drawings.error_map(TAIL_MAP).__html__()
    assert [text.count(f"cell level{level}") for level in range(5)] == [26, 1, 2, 1, 2]
    assert "26 allowed, 1 up to 10x, 2 up to 100x, 1 more, 2 not finite" in text


def test_error_map_empty_or_huge_is_drawn() -> None:
    bounds = {"title": "O", "row_axis": "query", "col_axis": "head_dim", "tile": (1, 1)}
    assert "none" in drawings.error_map(ErrorMap(**bounds, cells=[])).__html__()
    huge = drawings.error_map(ErrorMap(**bounds, cells=[[0.5] * 500] * 500)).__html__()
    assert huge.count("<rect") <= 48 * 48


def test_drawing_refuses_numbers_that_are_none() -> None:
    drawing = Drawing(10, 10, "t", "d")
    with pytest.raises(ValueError, match="finite"):
        drawing.circle(float("nan"), 0, 1, "dot")


def test_index_page_hostile_students_are_links_with_plain_text() -> None:
    rows = [IndexRow(name, f"students/{number}.html", {"lab06_x": "91"}) for number, name in enumerate(HOSTILE_NAMES)]
    text = index_page("Course", rows)
    assert text.count("<a href=") == len(HOSTILE_NAMES)
    assert "<script>" not in text
    assert "\x1b" not in text


def test_render_policy_allows_no_inline_code_that_it_does_not_hold() -> None:
    text = render("index.html.j2", style=("base.css",), heading="x", labs=[], rows=[])
    assert "default-src &#39;none&#39;" in text
    assert "script-src" not in text

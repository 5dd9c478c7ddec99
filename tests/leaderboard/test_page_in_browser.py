"""The page opened, sorted and filtered in a real headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_tools import CONTRAST, PHONE, Opened
from leaderboard.ranked_class import a_ranked_class, names

from grader.leaderboard.page import page
from grader.leaderboard.ranking import rank

H200 = ".board[data-profile=h200]"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    records = a_ranked_class()
    (tmp_path / "index.html").write_text(
        page(rank(records, course="FlashAttention", names=names(records))[0]), encoding="utf-8"
    )
    return tmp_path / "index.html"


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    found = Opened(browser, file)
    yield found
    found.context.close()
    assert found.dialogs == []
    assert found.errors == []
    assert found.requests == [file.as_uri()]


def test_page_click_on_a_heading_sorts_both_ways_and_tells_a_screen_reader(opened: Opened) -> None:
    tab = opened.tab
    assert opened.column(H200, 1) == ["1", "2", "3", "4"]
    heads = tab.locator(f"{H200} thead th")
    assert heads.nth(0).get_attribute("aria-sort") == "ascending"
    value = tab.get_by_role("region", name="lab06 on h200").get_by_role("button", name="Times the baseline's speed")
    value.click()
    assert opened.column(H200, 3) == ["1.2", "1.2", "1.4", "1.9"]
    assert opened.column(H200, 1) == ["3", "4", "2", "1"]
    assert heads.nth(2).get_attribute("aria-sort") == "ascending"
    assert heads.nth(0).get_attribute("aria-sort") is None
    value.click()
    assert opened.column(H200, 3) == ["1.9", "1.4", "1.2", "1.2"]
    assert heads.nth(2).get_attribute("aria-sort") == "descending"
    # The timed shapes stay with their entry.
    followers = tab.evaluate(
        f"[...document.querySelectorAll('{H200} tr.shapes')].map((r) => r.previousElementSibling.cells[0].innerText)"
    )
    assert followers == ["1", "2", "3", "4"]


def test_page_sorts_by_the_keyboard_alone(opened: Opened) -> None:
    button = opened.tab.locator(f"{H200} thead button").nth(1)
    button.focus()
    opened.tab.keyboard.press("Enter")
    shown = opened.column(H200, 2)
    assert shown == sorted(shown, key=str.lower)
    outline = button.evaluate("(e) => getComputedStyle(e).outlineStyle")
    assert outline != "none"


def test_page_filter_by_profile_hides_tables_and_dots_of_others(opened: Opened) -> None:
    tab = opened.tab
    assert tab.locator(".board:visible").count() == 4
    tab.get_by_label("Hardware profile").select_option("h100-sxm")
    assert tab.locator(".board:visible").count() == 1
    assert tab.locator("svg circle:visible").count() == 2
    assert tab.get_by_role("status").inner_text() == "1 table"
    tab.get_by_label("Hardware profile").select_option("")
    assert tab.locator(".board:visible").count() == 4


def test_page_hostile_names_are_text(opened: Opened) -> None:
    assert "<img src=x onerror=alert(2)>" in opened.column(H200, 2)
    assert opened.tab.locator("img").count() == 0
    assert opened.tab.locator("script").count() == 1


def test_page_tells_a_screen_reader_tables_headings_and_pictures(opened: Opened) -> None:
    tab = opened.tab
    assert tab.locator("html").get_attribute("lang") == "en"
    assert tab.get_by_role("heading", level=1).count() == 1
    assert tab.get_by_role("heading", level=2).count() == 2
    assert tab.get_by_role("table").count() == 4
    table = tab.get_by_role("table", name="h200, by times the baseline's speed")
    assert table.get_by_role("columnheader").count() == 9
    assert table.get_by_role("rowheader").count() == 4
    assert tab.get_by_role("img", name="Entries of lab06_fa2_forward").count() == 1
    assert tab.get_by_role("main").count() == 1
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('button, select')]"
        ".filter((e) => !e.innerText.trim() && !(e.labels && e.labels.length)).length"
    )
    assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_text_has_the_contrast_that_wcag_asks_for(browser: Any, file: Path, scheme: str) -> None:
    found = Opened(browser, file, color_scheme=scheme)
    assert found.tab.evaluate(CONTRAST) >= 4.5
    found.context.close()


def test_page_on_a_phone_scrolls_tables_in_their_place_and_has_large_targets(browser: Any, file: Path) -> None:
    found = Opened(browser, file, viewport=PHONE, has_touch=True, is_mobile=True)
    tab = found.tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert tab.evaluate(f"document.querySelector('{H200}').scrollWidth") > PHONE["width"]
    assert tab.get_by_role("table").count() == 4
    heights = tab.evaluate("[...document.querySelectorAll('thead button')].map((b) => b.offsetHeight)")
    assert min(heights) >= 44
    tab.locator(f"{H200} thead button").nth(2).tap()
    assert found.column(H200, 3)[0] == "1.2"
    assert found.errors == []
    found.context.close()


def test_page_policy_stops_a_script_that_got_in(browser: Any, file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("</main>", "<script>alert(3)</script><img src=x onerror=alert(4)></main>"))
    found = Opened(browser, file)
    # What the browser writes to its console may come after the page is there.
    found.wait_for(lambda: any("Content Security Policy" in error for error in found.errors))
    assert found.dialogs == []
    found.context.close()

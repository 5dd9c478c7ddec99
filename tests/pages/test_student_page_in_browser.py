"""A student's page in a real headless Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser_tools import CONTRAST, PHONE, Opened
from pages.test_student_page import full, page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_student_page_opens_without_errors_and_reads_well(browser: Any, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "ada.html").write_text(page(full()), encoding="utf-8")
    opened = Opened(browser, tmp_path / "ada.html", color_scheme=scheme, viewport=PHONE)
    tab = opened.tab
    assert tab.get_by_role("table").count() == 3
    assert tab.get_by_role("img", name="Roofline of NVIDIA H200").count() == 1
    assert tab.locator("svg .dot").count() == 2
    assert tab.locator("svg .ring").count() == 1
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert tab.evaluate(CONTRAST) >= 4.5
    assert (opened.errors, opened.dialogs, opened.requests) == ([], [], [(tmp_path / "ada.html").as_uri()])
    opened.context.close()

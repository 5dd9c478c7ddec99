"""A class with timed shapes, hostile names and planted private words; a browser where one is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system, driven by Playwright; skips, with the reason, where either is missing."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    with playwright.sync_playwright() as driver:
        # Root in a container has no user namespace to give to Chromium's own sandbox; the pages are ours.
        found = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()

"""Makes the helper modules in this folder importable by every test below it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The same examples every time, no stopwatch, nothing written beside the tests.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

sys.path.insert(0, str(Path(__file__).parent))

LONGEST_VALUE_IN_AN_ID = 60


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a case by its argument's name where its value makes no good name: bytes, and long or unprintable text.

    Two processes that share out the tests must find the same names, and an archive's bytes hold the time of day.
    """
    if isinstance(val, bytes) or (
        isinstance(val, str) and (len(val) > LONGEST_VALUE_IN_AN_ID or not val.isascii() or not val.isprintable())
    ):
        return argname
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium of the system, driven by Playwright; skips, with the reason, where either is missing.

    Of one module: while it is open its event loop runs, and no other test could start one of its own.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed")
    with playwright.sync_playwright() as driver:
        # Root in a container has no user namespace to give to Chromium's own sandbox; the pages are ours.
        found = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()

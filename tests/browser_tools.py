"""What the tests of pages ask a real browser; the fixture `browser` starts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAIT_MS = 120_000
"""How long a page or a start of the browser may take; only a hang takes longer."""

# WCAG 2.1's relative luminance and contrast, over every element that shows text of its own.
CONTRAST = """() => {
  const luminance = (c) => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number).slice(0, 3)
      .map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(c) && c !== "transparent") return c;
    }
    return "rgb(255, 255, 255)";
  };
  let least = 99;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["SCRIPT", "STYLE", "title", "desc"].includes(e.tagName)) continue;
    const s = getComputedStyle(e);
    const ink = luminance(e instanceof SVGElement ? s.fill : s.color), paper = luminance(behind(e));
    least = Math.min(least, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
  }
  return least;
}"""

PHONE = {"width": 360, "height": 740}


class Opened:
    """A page in a tab that records dialogs, errors and requests."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(WAIT_MS)
        self.tab = self.context.new_page()
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.tab.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Let the browser's messages come until it holds; fails the test when it never does."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while not condition():
            assert time.monotonic() < deadline, (self.errors, self.dialogs)
            self.tab.wait_for_timeout(20)

    def column(self, board: str, number: int) -> list[str]:
        return list(self.tab.locator(f"{board} tbody tr:not(.shapes) > :nth-child({number})").all_inner_texts())

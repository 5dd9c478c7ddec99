"""Tells a person on stderr how far a run has come: one live line on a terminal, one plain line a check elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from grader.cli.console import is_plain
from grader.report.model import CheckResult
from grader.report.text import one_line


class Progress:
    """Called with a check's id when it starts (no result) and again when it has ended.

    Args:
        total: how many checks will run; None when that isn't known beforehand.
    """

    def __init__(self, total: int | None, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty() and not is_plain(self._stream)
        self._done = 0
        self._began = time.monotonic()

    def __call__(self, check_id: str, result: CheckResult | None) -> None:
        if result is not None:
            self._done += 1
        if self._live:
            running = self._done + (result is None)
            self._draw(f"{self._position(running)} {one_line(check_id)} …{self._left()}")
        elif result is not None:
            line = (
                f"{self._position(self._done)} {one_line(check_id)}: {result.status.value} ({result.duration_s:.1f} s)"
            )
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Take the live line away, so that the scorecard starts on a clean one."""
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _draw(self, line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{line[:width]}")
        self._stream.flush()

    def _position(self, number: int) -> str:
        return f"[{number}/{self._total}]" if self._total else f"[{number}]"

    def _left(self) -> str:
        # The first checks carry the imports and say little about the rest.
        if self._total is None or self._done < 3:
            return ""
        seconds = (time.monotonic() - self._began) / self._done * max(self._total - self._done, 0)
        return f" about {seconds:.0f} s left" if seconds >= 1 else ""

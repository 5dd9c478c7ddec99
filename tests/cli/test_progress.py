from __future__ import annotations

import io

from report_factory import ROWS, result

from grader.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_live_line(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = Progress(24, stream)
    progress("contract", None)
    assert stream.getvalue() == "\r\x1b[K[1/24] contract …"
    progress("contract", result(ROWS[0]))
    progress("forward", None)
    assert stream.getvalue().endswith("\r\x1b[K[2/24] forward …")
    progress.close()
    assert stream.getvalue().endswith("\r\x1b[K")
    assert "\n" not in stream.getvalue()


def test_progress_with_no_color_is_plain_even_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    progress = Progress(None, stream)
    progress("contract", None)
    progress("contract", result(ROWS[0], duration_s=1.25))
    progress.close()
    assert stream.getvalue() == "[1] contract: pass (1.2 s)\n"


def test_progress_estimates_once_some_checks_have_ended(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    clock = iter([0.0, 6.0, 6.0])
    monkeypatch.setattr("grader.cli.progress.time.monotonic", lambda: next(clock))
    stream = Terminal()
    progress = Progress(10, stream)
    for row in ROWS[:3]:
        progress(row.id, result(row))
    assert stream.getvalue().endswith("[3/10] lse-natural-log … about 14 s left")

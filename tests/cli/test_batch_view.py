"""How a batch is shown: plain lines where nobody watches, a table on a terminal, names that can't do anything."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from batch_factory import LAB, conditions, found

from grader.batch.jobs import Job, Step, plan
from grader.cli.batch_view import BatchView, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def made(count: int, **changes: Any) -> list[Job]:
    return plan([found(f"s{number}", **changes) for number in range(count)], {LAB: conditions()})


def test_view_without_a_terminal_writes_one_line_a_submission() -> None:
    stream = io.StringIO()
    with BatchView(stream, [LAB]) as view:
        view.planned(3, 1)
        for job in made(2):
            view.began(job, "")
            view.stepped(job, Step(check="small", state="started"))
            view.done(job.record("infrastructure", message="no\x1b[31m memory"))
            view.tick()
    assert stream.getvalue().splitlines() == [
        "lab01: 3 submissions, 1 with a result already",
        "[2/3] s0 lab01: infrastructure: no memory",
        "[3/3] s1 lab01: infrastructure: no memory",
    ]


def test_view_on_a_terminal_shows_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    running, done = made(2, folder=Path("/x"))
    with BatchView(stream, [LAB]) as view:
        view.planned(2, 0)
        view.began(running, "GPU 1")
        view.stepped(running, Step(check="small", state="ended"))
        view.stepped(running, Step(check="long", state="started"))
        view.done(done.record("refused", message="[red]a bomb[/red]"))
        view.tick()
    shown = stream.getvalue()
    assert "long, 1 checks done" in shown
    assert "on GPU 1" in shown
    assert "refused: [red]a bomb[/red]" in shown
    assert "1/2" in shown


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (59, "59 s"), (90, "2 min"), (7500, "2 h 05 min")])
def test_duration_is_said_in_two_units_at_most(seconds: float, said: str) -> None:
    assert duration(seconds) == said

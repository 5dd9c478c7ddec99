"""Shows a batch on stderr: a live table on a terminal, one plain line a submission elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from grader.cli.console import console, is_plain
from grader.report.text import count, one_line, points

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from grader.batch.jobs import Job, Step
    from grader.classroom.records import Record

SHOWN_DONE = 8
NAME_WIDTH = 32
REDRAW_S = 0.25


class _Now:
    """A submission that is being graded."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.check = "starting"
        self.ended = 0
        self.began = time.monotonic()


class BatchView:
    """A `grader.batch.events.Watcher`; a context manager that leaves the screen in order.

    Args:
        labs: ids of the graded labs, for the heading.
    """

    def __init__(self, stream: TextIO, labs: Sequence[str]) -> None:
        self._stream = stream
        self._live_wanted = stream.isatty() and not is_plain(stream)
        self._labs = ", ".join(lab[:5] for lab in labs)
        self._live: Live | None = None
        self._total = self._kept = self._done = self._graded = 0
        self._began = time.monotonic()
        self._drawn = 0.0
        self._running: dict[str, _Now] = {}
        self._last: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
            self._live = None

    # What a batch tells

    def planned(self, total: int, kept: int) -> None:
        self._total, self._kept, self._began = total, kept, time.monotonic()
        if self._live_wanted:
            from rich.live import Live

            # Redrawn by hand: a thread of the library's own would be one too many beside signals and locks.
            self._live = Live(self._table(), console=console(self._stream), auto_refresh=False, transient=False)
            self._live.start()
            return
        before = f", {kept} with a result already" if kept else ""
        self._say(f"{self._labs}: {total} submissions{before}")

    def began(self, job: Job, where: str) -> None:
        self._running[job.name] = _Now(where)

    def stepped(self, job: Job, step: Step) -> None:
        now = self._running.get(job.name)
        if now is not None:
            now.check = step.check
            now.ended += step.state == "ended"

    def done(self, record: Record) -> None:
        again = f" #{record.attempt}" if record.attempt > 1 else ""
        name = f"{record.student} {record.lab[:5]}{again}"
        self._running.pop(name, None)
        self._done += 1
        self._graded += record.outcome != "refused"
        said = outcome_of(record)
        self._last = [*self._last, (one_line(name, max_characters=NAME_WIDTH), said)][-SHOWN_DONE:]
        if self._live is None:
            self._say(f"[{self._kept + self._done}/{self._total}] {one_line(name)}: {said}{self._left()}")

    def tick(self) -> None:
        if self._live is not None and time.monotonic() - self._drawn >= REDRAW_S:
            self._drawn = time.monotonic()
            self._live.update(self._table(), refresh=True)

    # Drawing

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def _left(self) -> str:
        """How long it will take yet, once enough is done to tell."""
        left = self._total - self._kept - self._done
        # What is refused takes no time and says nothing about the rest.
        if self._graded < 3 or left <= 0:
            return ""
        return f", about {duration((time.monotonic() - self._began) / self._graded * left)} left"

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        done = self._kept + self._done
        table.add_row(Text(f"{self._labs}  {done}/{self._total}"), Text(_bar(done, self._total)), Text(self._state()))
        for name, said in self._last:
            table.add_row(Text(name), Text("done"), Text(said))
        for name, now in self._running.items():
            where = f" on {now.where}" if now.where else ""
            spent = duration(time.monotonic() - now.began)
            said = f"{one_line(now.check)}, {now.ended} checks done, {spent}{where}"
            table.add_row(Text(one_line(name, max_characters=NAME_WIDTH)), Text("running"), Text(said))
        return table

    def _state(self) -> str:
        return f"{duration(time.monotonic() - self._began)}{self._left()}"


def _bar(done: int, total: int, width: int = 20) -> str:
    filled = width * done // total if total else width
    return "#" * filled + "-" * (width - filled)


def duration(seconds: float) -> str:
    """``45 s``, ``12 min``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def outcome_of(record: Record) -> str:
    """One phrase on how a submission's grading ended."""
    if record.report is None:
        return f"{record.outcome}: {one_line(record.message)}"
    doubtful = record.failed_checks
    if doubtful:
        return f"{count(doubtful, 'check')} undecided by a fault of the machine or the grader"
    score = record.report.score
    return f"{points(score.points)}/{points(score.gradable)}"

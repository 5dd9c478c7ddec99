"""What a batch tells whoever watches it, and what grades its jobs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from grader.batch.jobs import Answer, Job, Step
from grader.classroom.records import Record


@dataclass(frozen=True)
class Began:
    """A job's grading has begun; `where` names the device or machine, empty for this machine's CPU."""

    job: Job
    where: str = ""


@dataclass(frozen=True)
class Stepped:
    """A check of a running job started or ended."""

    job: Job
    step: Step


@dataclass(frozen=True)
class Answered:
    """A job's grading is over."""

    job: Job
    answer: Answer


@dataclass(frozen=True)
class Tick:
    """Nothing happened for a moment."""


Event = Began | Stepped | Answered | Tick


class Backend(Protocol):
    """Grades jobs: this machine's processes, or a cluster."""

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """Grade every job and tell of it; exactly one `Answered` a job. Closing the iterator ends what still runs."""


class Watcher(Protocol):
    """Shows a person how far a batch has come."""

    def planned(self, total: int, kept: int) -> None:
        """`total` submissions, of which `kept` have a good result already."""

    def began(self, job: Job, where: str) -> None: ...

    def stepped(self, job: Job, step: Step) -> None: ...

    def done(self, record: Record) -> None: ...

    def tick(self) -> None: ...


class Unwatched:
    """Nobody watches."""

    def planned(self, total: int, kept: int) -> None:
        """Not shown."""

    def began(self, job: Job, where: str) -> None:
        """Not shown."""

    def stepped(self, job: Job, step: Step) -> None:
        """Not shown."""

    def done(self, record: Record) -> None:
        """Not shown."""

    def tick(self) -> None:
        """Not shown."""

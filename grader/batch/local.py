"""Grades the jobs of a batch on this machine: a process each, so many at a time, a GPU to one of them at a time."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grader.batch.client import GRACE_S, HUNG, TRIES, Running, WarmJudge
from grader.batch.conditions import Options
from grader.batch.events import Answered, Began, Event, Stepped, Tick
from grader.batch.jobs import Answer, Job, JobSpec
from grader.errors import InfrastructureError

TICK_S = 0.25
END_TIMEOUT_S = 30.0


@dataclass
class _Waiting:
    """A job that waits for its turn, and how often it was started already."""

    job: Job
    tries: int = 0


@dataclass
class _Slot:
    """A job that runs.

    Attributes:
        place: from 0; which share of the cores it has.
        device: which GPU it holds; None for a job that uses none.
        hung: it was ended because it outlived every limit.
    """

    waiting: _Waiting
    running: Running
    place: int
    device: str | None
    deadline: float
    hung: bool = False

    @property
    def job(self) -> Job:
        return self.waiting.job


def share_of_cores(place: int, width: int, *, narrow: bool) -> tuple[int, ...]:
    """The cores of the job at `place` of `width`; empty where there are fewer cores than jobs.

    A judge and its worker take turns, so one core does for both and their messages wake no other; and a submission
    that spins in many threads slows down no one else.

    Args:
        narrow: the lab's workers have one thread, so one core of the share will do.
    """
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // width
    if each == 0:
        return ()
    # Two batches on one machine shouldn't meet on the same core as long as there's another.
    turned = [cores[(os.getpid() + index) % len(cores)] for index in range(len(cores))]
    return tuple(turned[place * each : place * each + (1 if narrow else each)])


class LocalBackend:
    """See the module.

    Args:
        judge: forks the grading processes.
        options: of the batch.
        width: how many jobs run at a time.
        devices: values for CUDA_VISIBLE_DEVICES; each is lent to one job at a time. Without any, jobs that use a GPU
            take turns on the first visible one.
    """

    def __init__(self, judge: WarmJudge, options: Options, width: int, devices: tuple[str, ...] = ()) -> None:
        self._judge = judge
        self._options = options
        self._width = width
        self._devices = devices or ("",)
        self._slots: list[_Slot] = []

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """See `Backend.run`."""
        waiting = deque(map(_Waiting, jobs))
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or self._slots:
                    yield from self._fill(waiting, selector)
                    ready = selector.select(TICK_S)
                    if not ready:
                        yield Tick()
                    for key, _ in ready:
                        yield from self._advance(key.data, waiting, selector)
                    self._end_hung()
            finally:
                self._end_all(selector)

    def _fill(self, waiting: deque[_Waiting], selector: selectors.BaseSelector) -> Iterator[Event]:
        """Start jobs while there's room; one that waits for a GPU doesn't hold up those that need none."""
        passed_over: list[_Waiting] = []
        while waiting and len(self._slots) < self._width:
            next_one = waiting.popleft()
            device = self._free_device() if next_one.job.needs_gpu else None
            if next_one.job.needs_gpu and device is None:
                passed_over.append(next_one)
                continue
            yield self._start(next_one, device, selector)
        waiting.extendleft(reversed(passed_over))

    def _free_device(self) -> str | None:
        taken = {slot.device for slot in self._slots}
        return next((name for name in self._devices if name not in taken), None)

    def _start(self, waiting: _Waiting, device: str | None, selector: selectors.BaseSelector) -> Event:
        try:
            place = min(set(range(self._width)) - {slot.place for slot in self._slots})
            # The clock of a GPU's race runs on the host: it gets what there is.
            cores = () if device is not None else share_of_cores(place, self._width, narrow=waiting.job.narrow)
            running = self._judge.run(JobSpec.of(waiting.job, self._options, device or None, cores))
        except InfrastructureError as error:
            return Answered(waiting.job, Answer(failure=str(error)))
        waiting.tries += 1
        slot = _Slot(waiting, running, place, device, time.monotonic() + self._options.time_limit_s + GRACE_S)
        self._slots.append(slot)
        selector.register(running, selectors.EVENT_READ, slot)
        return Began(waiting.job, f"GPU {device}".rstrip() if device is not None else "")

    def _advance(self, slot: _Slot, waiting: deque[_Waiting], selector: selectors.BaseSelector) -> Iterator[Event]:
        # `read` closes the pipe of a job that has ended, and only its number can be taken off the selector then.
        descriptor = slot.running.fileno()
        for step in slot.running.read():
            yield Stepped(slot.job, step)
        answer = slot.running.answer
        if answer is None:
            return
        selector.unregister(descriptor)
        self._slots.remove(slot)
        if slot.hung:
            limit_s = self._options.time_limit_s + GRACE_S
            yield Answered(slot.job, Answer(failure=HUNG.format(limit_s)))
        elif answer.lost and slot.waiting.tries < TRIES:
            waiting.appendleft(slot.waiting)
        else:
            yield Answered(slot.job, answer)

    def _end_hung(self) -> None:
        for slot in self._slots:
            if not slot.hung and time.monotonic() > slot.deadline:
                slot.hung = True
                self._judge.kill(slot.running)

    def _end_all(self, selector: selectors.BaseSelector) -> None:
        """Ask every job to end, wait a moment, end those that don't."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for slot in self._slots:
                self._judge.kill(slot.running, number)
            deadline = time.monotonic() + END_TIMEOUT_S
            while self._slots and time.monotonic() < deadline:
                for key, _ in selector.select(TICK_S):
                    for _ in self._advance(key.data, deque(), selector):
                        pass


@contextlib.contextmanager
def local_backend(
    course: Path, options: Options, labs: Sequence[str], *, tmp: Path, log: Path, width: int, devices: tuple[str, ...]
) -> Iterator[LocalBackend]:
    """A backend with a warm judge of its own, which ends with the block."""
    judge = WarmJudge(course, labs, tmp=tmp.resolve(), log=log.resolve())
    try:
        judge.start()
        yield LocalBackend(judge, options, width, devices)
    finally:
        judge.stop()

"""Grades the jobs of a batch on this machine: a process each, so many at a time, few of them on one GPU."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.batch.client import GRACE_S, HUNG, TRIES, Running, WarmJudge
from grader.batch.conditions import Options
from grader.batch.events import Answered, Began, Event, Stepped, Tick
from grader.batch.jobs import Answer, Job, JobSpec
from grader.course import Course
from grader.errors import GraderError, InfrastructureError
from grader.sandbox.forked import WarmExecutor, warm_executor
from grader.sandbox.levels import choose_isolation
from grader.session import protected
from grader.target import choose_target

TICK_S = 0.25
END_TIMEOUT_S = 30.0
JOBS_A_DEVICE = 8
"""Its lock gives the card to one submission's windows at a time, a tenth of what grading it takes."""


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
        devices: values for CUDA_VISIBLE_DEVICES; each is lent to `JOBS_A_DEVICE` jobs at a time. Without any, jobs
            that use a GPU share the first visible one.
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
        """The device with the fewest jobs; None where each has as many as it may."""
        taken = Counter(slot.device for slot in self._slots)
        name = min(self._devices, key=lambda device: taken[device])
        return name if taken[name] < JOBS_A_DEVICE else None

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
    """A backend with a warm judge and a warm executor of its own, which end with the block."""
    with contextlib.ExitStack() as stack:
        executor = _warm_executor(course, options, labs, width, stack)
        judge = WarmJudge(course, labs, tmp=tmp.resolve(), log=log.resolve(), executor=executor)
        stack.callback(judge.stop)
        judge.start()
        yield LocalBackend(judge, options, width, devices)


def _warm_executor(
    course: Path, options: Options, labs: Sequence[str], width: int, stack: contextlib.ExitStack
) -> WarmExecutor | None:
    """What forks the executors of labs whose launchers are recorded; None where there are none, or it can't be had."""
    found = Course(course)
    recorded = [lab for lab in map(found.lab, labs) if lab.record]
    if not recorded:
        return None
    try:
        targets = [choose_target(found, lab, options.device, options.profile) for lab in recorded]
        isolation = choose_isolation(options.isolation, protect=protected(found, tuple(map(Path, options.protect))))
        device: Literal["cpu", "cuda"] = "cuda" if any(target.device == "cuda" for target in targets) else "cpu"
        return stack.enter_context(warm_executor(isolation, recorded, device, 2 * width))
    except GraderError:
        return None  # The jobs find the same, and say it.

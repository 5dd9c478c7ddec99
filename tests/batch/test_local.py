"""The backend of this machine, over a judge that only pretends: who runs when, and who is tried again."""

from __future__ import annotations

import itertools
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from batch_factory import conditions, found, options

from grader.batch.client import Running, WarmJudge
from grader.batch.events import Answered, Began, Event
from grader.batch.jobs import Answer, Job, JobSpec, plan
from grader.batch.local import JOBS_A_DEVICE, LocalBackend, share_of_cores
from grader.batch.protocol import Ended, line


class FakeJudge:
    """Answers each job by a script: what the pipe says before it closes."""

    def __init__(self, *scripts: bytes) -> None:
        self.scripts = list(scripts)
        self.specs: list[JobSpec] = []
        self.killed: list[int] = []
        self.open: dict[int, int] = {}

    def run(self, spec: JobSpec) -> Running:
        read_end, write_end = os.pipe()
        self.specs.append(spec)
        number = len(self.specs)
        script = self.scripts[min(number, len(self.scripts)) - 1]
        if script == b"hang":
            self.open[number] = write_end
        else:
            os.write(write_end, script)
            os.close(write_end)
        return Running(number, read_end)

    def kill(self, running: Running, number: signal.Signals = signal.SIGKILL) -> None:
        self.killed.append(int(number))
        end = self.open.pop(running.number, None)
        if end is not None:
            os.write(end, line(Ended(code=-int(number), cpu_s=0.0)))
            os.close(end)


GOOD = line(Answer(report="{}")) + line(Ended(code=0, cpu_s=1.5))
LOST = line(Ended(code=-9, cpu_s=0.1))


def jobs(count: int, **changes: Any) -> list[Job]:
    table = {"lab01_double": conditions(**changes)}
    return plan([found(f"s{number}", folder=Path("/tmp")) for number in range(count)], table)


def backend(judge: FakeJudge, width: int = 2, devices: tuple[str, ...] = ()) -> LocalBackend:
    stand_in: Any = judge
    assert set(dir(FakeJudge)) & {"run", "kill"} <= set(dir(WarmJudge))
    return LocalBackend(stand_in, options(), width, devices)


def answers(events: list[Event]) -> list[Answer]:
    return [event.answer for event in events if isinstance(event, Answered)]


def test_local_backend_every_job_is_answered_once() -> None:
    judge = FakeJudge(GOOD)
    events = list(backend(judge).run(jobs(5)))
    assert [answer.cpu_s for answer in answers(events)] == [1.5] * 5
    assert len(judge.specs) == 5


def test_local_backend_lost_job_is_tried_once_more() -> None:
    judge = FakeJudge(LOST, GOOD)
    (answer,) = answers(list(backend(judge).run(jobs(1))))
    assert answer.report == "{}"
    assert len(judge.specs) == 2


def test_local_backend_job_lost_twice_is_the_machines_failure() -> None:
    (answer,) = answers(list(backend(FakeJudge(LOST)).run(jobs(1))))
    assert answer.lost
    assert answer.failure == "The grading process was ended by SIGKILL."


def test_local_backend_pipe_without_an_end_names_the_judge() -> None:
    (answer,) = answers(list(backend(FakeJudge(b"")).run(jobs(1))))
    assert answer.failure == "The warm judge ended while the submission was graded."


def test_local_backend_a_gpu_serves_a_few_jobs_at_a_time_and_each_gpu_as_many() -> None:
    count = 2 * JOBS_A_DEVICE + 2
    judge = FakeJudge(*[b"hang"] * count)
    events = backend(judge, width=count, devices=("0", "1")).run(jobs(count, device="cuda"))
    began = [event for event in itertools.islice(events, 2 * JOBS_A_DEVICE) if isinstance(event, Began)]
    assert Counter(event.where for event in began) == {"GPU 0": JOBS_A_DEVICE, "GPU 1": JOBS_A_DEVICE}
    assert not isinstance(next(events), Began)
    assert {spec.cores for spec in judge.specs} == {()}
    events.close()


def test_local_backend_jobs_without_a_gpu_pass_those_that_wait_for_one() -> None:
    judge = FakeJudge(*[b"hang"] * JOBS_A_DEVICE, GOOD)
    mixed = [*jobs(JOBS_A_DEVICE + 1, device="cuda"), *jobs(1)]
    events = backend(judge, width=JOBS_A_DEVICE + 1, devices=("7",)).run(mixed)
    first = [next(events) for _ in range(JOBS_A_DEVICE + 2)]
    assert [spec.gpu for spec in judge.specs] == ["7"] * JOBS_A_DEVICE + [None]
    assert isinstance(first[-1], Answered)
    assert first[-1].job is mixed[-1]
    events.close()
    assert judge.killed[0] == signal.SIGTERM


def test_share_of_cores_is_exclusive_and_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 4, 5})
    narrow = [share_of_cores(place, 2, narrow=True) for place in (0, 1)]
    wide = [share_of_cores(place, 2, narrow=False) for place in (0, 1)]
    assert len(set(narrow)) == 2
    assert {len(cores) for cores in narrow} == {1}
    assert sorted(sum(wide, ())) == [2, 3, 4, 5]
    assert share_of_cores(0, 5, narrow=True) == ()

"""Opens what is benched: the submission and each baseline, in workers that stay for all shapes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from grader.baselines import Absent, find
from grader.baselines.opening import STAGED
from grader.bench.plans import BenchPlan, Entry
from grader.course import Course, Lab
from grader.judge.speed.model import Contestant
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.levels import Isolation
from grader.sandbox.stage import Staged, stage
from grader.sandbox.submission import TIME, Submission
from grader.sandbox.timed import TimedWorker
from grader.sandbox.trusted import TrustedModule
from grader.target import Target


class _Keeping(Submission):
    """Times in one worker, started at the first shape and again after a failure.

    A race for a grade takes a fresh worker each time, so that nothing is left of a call before. Here a person times
    their own kernel, and a worker a shape would cost more than the timing.
    """

    def timed(self, function: str, module: str | None = None) -> TimedWorker:
        client = self._ready(TIME, module or self._module)
        call_s = self.lab.limits.call_s
        warm_s = max(self.lab.limits.compile_s, call_s)
        return TimedWorker(client, function, timeout_s=call_s, warm_s=warm_s, lent=True)


class KeptSubmission(_Keeping):
    """The submission."""


class KeptBaseline(_Keeping, TrustedModule):
    """A baseline."""


@dataclass(frozen=True)
class Lane:
    """An entry with what runs it; `release` names the library that a baseline's kernels are of, and its version."""

    entry: Entry
    contestant: Contestant
    release: str = ""


@dataclass(frozen=True)
class Lanes:
    """What can be benched here, and what can't: entry's name → reason."""

    open: tuple[Lane, ...]
    absent: dict[str, str]
    staged: Staged


@contextmanager
def opened(
    plan: BenchPlan, course: Course, lab: Lab, folder: Path, target: Target, isolation: Isolation, dtype: str
) -> Iterator[Lanes]:
    """The lanes of a plan; their workers end with the block.

    Raises:
        UsageError: the submission's folder can't be read. CourseError: a provided file is missing.
    """
    lanes: list[Lane] = []
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        staged = stack.enter_context(stage(folder, lab, course.starter_dir(lab.id)))
        for entry in plan.entries:
            runs: Submission
            release = ""
            if not entry.baseline:
                runs = stack.enter_context(KeptSubmission(staged, lab, isolation, target.device, target.profile))
                contestant = Contestant(entry.name, runs, entry.function, entry.module, entry.kwargs)
            else:
                found = find(entry.baseline, entry.operation, target.device, dtype=dtype, sm=target.gpu_sm)
                if isinstance(found, Absent):
                    absent[entry.name] = found.reason
                    continue
                runs = stack.enter_context(KeptBaseline(STAGED, found.module, found.title, isolation, target.device))
                contestant = Contestant(entry.name, runs, found.function(entry.operation), found.module)
                release = found.release()
            lanes.append(Lane(entry, contestant, release))
        _start(lanes)
        yield Lanes(tuple(lanes), absent, staged)


def _start(lanes: list[Lane]) -> None:
    """Start all workers side by side: each loads torch and CUDA for seconds. What fails is told when it's benched."""

    def start(lane: Lane) -> None:
        contestant = lane.contestant
        if contestant.function in contestant.submission.recording:
            contestant.submission.executor(contestant.submission.device).warm()
            return
        with contextlib.suppress(WorkerFailure):
            contestant.submission.timed(contestant.function or "", contestant.module)

    with ThreadPoolExecutor(min(len(lanes), os.cpu_count() or 1) or 1) as pool:
        for _ in pool.map(start, lanes):
            pass

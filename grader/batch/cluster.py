"""Grades the jobs of a batch on a dask.distributed cluster: the same jobs, in warm judges on the cluster's machines.

The machines share a file system: the course, the submissions and the results have the same paths on all of them. A
worker that may use a GPU is started with its CUDA_VISIBLE_DEVICES and `--resources "GPU=1"`.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grader.batch.client import WarmJudge, run_to_end
from grader.batch.conditions import Conditions, Options, look
from grader.batch.events import Answered, Event, Tick
from grader.batch.jobs import Answer, Job, JobSpec
from grader.errors import InfrastructureError, UsageError
from grader.report.text import one_line

if TYPE_CHECKING:
    from distributed import Client, Future

TICK_S = 0.25
CONNECT_TIMEOUT_S = 30
GPU = "GPU"
"""Name of the resource; one unit is the right to use a worker's GPU alone."""

_judges: dict[str, WarmJudge] = {}
_judges_lock = threading.Lock()


# What runs on the cluster


def _judge_of(course: str, labs: Sequence[str]) -> WarmJudge:
    """This process's warm judge of a course; it ends with the process."""
    with _judges_lock:
        if course not in _judges:
            _judges[course] = WarmJudge(Path(course), labs)
            atexit.register(_judges[course].stop)
        return _judges[course]


def grade_there(spec: str, labs: Sequence[str]) -> str:
    """Grade one job on the machine that this is called on; a spec and an answer as JSON."""
    job = JobSpec.model_validate_json(spec)
    if not Path(job.folder).is_dir():
        return Answer(
            failure=f"{job.folder} isn't there on a worker: it doesn't share the file system."
        ).model_dump_json()
    return run_to_end(_judge_of(job.options.course, labs), job).model_dump_json()


def look_there(options: str, lab: str) -> str:
    """The conditions that a lab gets on the machine that this is called on, as JSON."""
    return look(Options.model_validate_json(options), lab).model_dump_json()


# What runs here


@contextlib.contextmanager
def connected(address: str) -> Iterator[Client]:
    """A client of the cluster's scheduler.

    Raises:
        UsageError: dask.distributed isn't installed. InfrastructureError: no scheduler, or no worker, answers.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(
            "--scheduler needs dask.distributed.",
            hint="Install it: pip install 'flash-attention-course-grader[cluster]'.",
        ) from error
    try:
        client = Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"No dask scheduler answers at {address}: {one_line(str(error))}.") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_TIMEOUT_S)
        except TimeoutError as error:
            raise InfrastructureError(
                f"The scheduler at {address} has no worker.", hint="Start some: dask worker ADDRESS."
            ) from error
        yield client


def look_on(client: Client, options: Options, lab: str) -> Conditions:
    """The conditions that the cluster's machines give.

    Raises:
        GraderError: as `grader.batch.conditions.look`.
    """
    wants = {GPU: 1} if options.device == "cuda" else None
    future = client.submit(look_there, options.model_dump_json(), lab, pure=False, resources=wants)
    return Conditions.model_validate_json(future.result())


class ClusterBackend:
    """A `grader.batch.events.Backend`."""

    def __init__(self, client: Client, options: Options, labs: Sequence[str]) -> None:
        self._client = client
        self._options = options
        self._labs = list(labs)

    def run(self, jobs: Sequence[Job]) -> Generator[Event, None, None]:
        """See `Backend.run`. Jobs that were sent and aren't wanted any more are called back."""
        ended: queue.SimpleQueue[Future] = queue.SimpleQueue()
        waiting: dict[Any, tuple[Job, Future]] = {}
        try:
            for job in jobs:
                future = self._send(job)
                waiting[future.key] = (job, future)
                future.add_done_callback(ended.put)
            while waiting:
                try:
                    done = ended.get(timeout=TICK_S)
                except queue.Empty:
                    yield Tick()
                    continue
                job, future = waiting.pop(done.key)
                yield Answered(job, _answer(future))
                future.release()
        finally:
            self._client.cancel([future for _, future in waiting.values()])

    def _send(self, job: Job) -> Future:
        spec = JobSpec.of(job, self._options)
        return self._client.submit(
            grade_there,
            spec.model_dump_json(),
            self._labs,
            pure=False,
            resources={GPU: 1} if job.needs_gpu else None,
        )


def _answer(future: Future) -> Answer:
    """What the machine said, or why it said nothing."""
    try:
        return Answer.model_validate_json(future.result())
    except Exception as error:  # noqa: BLE001 - dask raises here whatever happened there, its own failures included
        return Answer(failure=f"The cluster failed: {type(error).__name__}: {one_line(str(error))}.", lost=True)

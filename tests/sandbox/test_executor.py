"""The executor's process: started once and kept, lost by what a tape does and started anew, or forked of a warm one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sandbox_tools import wait_until
from small_submission import isolation, small_submission

pytest.importorskip("triton")

from grader.course import Limits
from grader.errors import InfrastructureError
from grader.sandbox import executor as executors
from grader.sandbox.executor import Executor
from grader.sandbox.failures import Crashed, TimedOut, WorkerFailure
from grader.sandbox.forked import ForkedWorker, WarmExecutor, launch_warm
from grader.sandbox.launch import LaunchSpec
from grader.sandbox.submission import Submission
from grader.sandbox.worker_process import LaunchedWorker
from grader.worker.wire import Tensor

SOURCE = """
import torch, triton
import triton.language as tl

@triton.jit
def double_kernel(x, out, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out + index, 2 * tl.load(x + index))

@triton.jit
def endless_kernel(x, out):
    value = tl.load(x)
    while value > 0:
        value = tl.load(x)
    tl.store(out, value)

def double(x):
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, BLOCK=16)
    return out
def endless(x):
    out = torch.empty_like(x)
    endless_kernel[(1,)](x, out)
    return out
def greedy(x):
    held = torch.zeros(1 << 29, dtype=x.dtype, device=x.device)
    double_kernel[(1,)](x, held, BLOCK=16)
    return held[:16].clone()
"""
RULES = {"parameters": ["x"], "allow": ["moves"]}
RECORD = dict.fromkeys(("double", "endless", "greedy"), RULES)
X = Tensor(np.arange(1, 17, dtype=np.float32))
MEMORY_MIB = 2048


def made(folder: Path) -> Submission:
    return small_submission(folder, SOURCE, runtime="triton", record=RECORD, memory_mib=MEMORY_MIB)


def doubles(submission: Submission) -> bool:
    return np.array_equal(submission.call("double", X).data, 2 * X.data)


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    with made(tmp_path_factory.mktemp("launched")) as found:
        yield found


def test_executor_stays_for_the_next_call(submission: Submission) -> None:
    assert doubles(submission)
    client = submission.executor("cpu").client()
    assert doubles(submission)
    assert submission.executor("cpu").client() is client


def test_kernel_that_never_ends_costs_one_call(submission: Submission) -> None:
    assert doubles(submission)
    before = submission.executor("cpu").client()
    with pytest.raises(TimedOut, match=r"No answer after 3 s \(the limit\) while running the kernels of `endless`"):
        submission.call("endless", X, timeout_s=3.0)
    assert doubles(submission)
    assert submission.executor("cpu").client() is not before


def test_executor_that_was_lost_is_started_anew(submission: Submission) -> None:
    assert doubles(submission)
    submission.executor("cpu").client().launched.kill()
    with pytest.raises(Crashed):
        submission.call("double", X)
    assert doubles(submission)


def test_executor_that_cannot_start_raises_where_it_is_needed() -> None:
    def failing(spec: LaunchSpec) -> LaunchedWorker:
        raise InfrastructureError("no processes left", hint="Try again.")

    executor = Executor(isolation(), Limits(), "cpu", None, launcher=failing)
    executor.warm()
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="no processes left"):
            executor.client()
    executor.close()


@pytest.fixture(scope="module")
def warm_process() -> Iterator[LaunchedWorker]:
    process = launch_warm(isolation(), Limits(memory_mib=MEMORY_MIB), "cpu", 2)
    yield process
    process.kill()


@pytest.fixture
def warm(warm_process: LaunchedWorker) -> Iterator[LaunchedWorker]:
    executors.use_warm(WarmExecutor(warm_process.sock, "cpu", MEMORY_MIB))
    yield warm_process
    executors.use_warm(None)


def worker_of(submission: Submission) -> object:
    return submission.executor("cpu").client().launched


def test_forked_executor_answers_and_its_loss_leaves_the_next_alone(warm: LaunchedWorker, tmp_path: Path) -> None:
    with made(tmp_path) as submission:
        assert doubles(submission)
        first = worker_of(submission)
        assert isinstance(first, ForkedWorker)
        with pytest.raises(TimedOut):
            submission.call("endless", X, timeout_s=3.0)
        assert wait_until(lambda: not Path(f"/proc/{first.pid}").exists())
        assert doubles(submission)
        second = worker_of(submission)
        assert isinstance(second, ForkedWorker)
        assert second.pid != first.pid


def test_forked_executor_leaves_nothing_in_the_warm_ones_scratch(warm: LaunchedWorker, tmp_path: Path) -> None:
    scratch = Path(f"/proc/{warm.worker_pid()}/root/tmp")

    def folders() -> list[str]:
        return [path.name for path in scratch.glob("executor-*")]

    with made(tmp_path) as submission:
        assert doubles(submission)
        (folder,) = folders()
        assert any((scratch / folder).iterdir())
    assert wait_until(lambda: not folders())
    assert not list(scratch.glob("kernels-*"))


def test_forked_executors_memory_is_limited(warm: LaunchedWorker, tmp_path: Path) -> None:
    with made(tmp_path) as submission:
        with pytest.raises(WorkerFailure, match="memory"):
            submission.call("greedy", X)
        assert doubles(submission)
        assert isinstance(worker_of(submission), ForkedWorker)


def test_dead_warm_executor_is_replaced_by_a_process_of_its_own(tmp_path: Path) -> None:
    process = launch_warm(isolation(), Limits(memory_mib=MEMORY_MIB), "cpu", 2)
    executors.use_warm(WarmExecutor(process.sock, "cpu", MEMORY_MIB))
    process.kill()
    try:
        with made(tmp_path) as submission:
            assert doubles(submission)
            assert isinstance(worker_of(submission), LaunchedWorker)
    finally:
        executors.use_warm(None)

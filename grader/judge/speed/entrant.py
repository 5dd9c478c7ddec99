"""A contestant with its worker open, in which the calls of several workloads are ready to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from grader.judge.speed.draws import Block, open_request
from grader.judge.speed.model import Contestant, InputSpec, Rules, Workload
from grader.judge.speed.runner import Runner, told
from grader.sandbox.device_lock import device_lock, device_shared
from grader.sandbox.timed import TimedWorker
from grader.worker.wire import Tensor


class Entrant:
    """Opens a contestant for some workloads; leaving its `with` block gives back what it took.

    A recorded function's tapes are made and its kernels compiled before the device is touched. What is done on the
    device outside of windows, first calls and how many calls fill a window, is done where nobody times meanwhile.

    Args:
        device: name of the device's lock. memory_bytes: of the device, for all workloads together.
        flush_bytes: written before each window, at least twice the L2 cache.

    Attributes:
        runners: one a workload.

    Raises:
        WorkerFailure: the submission can't be imported, raises, takes too long.
        InfrastructureError: a trusted contestant did.
    """

    def __init__(
        self,
        contestant: Contestant,
        workloads: Sequence[Workload],
        block: Block,
        rng: np.random.Generator,
        rules: Rules,
        *,
        device: str,
        memory_bytes: float,
        flush_bytes: int,
    ) -> None:
        self.contestant = contestant
        self.runners: list[Runner] = []
        with told(contestant), ExitStack() as opening:
            worker, bodies = opened(contestant, workloads)
            opening.enter_context(worker)
            worker.begin(block.normals, flush_bytes)
            timers = [worker.open(body) for body in bodies]
            for workload, timer in zip(workloads, timers, strict=True):
                runner = Runner(
                    contestant, timer, workload, block, rng, rules, memory_bytes=memory_bytes / len(workloads)
                )
                timer.compiled()
                if timer.choices:
                    with device_lock(device):
                        runner.tuned = tuple(timer.tune())
                with device_shared(device):
                    runner.settle()
                self.runners.append(runner)
            self._stack = opening.pop_all()

    def __enter__(self) -> Entrant:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def opened(contestant: Contestant, workloads: Sequence[Workload]) -> tuple[TimedWorker, list[dict[str, Any]]]:
    """The worker in which a contestant is timed, and what opens a timer for each workload.

    Raises:
        WorkerFailure: the module can't be imported, or a launcher does what its lab doesn't allow.
    """
    submission = contestant.submission
    name = contestant.function or workloads[0].function
    if name in submission.recording:
        bodies = [_taped(contestant, workload) for workload in workloads]
        limits = submission.lab.limits
        call_s = submission.default_timeout_s or limits.call_s
        client = submission.executor(submission.device).client()
        warm_s = max(limits.compile_s, call_s)
        return TimedWorker(client, name, timeout_s=call_s, warm_s=warm_s, lent=True), bodies
    module = contestant.module or workloads[0].module
    worker = submission.timed(name, module)
    return worker, [
        open_request(
            workload,
            module=module or submission.module,
            function=name,
            kwargs=workload.kwargs if contestant.kwargs is None else contestant.kwargs,
        )
        for workload in workloads
    ]


def _taped(contestant: Contestant, workload: Workload) -> dict[str, Any]:
    recorded = contestant.submission.record(
        contestant.function or workload.function,
        *(described(spec) for spec in workload.inputs if not spec.cotangent),
        module=contestant.module or workload.module,
        cotangents=[described(spec) for spec in workload.inputs if spec.cotangent],
        mutable=workload.mutable,
        **(workload.kwargs if contestant.kwargs is None else contestant.kwargs),
    )
    arguments = sum(not spec.cotangent for spec in workload.inputs)
    # Tensors among the keywords are the same for all calls.
    others = tuple(
        InputSpec(item.name, item.value.shape, item.value.dtype, kind="fixed", value=item.value.data)
        for item in recorded.inputs[arguments:]
    )
    return open_request(
        replace(workload, inputs=workload.inputs + others),
        tape=recorded.tape,
        rules=recorded.rules,
        names=[item.name for item in recorded.inputs],
    )


def described(spec: InputSpec) -> Tensor:
    """An input without memory of its own, for a launcher that sees shape and dtype only."""
    if spec.value is not None:
        return Tensor(np.ascontiguousarray(spec.value), requires_grad=spec.requires_grad)
    dtype = np.dtype(getattr(ml_dtypes, spec.dtype, spec.dtype))
    return Tensor(np.broadcast_to(np.zeros((), dtype), spec.shape), requires_grad=spec.requires_grad)

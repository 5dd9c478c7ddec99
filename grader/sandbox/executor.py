"""The executor as the judge holds it: a worker that runs recorded tapes and never sees a submission.

It starts in the background while the submission is imported and its launcher recorded, and stays for all checks. What a
tape does wrong is the submission's failure; what the executor itself does wrong is the grader's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from grader.course import Limits
from grader.errors import InfrastructureError
from grader.machine import ONE_THREAD
from grader.profiles import detect
from grader.sandbox.client import WorkerClient
from grader.sandbox.device_lock import device_shared
from grader.sandbox.failures import TimedOut, WorkerFailure
from grader.sandbox.forked import WarmExecutor
from grader.sandbox.launch import LaunchSpec, launch
from grader.sandbox.levels import Isolation
from grader.sandbox.worker_process import LaunchedWorker
from grader.worker.channel import BUSY_VARIABLE
from grader.worker.wire import Tensor

if TYPE_CHECKING:
    from grader.profiles import HardwareProfile

Tape = dict[str, Any]
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
MOST_AHEAD_BYTES = 1 << 28
"""Of a run's inputs: what is larger isn't laid out a second time on the CPU for the kernels to be compiled ahead."""
_warm: WarmExecutor | None = None


def use_warm(warm: WarmExecutor | None) -> None:
    """From now on this process and those that it forks get their executors from a warm one."""
    global _warm
    _warm = warm


Launcher = Callable[[LaunchSpec], LaunchedWorker]


@dataclass(frozen=True)
class Input:
    """One tensor of a call: the lab's name of it, its values, and whether the call may change it."""

    name: str
    value: Any
    mutable: bool = False

    def to_wire(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "mutable": self.mutable}


def _on_cpu(value: Any) -> Any:
    return replace(value, device="cpu") if isinstance(value, Tensor) else value


def _extent(tensor: Tensor) -> int:
    """Bytes of the storage that a tensor's strides reach over."""
    if tensor.strides is None:
        return int(tensor.data.nbytes)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return (tensor.offset + 1 + reach) * int(tensor.data.itemsize)


class Executor:
    """Starts an executor when it's first needed, and anew after one was lost.

    Args:
        device: `cpu` interprets kernels, `cuda` runs them compiled.
        target: the profile that a driver without a GPU answers for.
        busy: others wait for the cores.
    """

    def __init__(
        self,
        isolation: Isolation,
        limits: Limits,
        device: str,
        target: HardwareProfile | None,
        *,
        launcher: Launcher = launch,
        busy: bool = False,
    ) -> None:
        self._isolation, self._limits, self._device = isolation, limits, device
        self._target, self._launcher, self._busy = target, launcher, busy
        self._lock = ""
        self._client: WorkerClient | None = None
        self._starting: Future[WorkerClient] | None = None
        self.versions: dict[str, str] = {}

    def warm(self) -> None:
        """Begin to start it; returns at once."""
        if (self._client is not None and not self._client.closed) or self._starting is not None:
            return
        self._client = None
        starting: Future[WorkerClient] = Future()

        def start() -> None:
            try:
                starting.set_result(self._start())
            except BaseException as error:  # noqa: BLE001 - raised where the executor is first asked for something
                starting.set_exception(error)

        self._starting = starting
        threading.Thread(target=start, name="executor-start", daemon=True).start()

    def close(self) -> None:
        """End it. A later request would start another."""
        starting, self._starting = self._starting, None
        if starting is not None and starting.exception() is None:
            self._client = starting.result()
        if self._client is not None:
            self._client.close()
            self._client = None

    def run(
        self,
        tape: Tape,
        inputs: Sequence[Input],
        cotangents: Sequence[Any],
        rules: dict[str, Any],
        options: dict[str, Any],
        *,
        timeout_s: float,
        doing: str,
    ) -> dict[str, Any]:
        """Run a tape on values.

        Returns:
            the table of `grader.worker.execute.run`: ``value``, ``mutated``, and what the options ask for.

        Raises:
            WorkerFailure: what the tape does wrong. InfrastructureError: the executor can't be started.
        """
        body = {
            "tape": tape,
            "inputs": [item.to_wire() for item in inputs],
            "cotangents": list(cotangents),
            "rules": rules,
            "options": options,
        }
        tensors = [value for value in (*(item.value for item in inputs), *cotangents) if isinstance(value, Tensor)]
        if self._device != "cpu" and sum(map(_extent, tensors)) <= MOST_AHEAD_BYTES:
            on_cpu = {"inputs": [replace(item, value=_on_cpu(item.value)).to_wire() for item in inputs]}
            on_cpu |= {"cotangents": [_on_cpu(value) for value in cotangents]}
            self._request("ahead", body | on_cpu, self._limits.compile_s, doing)
        with self._computing():
            reply = self._request("execute", body, timeout_s, doing)
        return dict(reply)

    def compile(
        self, tape: Tape, inputs: Sequence[Input], rules: dict[str, Any], capabilities: Sequence[int], *, doing: str
    ) -> Callable[[], Any]:
        """Begin to compile a tape's launches for each compute capability, beside what is asked next.

        Returns:
            a function that waits for the reports and gives them; see `grader.kernels.compile`.
        """
        body = {
            "tape": tape,
            "inputs": [item.to_wire() for item in inputs],
            "rules": rules,
            "capabilities": list(capabilities),
        }
        number = self._request("compile", body, self._limits.compile_s, doing)
        begun = self._client

        def reports() -> Any:
            if self._client is not begun:  # It was lost meanwhile, and what it had begun with it.
                return self.compile(tape, inputs, rules, capabilities, doing=doing)()
            return self._request("compiled", {"number": number}, self._limits.compile_s, doing)

        return reports

    def _computing(self) -> contextlib.AbstractContextManager[None]:
        """A GPU that nobody times on meanwhile."""
        if self._device == "cpu":
            return contextlib.nullcontext()
        if not self._lock:
            gpu = detect().gpu
            self._lock = gpu.uuid if gpu is not None else self._device
        return device_shared(self._lock)

    def client(self) -> WorkerClient:
        """The running executor itself, for whoever times tapes in it.

        Raises:
            InfrastructureError: it can't be started.
        """
        return self._ready()

    def _request(self, kind: str, body: dict[str, Any], timeout_s: float, doing: str) -> Any:
        client = self._ready()
        try:
            return client.request(kind, body, timeout_s=timeout_s, doing=doing)
        except TimedOut as failure:
            failure.message = f"No answer after {timeout_s:g} s (the limit) while {doing}."
            raise
        except WorkerFailure:
            raise
        finally:
            if client.closed:
                self._client = None

    def _ready(self) -> WorkerClient:
        self.warm()
        if self._starting is not None:
            starting, self._starting = self._starting, None
            self._client = starting.result()
        assert self._client is not None
        return self._client

    def _start(self) -> WorkerClient:
        client = WorkerClient(self._worker(), self._limits, self._device, busy=self._busy)
        target = self._target.model_dump(mode="json") if self._target is not None and self._device == "cpu" else None
        try:
            self.versions = client.start("triton", self._device, modules=("execute.service",), target=target)
        except BaseException:
            client.close()
            raise
        return client

    def _worker(self) -> LaunchedWorker:
        """A fork of the warm executor where there is one, else a process of its own."""
        environment = {BUSY_VARIABLE: "1"} if self._busy else {}
        if _warm is not None and (self._device == "cpu" or _warm.device == "cuda"):
            gpu = os.environ.get(GPU_VARIABLE)
            # One that has died is missed in speed alone.
            with contextlib.suppress(InfrastructureError):
                forked = _warm.fork(self._device, environment | ({GPU_VARIABLE: gpu} if gpu is not None else {}))
                return cast(LaunchedWorker, forked)  # It has all of one that a client uses.
        return self._launcher(
            LaunchSpec(
                isolation=self._isolation,
                limits=self._limits,
                runtime="triton",
                device="cuda" if self._device == "cuda" else "cpu",
                env=environment | ONE_THREAD,
            )
        )

"""Executors that a warm one forks: started once a batch, before any submission is graded, in a sandbox of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

from grader.course import Lab, Limits
from grader.errors import InfrastructureError
from grader.machine import ONE_THREAD
from grader.sandbox.launch import LaunchSpec, launch
from grader.sandbox.levels import Isolation
from grader.sandbox.limits import MIB
from grader.sandbox.monitor import Output
from grader.sandbox.worker_process import ExitReason, LaunchedWorker
from grader.worker.forking import READY

START_S = 120.0
END_S = 10.0
_CREDENTIALS = struct.Struct("iII")


class ForkedWorker:
    """One forked executor, as `WorkerClient` uses a launched one.

    Attributes:
        sock: the judge's end of the protocol. pid: as this process sees it.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock, self.pid = sock, pid
        self._process = os.pidfd_open(pid)
        self._lock = threading.Lock()

    @property
    def output(self) -> Output:
        """What it prints goes to the warm one's output: tapes print nothing."""
        return Output(b"", truncated=False, total_bytes=0)

    def exit_reason(self) -> ExitReason:
        """Whether it ended; how is known to its parent alone."""
        ended, _, _ = select.select([self._process], [], [], END_S)
        return ExitReason("exited", "ended") if ended else ExitReason("running", "is still running")

    def kill(self) -> None:
        """End it. Idempotent."""
        with self._lock:
            if self._process < 0:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            os.close(self._process)
            self._process = -1
            self.sock.close()


@dataclass(frozen=True)
class WarmExecutor:
    """The process that forks, as every judge of a batch holds it; a judge's own forks inherit it.

    Attributes:
        control: the socket that takes requests; packets, so that several judges may share it.
        device: what its sandbox has; executors for a CPU may be had of one with a GPU too.
        memory_mib: what one executor may take.
    """

    control: socket.socket
    device: Literal["cpu", "cuda"]
    memory_mib: int

    @classmethod
    def from_text(cls, text: str) -> WarmExecutor:
        """From what `to_text` gave, in a process that inherited the socket."""
        descriptor, device, memory_mib = text.split(",")
        assert device in ("cpu", "cuda")
        return cls(socket.socket(fileno=int(descriptor)), cast(Literal["cpu", "cuda"], device), int(memory_mib))

    def to_text(self) -> str:
        return f"{self.control.fileno()},{self.device},{self.memory_mib}"

    def fork(self, device: str, environment: dict[str, str]) -> ForkedWorker:
        """A new executor.

        Args:
            device: what it computes on. environment: variables that it gets, e.g. which GPU it sees.

        Raises:
            InfrastructureError: the warm one has ended, or doesn't answer.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.settimeout(START_S)
        limit = self.memory_mib * MIB if device == "cpu" else 0
        packet = json.dumps({"environment": environment, "data_bytes": limit}).encode()
        try:
            with theirs:
                socket.send_fds(self.control, [packet], [theirs.fileno()])
            answer, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
            if answer != READY:
                raise OSError("it hung up")
            pid, _, _ = _CREDENTIALS.unpack(ancillary[0][2][: _CREDENTIALS.size])
        except (OSError, IndexError) as error:
            ours.close()
            raise InfrastructureError(f"The warm executor made no process: {error}.", hint="Try again.") from error
        ours.settimeout(None)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return ForkedWorker(ours, pid)


@contextlib.contextmanager
def warm_executor(
    isolation: Isolation, labs: Iterable[Lab], device: Literal["cpu", "cuda"], width: int
) -> Iterator[WarmExecutor]:
    """What forks executors for these labs, by the limits of the one that needs the most memory; ends with the block.

    Args:
        width: how many there may be at a time.

    Raises:
        GraderError: it can't be had here.
    """
    largest = max((lab.limits for lab in labs), key=lambda limits: limits.memory_mib)
    launched = launch_warm(isolation, largest, device, width)
    try:
        yield WarmExecutor(launched.sock, device, largest.memory_mib)
    finally:
        launched.kill()


def launch_warm(isolation: Isolation, limits: Limits, device: Literal["cpu", "cuda"], width: int) -> LaunchedWorker:
    """Start the process that forks, in a sandbox of its own; its `sock` is a `WarmExecutor`'s control.

    Args:
        limits: of one executor. width: how many there may be at a time.
    """
    times = width + 1
    together = limits.model_copy(
        update={name: getattr(limits, name) * times for name in ("memory_mib", "processes", "tmp_mib")}
    )
    return launch(
        LaunchSpec(
            isolation=isolation,
            limits=together,
            runtime="triton",
            device=device,
            env=ONE_THREAD,
            entry="forking",
            packets=True,
        )
    )

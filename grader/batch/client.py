"""Starts a warm judge and gives it jobs; one for the whole of a batch, or one for each process of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from grader.batch.jobs import Answer, JobSpec, Step
from grader.batch.protocol import Ended, Kill, Run, parse_line
from grader.errors import InfrastructureError
from grader.machine import ONE_THREAD
from grader.sandbox.forked import WarmExecutor
from grader.sandbox.spawner import spawn
from grader.session import LOG_VARIABLE

STOP_TIMEOUT_S = 15.0
TRIES = 2
"""A grading process that was killed, or died with the warm judge, is started once more before the machine is blamed."""
GRACE_S = 120.0
"""Seconds beyond a submission's own limit (staging, a worker's last start and end) after which a job counts as hung."""
HUNG = "The grading process hung: it was ended after {:g} s."
CHUNK_BYTES = 1 << 16


class Running:
    """A job in its grading process, as its starter sees it.

    Attributes:
        answer: set once the process has ended; `lost` when it ended without saying anything.
    """

    def __init__(self, number: int, pipe: int) -> None:
        self.number = number
        self.answer: Answer | None = None
        self._pipe = pipe
        self._rest = b""
        self._said: Answer | None = None
        self._ended: Ended | None = None

    def fileno(self) -> int:
        """The pipe; readable when there is something for `read`."""
        return self._pipe

    def read(self) -> list[Step]:
        """The steps told since the last call; blocks until something is there. Sets `answer` at the end."""
        chunk = os.read(self._pipe, CHUNK_BYTES)
        if not chunk:
            self.close()
            return []
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        steps = []
        for text in lines:
            message = parse_line(text)
            if isinstance(message, Step):
                steps.append(message)
            elif isinstance(message, Answer):
                self._said = message
            else:
                self._ended = message
        return steps

    def close(self) -> None:
        """Settle on an answer and let the pipe go."""
        if self.answer is not None:
            return
        os.close(self._pipe)
        cpu_s = self._ended.cpu_s if self._ended is not None else 0.0
        if self._said is not None:
            self.answer = self._said.model_copy(update={"cpu_s": cpu_s})
        else:
            self.answer = Answer(failure=_how_it_ended(self._ended), lost=True, cpu_s=cpu_s)


def _how_it_ended(ended: Ended | None) -> str:
    if ended is None:
        return "The warm judge ended while the submission was graded."
    if ended.code < 0:
        return f"The grading process was ended by {signal.Signals(-ended.code).name}."
    return f"The grading process ended with code {ended.code} and no answer."


class WarmJudge:
    """The server process, started anew when it has died. Several threads may use it.

    Args:
        tmp: folder for stages and scratch space; None for the system's.
        log: file that takes tracebacks and what the judge writes to stderr; None for this process's stderr.
        executor: forks the executors of all jobs; None lets each start its own.
    """

    def __init__(
        self,
        course: Path,
        labs: Sequence[str],
        *,
        tmp: Path | None = None,
        log: Path | None = None,
        executor: WarmExecutor | None = None,
    ) -> None:
        self._course = course
        self._labs = list(labs)
        self._tmp = tmp
        self._log = log
        self._executor = executor
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int:
        """The server's process id; 0 before the first job."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the server if it doesn't run; what it imports it imports while the caller goes on."""
        with self._lock:
            self._ensure()

    def run(self, spec: JobSpec) -> Running:
        """Have a job graded.

        Raises:
            InfrastructureError: the server can't be started.
        """
        with self._lock:
            number = next(self._numbers)
            packet = Run(number=number, spec=spec).model_dump_json().encode()
            read_end, write_end = os.pipe()
            try:
                for _ in range(2):
                    try:
                        socket.send_fds(self._ensure(), [packet], [write_end])
                        return Running(number, read_end)
                    except (BrokenPipeError, ConnectionResetError):
                        self._end()
            except BaseException:
                os.close(read_end)
                raise
            finally:
                os.close(write_end)
            os.close(read_end)
        raise InfrastructureError("The warm judge ends as soon as it is started.", hint="See log.txt of the results.")

    def kill(self, running: Running, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a job's process; nothing happens when it has ended, or the server has."""
        with self._lock:
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._control.send(Kill(number=running.number, signal=number).model_dump_json().encode())

    def stop(self) -> None:
        """End the server and every job in it."""
        with self._lock:
            self._end()

    def _ensure(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._control is None:
            self._start()
        assert self._control is not None
        return self._control

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {**os.environ, **ONE_THREAD}
        if self._tmp is not None:
            environ["TMPDIR"] = str(self._tmp)
        if self._log is not None:
            environ.setdefault(LOG_VARIABLE, str(self._log))
        command = [sys.executable, "-m", "grader.batch.server", str(theirs.fileno()), str(os.getpid())]
        command.append(self._executor.to_text() if self._executor is not None else "")
        passed = [theirs.fileno(), *([self._executor.control.fileno()] if self._executor is not None else [])]
        with theirs, contextlib.ExitStack() as stack:
            log = stack.enter_context(open(self._log, "ab", opener=_private)) if self._log is not None else None

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [*command, str(self._course), *self._labs],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environ,
                    pass_fds=passed,
                    # Ctrl-C in a terminal reaches its whole group; ending the jobs in order is our business.
                    start_new_session=True,
                )

            # The server dies with the thread that started it, so that thread must be one that stays.
            self._process = spawn(start)
        self._control = ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def run_to_end(judge: WarmJudge, spec: JobSpec) -> Answer:
    """Have one job graded and wait for its answer, with the same patience as a batch on this machine has.

    Raises:
        InfrastructureError: the server can't be started.
    """
    for attempt in range(1, TRIES + 1):
        running = judge.run(spec)
        answer = _wait(judge, running, spec.options.time_limit_s + GRACE_S)
        if not answer.lost or attempt == TRIES:
            break
    return answer


def _wait(judge: WarmJudge, running: Running, limit_s: float) -> Answer:
    poller = select.poll()
    poller.register(running.fileno(), select.POLLIN)
    deadline = time.monotonic() + limit_s
    hung = False
    while running.answer is None:
        if poller.poll(max(deadline - time.monotonic(), 0.1) * 1000):
            running.read()
        elif time.monotonic() >= deadline:
            hung = True
            judge.kill(running)
    return Answer(failure=HUNG.format(limit_s)) if hung else running.answer


def _private(path: str, flags: int) -> int:
    """The log holds what only an instructor may read."""
    return os.open(path, flags, 0o600)

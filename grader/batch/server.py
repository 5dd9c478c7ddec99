"""The warm judge: a process that has imported everything a grade needs, and forks once for each submission.

It never sees a submission and never starts a worker; it has one thread, so its children may fork and thread as they
like. Whoever started it (`grader.batch.client`) sends a job and the write end of a pipe; the child answers there, and
this process adds how the child ended. What a child has computed from the judge's inputs alone it leaves in a memfd, so
that the next ones need not (`grader.judge.memo`).

Nobody is left behind: this process dies with its starter and its children die with it, by parent-death signals;
sandboxes end with the child that made them, and what is orphaned on the way is adopted and reaped here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.batch.jobs import JobSpec
    from grader.judge.memo import Memo
    from grader.provenance import Provenance

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MAX_REQUEST_BYTES = 1 << 16


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone; end now if that has happened already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class Server:
    """The loop. `run` returns when the starter has hung up."""

    def __init__(self, control: socket.socket, made_by: Provenance, memo: Memo) -> None:
        self._control = control
        self._made_by = made_by
        self._memo = memo
        self._pipes: dict[int, int] = {}
        self._learned: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        # A child's end must wake the poll below, wherever it falls.
        self._woken, self._waker = os.pipe()
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)
        # Ctrl-C is the starter's business, which then ends the jobs one by one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()
            if self._control.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, 1)
                if not message:
                    break
                self._serve(message, fds)
        for pid in self._pipes:
            os.kill(pid, signal.SIGKILL)
        while self._pipes:
            self._reap(os.WUNTRACED)

    def _serve(self, message: bytes, fds: list[int]) -> None:
        from grader.batch.protocol import Kill, parse_request

        request = parse_request(message)
        if isinstance(request, Kill):
            pid = self._numbers.get(request.number)
            if pid is not None:
                os.kill(pid, request.signal)
            return
        (pipe,) = fds
        server, learned = os.getpid(), os.memfd_create("learned")
        pid = os.fork()
        if pid == 0:
            die_with(server)
            self._leave_to_child()
            _grade_and_exit(request.spec, self._made_by, pipe, self._memo, learned)
        self._pipes[pid], self._learned[pid], self._numbers[request.number] = pipe, learned, pid

    def _leave_to_child(self) -> None:
        """In the child: let go of what belongs to the server, other jobs' pipes above all."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for fd in (self._woken, self._waker, *self._pipes.values(), *self._learned.values()):
            os.close(fd)

    def _reap(self, flags: int = os.WNOHANG) -> None:
        """Wait for whatever has ended: jobs, and orphans of theirs that came here."""
        from grader.batch.protocol import Ended, line
        from grader.sandbox import rundir

        while True:
            try:
                pid, status, usage = os.wait4(-1, flags)
            except ChildProcessError:
                return
            if pid == 0:
                return
            pipe = self._pipes.pop(pid, None)
            if pipe is None:
                continue
            self._numbers = {number: job for number, job in self._numbers.items() if job != pid}
            if status != 0:
                # It was killed or crashed, so its folders and its control groups are still there.
                rundir.sweep()
            else:
                self._memo.read_added(self._learned[pid])
            os.close(self._learned.pop(pid))
            code = os.waitstatus_to_exitcode(status)
            _write_all(pipe, line(Ended(code=code, cpu_s=usage.ru_utime + usage.ru_stime)))
            os.close(pipe)
            if flags != os.WNOHANG and not self._pipes:
                return


def _noted(number: int, frame: FrameType | None) -> None:
    """Python writes to the wake-up descriptor only for signals that have a handler."""


def _write_all(pipe: int, data: bytes) -> None:
    """Write to a pipe whose reader may have gone; then nobody is interested."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(pipe, view) :]
    except BrokenPipeError:
        return


def _grade_and_exit(spec: JobSpec, made_by: Provenance, pipe: int, memo: Memo, learned: int) -> None:
    """The child's life: grade, answer, clean up. Never returns."""
    from grader.batch.grading import grade_job
    from grader.batch.protocol import line
    from grader.sandbox import rundir

    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        answer = grade_job(spec, made_by, lambda step: _write_all(pipe, line(step)), _log)
        rundir.leave()
        _write_all(pipe, line(answer))
        memo.write_added(learned)
        code = 0
    except KeyboardInterrupt:
        # Asked to end: the sandbox has been closed on the way here.
        rundir.leave()
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into the server's own loop
        _log(f"grading process {os.getpid()}: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def _log(text: str) -> None:
    """To stderr, which the starter leads into the batch's log."""
    with contextlib.suppress(OSError):  # A full disk costs lines of the log, never a grade.
        os.write(2, text.rstrip().encode(errors="replace") + b"\n")


def main() -> None:
    """``python -m grader.batch.server FD PARENT EXECUTOR COURSE LAB…``.

    FD is the control socket, PARENT the starter's pid, EXECUTOR a warm one as `WarmExecutor.to_text` writes it, or "".
    """
    fd, parent, executor, course, *labs = sys.argv[1:]
    die_with(int(parent))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=int(fd))
    control.set_inheritable(False)
    from grader.batch.warm import warm
    from grader.judge import memo
    from grader.sandbox import rundir
    from grader.sandbox.executor import use_warm
    from grader.sandbox.forked import WarmExecutor

    use_warm(WarmExecutor.from_text(executor) if executor else None)
    rundir.sweep()
    made_by = warm(course, labs, _log)
    try:
        Server(control, made_by, memo.enable()).run()
    finally:
        rundir.sweep()


if __name__ == "__main__":
    main()

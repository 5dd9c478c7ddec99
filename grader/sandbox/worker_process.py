"""A running worker as the judge holds it: socket, output, how it ended, and the certain end of its whole tree."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grader.sandbox import cgroups, limits, processes, uids
from grader.sandbox.levels import Isolation, Level
from grader.sandbox.monitor import Monitor, Output, Sample

KILL_TIMEOUT_S = 12.0
SETTLE_S = 0.02
EXIT_WAIT_S = 10.0
"""The socket of a worker that ended closes a moment before its wrapper is gone; on a busy machine that is no moment."""
SIGNAL_BASE = 128


@dataclass(frozen=True)
class ExitReason:
    """How a worker ended.

    Attributes:
        kind: `running` when it hasn't; `killed`: by the judge, on request or because a limit of its own was broken.
        detail: for a person, e.g. ``ended by SIGSEGV (signal 11)``.
        limit: what was exceeded, empty when nothing was.
        code: exit code or signal number.
    """

    kind: Literal["running", "exited", "signal", "oom", "killed"]
    detail: str
    limit: str = ""
    code: int = 0


def decode(code: int) -> ExitReason:
    """What a wrapper's exit code says: 128 + n stands for signal n, as bubblewrap and our supervisor have it."""
    number = -code if code < 0 else code - SIGNAL_BASE
    if number in set(signal.Signals):
        return ExitReason("signal", f"ended by {signal.Signals(number).name} (signal {number})", code=number)
    return ExitReason("exited", f"exited with code {code}", code=code)


class LaunchedWorker:
    """One worker. `kill` must be called in the end; a `with` block does it.

    Attributes:
        sock: the judge's end of the protocol.
        pid: of the outermost process (bubblewrap, or the supervisor).
        submission_dir: where the worker finds the staged submission; None when it has none.
    """

    def __init__(
        self,
        *,
        sock: socket.socket,
        process: subprocess.Popen[bytes],
        isolation: Isolation,
        submission_dir: str | None,
        group: cgroups.Group | None,
        lease: uids.UidLease | None,
        folder: Path,
        init_pid: int | None,
    ) -> None:
        self.sock = sock
        self.pid = process.pid
        self.isolation = isolation
        self.submission_dir = submission_dir
        self._process = process
        self._group = group
        self._lease = lease
        self._folder = folder
        self._init_fd = os.pidfd_open(init_pid) if init_pid is not None and processes.is_running(init_pid) else -1
        self._init_pid = init_pid
        self._monitor: Monitor | None = None
        self._lock = threading.RLock()
        self._killed = False
        self._final: ExitReason | None = None
        self._peak_bytes = 0

    def attach(self, monitor: Monitor) -> None:
        self._monitor = monitor
        monitor.start()

    @property
    def level(self) -> Level:
        return self.isolation.level

    @property
    def output(self) -> Output:
        """stdout and stderr so far, bounded."""
        assert self._monitor is not None
        return self._monitor.output()

    def tree(self) -> list[int]:
        """Processes of the worker, wrapper included."""
        if self._group is not None:
            return self._group.pids()
        found = set(processes.descendants(self.pid)) | {self.pid}
        if self._lease is not None and self.level == "uid":
            found |= set(processes.owned_by(self._lease.uid))
        return sorted(found)

    def worker_pid(self) -> int:
        """The Python process that runs the worker's main module, 0 when it's gone."""
        above = self._init_pid if self._init_pid is not None else self.pid
        return min(processes.children(above), default=0)

    def look(self, memory_bound: int | None) -> Sample:
        """Count what the tree uses now. Resident sets are cheap and count shared pages twice; near the bound the
        proportional sets decide."""
        pids = self.tree()
        memory = 0
        scratch_folder = self._folder / "scratch"
        scratch = 0 if self.level == "sealed" else processes.tree_bytes(scratch_folder)
        if memory_bound is not None:
            files = limits.tmpfs_bytes(Path(f"/proc/{self._init_pid}/root")) if self._init_pid is not None else 0
            memory = sum(map(processes.resident_bytes, pids)) + processes.memfd_bytes(pids) + files
            if memory > memory_bound:
                memory = sum(map(processes.proportional_bytes, pids)) + processes.unmapped_memfd_bytes(pids) + files
        return Sample(memory, processes.task_count(pids), scratch)

    def peak_bytes(self) -> int:
        """Most memory that the tree held at a time, since the start or the last `reset_peak`.

        From the control group (tmpfs and page cache count) where there is one, else from samples and the kernel's
        high-water mark of the main process.
        """
        if self._group is not None and (peak := self._group.peak_bytes()):
            return peak
        sampled = self._monitor.peak_bytes if self._monitor is not None else 0
        return max(self._peak_bytes, sampled, processes.peak_resident_bytes(self.worker_pid()))

    def resident_peak_bytes(self) -> int:
        """The kernel's high-water mark of the main process's resident set, not forgeable from inside; 0 when gone."""
        return processes.peak_resident_bytes(self.worker_pid())

    def resident_bytes(self) -> int:
        """What is resident in the main process now; 0 when it's gone."""
        return processes.resident_bytes(self.worker_pid())

    def reset_peak(self) -> int:
        """Start both peaks anew; returns the bytes resident in the main process now, the base of a difference."""
        pid = self.worker_pid()
        with contextlib.suppress(OSError):
            processes.reset_peak(pid)
        if self._group is not None:
            self._group.reset_peak()
        if self._monitor is not None:
            self._monitor.peak_bytes = 0
        return processes.resident_bytes(pid)

    def exit_reason(self, wait_s: float = EXIT_WAIT_S) -> ExitReason:
        """How the worker ended; waits up to `wait_s` for that."""
        with self._lock:
            if self._final is not None:
                return self._final
        if not self._killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
        return self._reason()

    def _reason(self) -> ExitReason:
        verdict = self._monitor.verdict if self._monitor is not None else None
        if verdict is not None:
            kind, limit = verdict
            return ExitReason("oom" if kind == "oom" else "killed", f"ended by the grader: it {limit}", limit)
        ended = self._process.poll()
        if self._group is not None and self._group.oom_kills() and ended not in (None, 0):
            allowed = "the memory limit of its control group was reached"
            return ExitReason("oom", f"ended by the kernel: {allowed}", allowed, signal.SIGKILL)
        if self._killed:
            return ExitReason("killed", "ended by the grader", code=signal.SIGKILL)
        if ended is None:
            return ExitReason("running", "still running")
        return decode(ended)

    def stop_tree(self) -> None:
        """SIGKILL every process of the worker and wait until none is left; resources stay until `kill`."""
        if self.level == "sealed":
            if self._group is not None:
                self._group.kill()
            self._stop_namespace()
        else:
            if self._group is not None:
                self._group.kill(spare=self.pid)
            self._stop_supervised()
            if self._group is not None:
                self._group.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT_S)

    def _stop_namespace(self) -> None:
        """End the first process of the pid namespace: the kernel kills the others and lets it go only after them."""
        self._signal(signal.SIGKILL)
        if self._init_fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
            select.select([self._init_fd], [], [], KILL_TIMEOUT_S)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def _stop_supervised(self) -> None:
        """Let the supervisor kill what it adopted; then look for strays, should it have been killed itself."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        clean_exit = self._process.poll() not in (None, -signal.SIGKILL)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while (strays := self._strays(thorough=not clean_exit)) and time.monotonic() < deadline:
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(SETTLE_S)

    def _strays(self, *, thorough: bool) -> list[int]:
        if self._lease is not None:
            return [pid for pid in processes.owned_by(self._lease.uid) if processes.is_running(pid)]
        if not thorough or self._group is not None:
            return []
        # The supervisor is gone without its work done. Every process started by the worker has its scratch folder in
        # its environment, unless it changed that on purpose.
        tag = f"TMPDIR={self._folder / 'scratch'}".encode()
        return [pid for pid in processes.tagged(tag) if processes.is_running(pid)]

    def kill(self) -> None:
        """End the whole tree, reap it, and give back everything: group, uid, folder, descriptors. Idempotent."""
        with self._lock:
            if self._final is not None:
                return
            if self._process.poll() is None:
                self._killed = self._reason().kind == "running"
            self._peak_bytes = self.peak_bytes()
            self.stop_tree()
            assert self._monitor is not None
            self._monitor.stop(KILL_TIMEOUT_S)
            self._final = self._reason()
            self._peak_bytes = max(self._peak_bytes, self.peak_bytes())
            if self._group is not None:
                self._group.remove()
                self._group = None
            if self._lease is not None:
                self._lease.release()
            if self._init_fd >= 0:
                os.close(self._init_fd)
                self._init_fd = -1
            self.sock.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> LaunchedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

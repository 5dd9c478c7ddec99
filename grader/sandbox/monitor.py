"""One thread a worker: drains its output, and where no control group counts memory or tasks, samples and kills."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SAMPLE_PERIOD_S = 0.05
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Output:
    """What a worker wrote to stdout and stderr: all of it, or the first and the last part.

    Attributes:
        data: untrusted bytes; never parsed, only shown.
        truncated: the middle was thrown away.
        total_bytes: how much was written.
    """

    data: bytes
    truncated: bool
    total_bytes: int


class BoundedOutput:
    """Keeps the first and the last half of `limit_bytes`; memory stays constant however much arrives."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(limit_bytes // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        self._lock = threading.Lock()

    def add(self, chunk: bytes) -> None:
        with self._lock:
            self._total += len(chunk)
            room = self._half - len(self._head)
            self._head += chunk[:room] if room > 0 else b""
            self._tail += chunk[max(room, 0) :]
            del self._tail[: -self._half]

    def get(self) -> Output:
        with self._lock:
            dropped = self._total - len(self._head) - len(self._tail)
            middle = f"\n[... {dropped} bytes left out ...]\n".encode() if dropped else b""
            return Output(bytes(self._head) + middle + bytes(self._tail), dropped > 0, self._total)


@dataclass(frozen=True)
class Sample:
    """One look at a worker's tree."""

    memory_bytes: int
    tasks: int
    scratch_bytes: int


@dataclass(frozen=True)
class Bounds:
    """Limits that the monitor enforces; None: something else does."""

    memory_bytes: int | None = None
    tasks: int | None = None
    scratch_bytes: int | None = None

    @property
    def any(self) -> bool:
        return not (self.memory_bytes is None and self.tasks is None and self.scratch_bytes is None)

    def broken_by(self, sample: Sample) -> tuple[str, str] | None:
        """(`oom` or `killed`, what was exceeded) of the first bound that `sample` breaks."""
        mib = 1 << 20
        if self.memory_bytes is not None and sample.memory_bytes > self.memory_bytes:
            return "oom", f"used {sample.memory_bytes // mib} MiB of memory, allowed {self.memory_bytes // mib} MiB"
        if self.tasks is not None and sample.tasks > self.tasks:
            return "killed", f"ran {sample.tasks} processes and threads, allowed {self.tasks}"
        if self.scratch_bytes is not None and sample.scratch_bytes > self.scratch_bytes:
            used, allowed = sample.scratch_bytes // mib, self.scratch_bytes // mib
            return "killed", f"filled {used} MiB with files, allowed {allowed} MiB"
        return None


class Monitor:
    """The thread.

    Args:
        pipe: read end of the worker's stdout and stderr; closed here.
        look: takes a sample, given the memory bound (a precise count is dear, and only needed near the bound).
        kill: called once when a bound is broken.
    """

    def __init__(
        self,
        pipe: int,
        output_bytes: int,
        bounds: Bounds,
        look: Callable[[int | None], Sample],
        kill: Callable[[], None],
    ) -> None:
        self._pipe = pipe
        self._output = BoundedOutput(output_bytes)
        self._bounds = bounds
        self._look = look
        self._kill = kill
        self.verdict: tuple[str, str] | None = None
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def output(self) -> Output:
        return self._output.get()

    def stop(self, timeout_s: float) -> None:
        """End the thread once what is in the pipe has been read."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def sample(self) -> None:
        """Look once, now."""
        sample = self._look(self._bounds.memory_bytes)
        self.peak_bytes = max(self.peak_bytes, sample.memory_bytes)
        broken = self._bounds.broken_by(sample)
        if broken is not None and self.verdict is None:
            self.verdict = broken
            self._kill()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        next_sample = time.monotonic() + SAMPLE_PERIOD_S
        try:
            while True:
                if poller.poll(SAMPLE_PERIOD_S * 1000 if self._bounds.any else 200):
                    chunk = os.read(self._pipe, CHUNK_BYTES)
                    if not chunk:
                        return
                    self._output.add(chunk)
                elif self._stop.is_set():
                    return
                if self._bounds.any and self.verdict is None and time.monotonic() >= next_sample:
                    self.sample()
                    next_sample = time.monotonic() + SAMPLE_PERIOD_S
        finally:
            os.close(self._pipe)

"""The one thread that starts workers."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class _Spawner:
    """A thread that starts processes and never ends.

    A parent-death signal fires when the *thread* that forked ends, so a worker started from a pool's thread would die
    with that thread.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="worker-spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    def call(self, function: Callable[[], T]) -> T:
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
                future.set_exception(error)

        self._jobs.put(job)
        return future.result()


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def spawn(function: Callable[[], T]) -> T:
    """What `function` returns, run in this process's spawner thread; its exception is raised here."""
    global _spawner
    with _spawner_lock:
        if _spawner is None or _spawner.pid != os.getpid():
            _spawner = _Spawner()
        spawner = _spawner
    return spawner.call(function)

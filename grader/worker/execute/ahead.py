"""Compiles a tape's kernels ahead, side by side, into Triton's cache on disk, where their first launch finds them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import triton
from triton.runtime.driver import driver

from ..tape import JSON
from .kernels import Kernels
from .lowering import cut_off


class Ahead:
    """Compiles launches in forked processes, as many at a time as there are cores; `wait` for them."""

    def __init__(self, kernels: Kernels, descriptions: Sequence[JSON]) -> None:
        self._kernels, self._waiting = kernels, list(descriptions)
        self._running: set[int] = set()
        self._compiled = 0
        while self._waiting and len(self._running) < len(os.sched_getaffinity(0)):
            self._start(self._waiting.pop())

    def wait(self) -> int:
        """Wait until all are in the cache; how many compiled. What doesn't is told by its launch."""
        while self._running:
            process = self._running.pop()
            _, status = os.waitpid(process, 0)
            self._compiled += status == 0
            if self._waiting:
                self._start(self._waiting.pop())
        return self._compiled

    def _start(self, description: JSON) -> None:
        process = os.fork()
        if process:
            self._running.add(process)
            return
        status = 1
        try:
            target = driver.active.get_current_target()
            cut_off()
            triton.compile(self._kernels.source(description), target=target, options=dict(description["options"]))
            status = 0
        finally:
            os._exit(status)

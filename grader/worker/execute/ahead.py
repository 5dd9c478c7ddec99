"""Compiles a tape's kernels ahead, side by side, into Triton's cache on disk, where their first launch finds them.

Neither this nor finding out what a tape launches needs the GPU, so nobody's windows have to end for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import triton
from triton.runtime.driver import driver

from ..tape import JSON
from .kernels import CannotLower, Kernels
from .lowering import cut_off


class Ahead:
    """Compiles launches in forked processes, as many at a time as there are cores; `wait` for them.

    What Triton can't lower, within limits, isn't compiled: its launch tells why.
    """

    def __init__(self, kernels: Kernels, descriptions: Sequence[JSON]) -> None:
        self._kernels, self._waiting = kernels, list[JSON]()
        self._target = driver.active.get_current_target()  # A forked process can't ask a GPU.
        for description in descriptions:
            with contextlib.suppress(CannotLower):
                kernels.lower(description)
                self._waiting.append(description)
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
            cut_off()
            source, options = self._kernels.source(description), dict(description["options"])
            triton.compile(source, target=self._target, options=options)
            status = 0
        finally:
            os._exit(status)

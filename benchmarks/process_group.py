"""All processes of one program, whatever they do to hide: by a control group, or by descent where none can be made.

The group counts CPU of every process that was ever in it, also of those that nobody waited for.
"""

from __future__ import annotations

import os
import resource
import secrets
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from grader.sandbox import processes

PARENTS = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup"))


class ProcessGroup:
    """A context manager. `join` runs in the first process, between fork and exec."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._own_cpu_s = 0.0
        self._root = 0

    def __enter__(self) -> Self:
        for parent in PARENTS:
            folder = parent / f"benchmark-{secrets.token_hex(4)}"
            with suppress(OSError):
                folder.mkdir()
                if (folder / "cpuacct.usage").exists() or (folder / "cpu.stat").exists():
                    self._folder = folder
                    break
                folder.rmdir()
        self._own_cpu_s = _children_cpu_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            with suppress(OSError):
                self._folder.rmdir()

    @property
    def exact(self) -> bool:
        """Whether the kernel counts; otherwise orphans that leave the family are missed."""
        return self._folder is not None

    def join(self) -> None:
        if self._folder is not None:
            (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def pids(self, root: int) -> list[int]:
        if self._folder is None:
            return [root, *processes.descendants(root)]
        return [int(line) for line in (self._folder / "cgroup.procs").read_text().split()]

    def resident_mib(self, root: int) -> tuple[float, float]:
        """(of `root` and its children, of all): the children of a batch live as long as it does."""
        self._root = root
        pids = self.pids(root)
        lasting = [pid for pid in pids if pid == root or processes.parent(pid) == root]
        return tuple(sum(map(processes.proportional_bytes, some)) / (1 << 20) for some in (lasting, pids))  # type: ignore[return-value]

    def left(self, patience_s: float) -> list[str]:
        """What still runs (zombies don't) after at most that long: pid and name."""
        deadline = time.monotonic() + patience_s
        while True:
            running = [pid for pid in self.pids(self._root) if processes.is_running(pid)] if self._root else []
            if not running or time.monotonic() > deadline:
                return [f"{pid} {_name(pid)}" for pid in running]
            time.sleep(0.1)

    def cpu_s(self) -> float:
        """CPU seconds of all of them so far; without a control group, of those that were waited for."""
        if self._folder is None:
            return _children_cpu_s() - self._own_cpu_s
        usage = self._folder / "cpuacct.usage"
        if usage.exists():
            return int(usage.read_text()) / 1e9
        stat = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) / 1e6


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "?"

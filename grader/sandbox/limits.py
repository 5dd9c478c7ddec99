"""What each limit of `course.Limits` becomes: control group, rlimit or sampling, and how the report names it."""

from __future__ import annotations

import os
from pathlib import Path

from grader.course import Limits
from grader.sandbox import processes

MIB = 1 << 20
DATA_SLACK_BYTES = 512 * MIB
"""Private writable mappings that an honest worker reserves and hardly touches: thread stacks, allocator arenas."""
WRAPPER_TASKS = 2
"""Bubblewrap's two processes, or the supervisor, live in the worker's control group."""


def rlimits(limits: Limits, *, device: str, memory_by_group: bool, tasks: int | None) -> dict[str, int]:
    """Resource limits (hard = soft) by their names in `resource`.

    RLIMIT_AS isn't among them: CUDA reserves tens of GB of address space. RLIMIT_DATA counts private writable
    mappings; it is left out with CUDA, whose driver maps more than it uses, and where a control group counts pages.

    Args:
        tasks: RLIMIT_NPROC, None where it wouldn't hold (uid 0) or would count strangers.
    """
    result = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file_size_mib * MIB,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_MEMLOCK": limits.memory_mib * MIB,
    }
    if not memory_by_group and device != "cuda":
        result["RLIMIT_DATA"] = limits.memory_mib * MIB + DATA_SLACK_BYTES
    if tasks is not None:
        result["RLIMIT_NPROC"] = tasks
    return result


def task_limit(limits: Limits, level: str) -> int | None:
    """RLIMIT_NPROC for a level.

    The kernel counts a user's tasks on the whole machine (in a user namespace of its own: in the sandbox), and not at
    all for uid 0.
    """
    if level in ("sealed", "uid"):
        return limits.processes
    if os.geteuid() == 0:
        return None
    # Our own processes count too, so the limit starts where they are now.
    return processes.task_count(processes.owned_by(os.getuid())) + limits.processes


def scratch_limit_bytes(limits: Limits) -> int:
    return limits.tmp_mib * MIB


def tmpfs_bytes(root: Path) -> int:
    """Bytes in the scratch file systems of a sealed worker, seen through `/proc/<pid>/root`."""
    total = 0
    for name in ("tmp", "dev/shm"):
        try:
            status = os.statvfs(root / name)
        except OSError:
            continue
        total += (status.f_blocks - status.f_bfree) * status.f_frsize
    return total

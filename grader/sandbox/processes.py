"""What /proc tells about processes: descendants, owners, memory. Read directly: psutil costs 10 ms a look."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

PR_SET_DUMPABLE = 4
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BLOCK_BYTES = 512


def hide_memory() -> None:
    """Keep other processes of this user out of this one's memory, environment and descriptors in /proc.

    For good: a process that isn't dumpable belongs to root there, and can't be traced without a capability.
    """
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, *(ctypes.c_ulong(0) for _ in range(4)))


def all_pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def _read(path: str) -> bytes:
    """Content of a file under /proc; empty when the process is gone or not ours to look at."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def parent(pid: int) -> int:
    """Parent of `pid`, 0 when it's gone."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def children(pid: int) -> list[int]:
    """Children of `pid`; from its own list where the kernel keeps one, else by a look at every process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        lists = [_listed(f"/proc/{pid}/task/{thread}/children") for thread in threads]
    except OSError:
        return [other for other in all_pids() if parent(other) == pid]
    return [child for some in lists for child in some]


def _listed(path: str) -> list[int]:
    """Raises OSError where the kernel has no such file, or the process is gone."""
    with open(path, "rb") as file:
        return list(map(int, file.read().split()))


def is_running(pid: int) -> bool:
    """Whether `pid` exists and is no zombie."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(fields) and fields[0] not in (b"Z", b"X")


def descendants(root: int) -> list[int]:
    """Children of `root`, their children and so on; without `root`."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        children.setdefault(parent(pid), []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            found.append(pid)
            queue.append(pid)
    return found


def owned_by(uid: int) -> list[int]:
    """Processes whose real or effective uid is `uid`."""
    found = []
    for pid in all_pids():
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"Uid:"):
                if str(uid).encode() in line.split()[1:3]:
                    found.append(pid)
                break
    return found


def tagged(entry: bytes) -> list[int]:
    """Processes that were started with the environment entry `entry` (``NAME=value``)."""
    return [pid for pid in all_pids() if pid != os.getpid() and entry in _read(f"/proc/{pid}/environ").split(b"\0")]


def task_count(pids: list[int]) -> int:
    """Threads of all `pids` together."""
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return total


def resident_bytes(pid: int) -> int:
    """Resident set of one process; shared pages count in full."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE_BYTES if len(fields) > 1 else 0


def peak_resident_bytes(pid: int) -> int:
    """The kernel's high-water mark of one process's resident set since its start or `reset_peak`."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def reset_peak(pid: int) -> None:
    """Set the high-water mark back to what is resident now.

    Raises:
        OSError: the process is gone or not ours.
    """
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def proportional_bytes(pid: int) -> int:
    """Proportional set of one process: a page that n processes share counts 1/n. Costs a walk of its page tables."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident_bytes(pid)


def memfd_bytes(pids: list[int]) -> int:
    """Bytes behind the memfds that `pids` hold open, each counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            try:
                if not os.readlink(path).startswith("/memfd:"):
                    continue
                status = os.stat(path)
            except OSError:
                continue
            sizes[status.st_dev, status.st_ino] = status.st_blocks * BLOCK_BYTES
    return sum(sizes.values())


def unmapped_memfd_bytes(pids: list[int]) -> int:
    """`memfd_bytes` less the mapped pages of such files, which the proportional sets count already."""
    mapped = 0
    for pid in pids:
        inside = False
        for line in _read(f"/proc/{pid}/smaps").splitlines():
            if line[:1] not in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ":
                inside = b"/memfd:" in line
            elif inside and line.startswith(b"Pss:"):
                mapped += int(line.split()[1]) * 1024
    return max(memfd_bytes(pids) - mapped, 0)


def tree_bytes(folder: Path) -> int:
    """Disk blocks of the regular files under `folder`, in bytes; what vanishes meanwhile counts nothing."""
    total = 0
    for path, _, names in os.walk(folder, onerror=None):
        for name in names:
            try:
                status = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                total += status.st_blocks * BLOCK_BYTES
    return total

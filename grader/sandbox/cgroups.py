"""Memory and process limits by a control group, version 2 or 1, where this process may make one.

Sources: kernel documentation, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "grade-"
RECORD = "cgroups"
REMOVE_TIMEOUT_S = 20.0
JOIN_SCRIPT = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 97; shift; done; shift; exec "$@"'
"""Shell text that joins the groups whose cgroup.procs are named before ``--`` and becomes the command after it."""

_serial = itertools.count()


@dataclass(frozen=True)
class Hierarchy:
    """Where groups can be made: `parents` maps ``memory`` and ``pids`` to folders (one and the same in version 2)."""

    version: int
    parents: dict[str, Path] = field(default_factory=dict)

    def label(self, controller: str) -> str | None:
        """``cgroup v1`` or ``cgroup v2`` where `controller` can be limited, else None."""
        return f"cgroup v{self.version}" if controller in self.parents else None


NONE = Hierarchy(0)


def _mounts() -> list[tuple[str, str, str, set[str]]]:
    """(root, mount point, filesystem type, super options) of each cgroup mount."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if kind[0] in ("cgroup", "cgroup2"):
            found.append((fields[3], fields[4], kind[0], set(kind[2].split(","))))
    return found


def _folder(root: str, mount: str, path: str) -> Path:
    """The folder of group `path` under a mount that shows the hierarchy from `root` on."""
    inside = path.removeprefix(root.rstrip("/")) if root != "/" else path
    folder = Path(mount) / inside.lstrip("/")
    return folder if ".." not in folder.parts and folder.is_dir() else Path(mount)


def _candidates() -> list[Hierarchy]:
    """Hierarchies worth a try, the likeliest first: below our own group, so that limits above us keep holding."""
    mounts = _mounts()
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            own[name] = path
    found = []
    for root, mount, kind, _ in mounts:
        if kind == "cgroup2":
            # A group that holds processes can't hand controllers to its children, so its ancestors are tried too.
            folder = _folder(root, mount, own.get("", "/"))
            while folder.is_relative_to(mount):
                found.append(Hierarchy(2, {"memory": folder, "pids": folder}))
                folder = folder.parent
    parents: dict[str, Path] = {}
    for root, mount, kind, options in mounts:
        for controller in ("memory", "pids"):
            if kind == "cgroup" and controller in options:
                parents[controller] = _folder(root, mount, own.get(controller, "/"))
    if parents:
        found.append(Hierarchy(1, parents))
        found.append(Hierarchy(1, {name: path for name, path in parents.items() if name == "memory"}))
    return found


@functools.cache
def hierarchy() -> Hierarchy:
    """The hierarchy in which a group could be made, limited and joined; `NONE` where that failed. Costs 3 ms once."""
    for candidate in _candidates():
        group = None
        try:
            group = Group.make(candidate, memory_bytes=64 << 20, processes=16)
            command = ["/bin/sh", "-c", JOIN_SCRIPT, "probe", *group.join_files, "--", "/bin/sh", "-c", ":"]
            if subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0:
                return candidate
        except (OSError, subprocess.SubprocessError):
            continue
        finally:
            if group is not None:
                group.remove()
    return NONE


class Group:
    """One worker's group: a folder a controller in version 1, one folder in version 2."""

    def __init__(self, version: int, folders: dict[str, Path]) -> None:
        self.version = version
        self.folders = folders

    @classmethod
    def make(
        cls, where: Hierarchy, *, memory_bytes: int, processes: int, record: Path | None = None, run: str = ""
    ) -> Group:
        """Make the group and set its limits.

        Args:
            processes: tasks (threads count) allowed at a time.
            record: a worker's folder; the group's paths are written there first, for a later sweep.

        Raises:
            OSError: it can't be made or a limit can't be set; nothing is left behind.
        """
        name = f"{PREFIX}{run or 'probe'}-{os.getpid()}-{next(_serial)}"
        group = cls(where.version, {controller: path / name for controller, path in where.parents.items()})
        if record is not None:
            (record / RECORD).write_text("".join(f"{path}\n" for path in sorted(set(group.folders.values()))))
        try:
            for path in set(group.folders.values()):
                path.mkdir()
            group._limit(memory_bytes, processes)
        except OSError:
            group.remove()
            raise
        return group

    def _limit(self, memory_bytes: int, processes: int) -> None:
        if "pids" in self.folders:
            (self.folders["pids"] / "pids.max").write_text(str(processes))
        memory = self.folders["memory"]
        if self.version == 2:
            (memory / "memory.max").write_text(str(memory_bytes))
            optional = {"memory.swap.max": "0"}
        else:
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            optional = {"memory.memsw.limit_in_bytes": str(memory_bytes)}
        for name, value in optional.items():
            # Absent where the kernel was built or booted without swap accounting.
            if (memory / name).exists():
                (memory / name).write_text(value)

    @property
    def join_files(self) -> list[str]:
        """Files that a process writes its pid to."""
        return sorted({str(path / "cgroup.procs") for path in self.folders.values()})

    def _memory_file(self, v2: str, v1: str) -> Path:
        return self.folders["memory"] / (v2 if self.version == 2 else v1)

    def oom_kills(self) -> int:
        """Processes that the kernel killed because the group reached its memory limit."""
        try:
            lines = self._memory_file("memory.events", "memory.oom_control").read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def peak_bytes(self) -> int:
        """Most memory charged at a time (page cache and tmpfs too); 0 where the kernel doesn't say (v2 before 5.19)."""
        try:
            return int(self._memory_file("memory.peak", "memory.max_usage_in_bytes").read_text())
        except OSError:
            return 0

    def reset_peak(self) -> bool:
        """Start the peak anew; False where the kernel can't (version 2: writing resets only the writer's own view)."""
        if self.version == 2:
            return False
        try:
            self._memory_file("", "memory.max_usage_in_bytes").write_text("0")
        except OSError:
            return False
        return True

    def pids(self) -> list[int]:
        """Processes of the group."""
        found: set[int] = set()
        for name in self.join_files:
            with contextlib.suppress(OSError):
                found.update(int(line) for line in Path(name).read_text().split())
        return sorted(found - {0})

    def kill(self, spare: int = 0) -> None:
        """SIGKILL everything in the group until it's empty; forks stop first, so this ends.

        Args:
            spare: pid of a process that lives on to reap the others. Zombies that nobody reaps count as tasks of
                their uid, and the next worker with that uid would find its limit reached.
        """
        if "pids" in self.folders:
            with contextlib.suppress(OSError):
                (self.folders["pids"] / "pids.max").write_text("0")
        if self.version == 2 and not spare:
            with contextlib.suppress(OSError):
                (self.folders["memory"] / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        while (pids := set(self.pids()) - {spare}) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def remove(self) -> bool:
        """Remove the group; True when it's gone. A group stays busy for some milliseconds after its last process."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        left = {path for path in self.folders.values() if path.exists()}
        while left and time.monotonic() < deadline:
            for path in list(left):
                with contextlib.suppress(OSError):
                    path.rmdir()
                if not path.exists():
                    left.discard(path)
            if left:
                time.sleep(0.001)
        return not left


def remove_recorded(worker: Path) -> None:
    """Kill and remove the groups that the dead judge of `worker` (a folder `w-<n>`) wrote down."""
    try:
        names = (worker / RECORD).read_text().splitlines()
    except OSError:
        return
    for name in names:
        path = Path(name)
        if not path.name.startswith(PREFIX) or not (path / "cgroup.procs").exists():
            continue
        version = 1 if not (path / "cgroup.controllers").exists() else 2
        controller = "pids" if (path / "pids.max").exists() and version == 1 else "memory"
        group = Group(version, {controller: path})
        group.kill()
        group.remove()

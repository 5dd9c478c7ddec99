"""Folders of one judge: stages, scratch space, uid locks; swept by the next judge when this one was killed.

Layout, under the system's temporary folder::

    grade-<euid>/            ours, mode 0711: a worker may pass through it but not list it
      run-<id>/lock          held (flock) while the judge lives
      run-<id>/w-<n>/        one worker: `cgroups` (paths that it made), scratch space, small files for its root
      run-<id>/stage-<x>/    one staged submission

A lock says whether a judge lives, not its pid: two containers may share the folder and not their process ids.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
import uuid
from pathlib import Path

from grader.errors import InfrastructureError
from grader.sandbox import cgroups, processes

TAG_VARIABLE = "GRADE_WORKER_RUN"
"""Environment variable of every worker; its value is the run's id, by which strays are found."""

_lock = threading.Lock()
_current: _Run | None = None


class _Run:
    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self.pid = os.getpid()
        self.workers = 0
        self.removed = False


def base_dir() -> Path:
    """The folder of this user's judges, made when missing.

    Raises:
        InfrastructureError: something of that name is there and isn't ours alone.
    """
    base = Path(tempfile.gettempdir()) / f"grade-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o711)
        base.chmod(0o711)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise InfrastructureError(
            f"{base}: expected a folder of our own that nobody else can write, found mode "
            f"{stat.filemode(status.st_mode)} of uid {status.st_uid}.",
            hint="Remove it, or set TMPDIR to another folder.",
        )
    return base


def current() -> Path:
    """The folder of this judge; the first call makes it and sweeps what dead judges left."""
    return _run().path


def run_id() -> str:
    return _run().path.name.removeprefix("run-")


def new_worker_dir() -> Path:
    """A fresh folder `w-<n>` (0711) for one worker."""
    run = _run()
    with _lock:
        run.workers += 1
        number = run.workers
    path = run.path / f"w-{number}"
    path.mkdir(mode=0o711)
    path.chmod(0o711)
    return path


def new_stage_dir() -> Path:
    """A fresh folder (0755) with a name that can't be guessed."""
    path = _run().path / f"stage-{uuid.uuid4().hex}"
    path.mkdir()
    path.chmod(0o755)
    return path


def sweep() -> None:
    """Kill and remove what judges that are gone left behind."""
    _sweep(base_dir())


def leave() -> None:
    """Remove this judge's folder now: for a process that ends without its exit handlers."""
    global _current
    with _lock:
        if _current is not None:
            _remove(_current)
            _current = None


def _run() -> _Run:
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            base = base_dir()
            _sweep(base)
            _current = _make(base)
            atexit.register(_remove, _current)
        return _current


def _make(base: Path) -> _Run:
    name = uuid.uuid4().hex[:16]
    fresh = base / f".new-{name}"
    fresh.mkdir(mode=0o711)
    fresh.chmod(0o711)
    lock_fd = os.open(fresh / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    # Renamed only once it is locked, so that no sweep takes it for a dead judge's.
    path = base / f"run-{name}"
    fresh.rename(path)
    return _Run(path, lock_fd)


def _remove(run: _Run) -> None:
    """At exit: end workers that nobody killed, with their groups, before the record of them goes."""
    if run.pid == os.getpid() and not run.removed:
        run.removed = True
        _sweep_run(run.path)
        os.close(run.lock_fd)


def _sweep(base: Path) -> None:
    """Kill and remove what judges that are gone left behind."""
    for path in base.glob("run-*"):
        try:
            fd = os.open(path / "lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            _sweep_run(path)
        finally:
            os.close(fd)
    stale_after_s = 3600
    for path in base.glob(".new-*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > stale_after_s:
                shutil.rmtree(path, ignore_errors=True)


def _sweep_run(path: Path) -> None:
    workers = list(path.glob("w-*"))
    for worker in workers:
        cgroups.remove_recorded(worker)
    if workers:
        tag = f"{TAG_VARIABLE}={path.name.removeprefix('run-')}".encode()
        for pid in processes.tagged(tag):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)

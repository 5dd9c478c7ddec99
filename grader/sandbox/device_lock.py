"""A device shared by the processes of a machine: one timed job at a time, and nothing beside it.

Two lock files are named by the GPU. Whoever computes on it shares the one, whoever times on it has it alone. To ask for
either, a process holds the other file (the queue), so that those who share can't hold up those who time for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from grader.errors import InfrastructureError

WAIT_S = 600.0
POLL_S = 0.003
FOLDER = "grade-locks"
SHARED = Path("/tmp")
"""The same for every process of a machine; a scheduler gives each job a TMPDIR of its own, and two may share a card."""

_alone: Counter[Path] = Counter()
"""How often this process has asked for a device to itself, and has it."""


def lock_path(device: str) -> Path:
    """The lock file of a device: a GPU's UUID, or ``cpu``. In the folder for temporary files where there's no /tmp."""
    shared = SHARED if os.access(SHARED, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    folder = shared / FOLDER
    return folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', device)}.lock"


@contextlib.contextmanager
def device_lock(device: str, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the device for a timed job; waits for others to end. A job that holds it may ask again.

    Raises:
        InfrastructureError: it's still held after `wait_s`, or the lock file can't be made.
    """
    path = lock_path(device)
    if _alone[path]:
        yield
        return
    with _taken(device, path, fcntl.LOCK_EX, wait_s):
        _alone[path] += 1
        try:
            yield
        finally:
            _alone[path] -= 1


@contextlib.contextmanager
def device_shared(device: str, wait_s: float = WAIT_S) -> Iterator[None]:
    """Compute on a device where nobody times meanwhile; the job that times may ask too.

    Raises:
        InfrastructureError: see `device_lock`.
    """
    path = lock_path(device)
    with contextlib.nullcontext() if _alone[path] else _taken(device, path, fcntl.LOCK_SH, wait_s):
        yield


@contextlib.contextmanager
def _taken(device: str, path: Path, kind: int, wait_s: float) -> Iterator[None]:
    deadline = time.monotonic() + wait_s
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(exist_ok=True)
            with contextlib.suppress(PermissionError):  # another user's folder, open to all already
                path.parent.chmod(0o1777)
            queue, lock = (_opened(each, stack) for each in (path.with_suffix(".queue"), path))
            if not (_locked(queue, fcntl.LOCK_EX, deadline) and _locked(lock, kind, deadline)):
                raise InfrastructureError(
                    f"Another timed job has held {device} for {wait_s:g} s.", hint=f"End it, or see who holds {path}."
                )
        except OSError as error:
            raise InfrastructureError(f"The lock of {device} can't be taken at {path}: {error}.") from error
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


def _opened(path: Path, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    stack.callback(os.close, descriptor)
    with contextlib.suppress(OSError):  # made under the umask; the next user must be able to lock it too
        os.fchmod(descriptor, 0o666)
    return descriptor


def _locked(descriptor: int, kind: int, deadline: float) -> bool:
    """Whether the file could be locked before the deadline."""
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True

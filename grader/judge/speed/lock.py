"""One timed job a device at a time: a lock file named by the GPU, which all processes of a machine share."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from grader.errors import InfrastructureError

WAIT_S = 600.0
FOLDER = "grade-locks"
SHARED = Path("/tmp")
"""The same for every process of a machine; a scheduler gives each job a TMPDIR of its own, and two may share a card."""


def lock_path(device: str) -> Path:
    """The lock file of a device: a GPU's UUID, or ``cpu``. In the folder for temporary files where there's no /tmp."""
    shared = SHARED if os.access(SHARED, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    folder = shared / FOLDER
    return folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', device)}.lock"


@contextlib.contextmanager
def device_lock(device: str, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the device for a timed job; waits for another to end. A job that holds it may ask again.

    Raises:
        InfrastructureError: it's still held after `wait_s`, or the lock file can't be made.
    """
    path = lock_path(device)
    try:
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user's folder, open to all already
            path.parent.chmod(0o1777)
        lock = FileLock(path, timeout=wait_s, mode=0o666, is_singleton=True)
        lock.acquire()
    except Timeout as error:
        raise InfrastructureError(
            f"Another timed job has held {device} for {wait_s:g} s.", hint=f"End it, or see who holds {path}."
        ) from error
    except OSError as error:
        raise InfrastructureError(f"The lock of {device} can't be taken at {path}: {error}.") from error
    with contextlib.suppress(OSError):  # made under the umask; the next user must be able to lock it too
        os.chmod(path, 0o666)
    try:
        yield
    finally:
        lock.release()

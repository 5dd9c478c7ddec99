"""User ids for workers: one each, held by a file lock that the kernel lets go when its judge dies."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from grader.errors import InfrastructureError

FIRST, LAST = 60706, 61183
"""A range that systemd's table of uids leaves unused."""
LOCK_DIRS = (Path("/run/grade-uids"), Path("/tmp/grade-uids"))
_held: set[int] = set()
_lock = threading.Lock()


class UidLease:
    """The exclusive use of one uid on this machine, until `release`."""

    def __init__(self, uid: int, lock_fd: int) -> None:
        self.uid = uid
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Give the uid back; a second call does nothing."""
        with _lock:
            if self._lock_fd >= 0:
                _held.discard(self.uid)
                os.close(self._lock_fd)
                self._lock_fd = -1


def _lock_dir() -> Path:
    """The folder of lock files, mode 0700: the same for every judge of this machine, whatever its TMPDIR.

    Raises:
        InfrastructureError: it can't be made, or isn't root's alone.
    """
    for path in LOCK_DIRS:
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        status = path.lstat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077 and path.is_dir() and not path.is_symlink():
            return path
    raise InfrastructureError(
        f"No folder for the locks of uids: {LOCK_DIRS[0]} and {LOCK_DIRS[1]} can't be made or aren't ours alone.",
        hint="Remove them, or mount /run writable.",
    )


def lease() -> UidLease:
    """Take the first free uid of the range.

    Raises:
        InfrastructureError: all are in use.
    """
    folder = _lock_dir()
    with _lock:
        for uid in _free():
            fd = os.open(folder / str(uid), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                continue
            _held.add(uid)
            return UidLease(uid, fd)
    raise InfrastructureError(
        f"All {LAST - FIRST + 1} uids of workers ({FIRST}-{LAST}) are in use.", hint="Grade with fewer jobs at a time."
    )


def _free() -> Iterator[int]:
    return (uid for uid in range(FIRST, LAST + 1) if uid not in _held)

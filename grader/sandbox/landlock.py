"""Landlock rules: a file allowlist, no TCP and no signals to the outside, for processes without namespaces.

The rules are made here and applied by the worker's bootstrap. Source: the kernel's userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
READ = EXECUTE | READ_FILE | READ_DIR
ALL = (1 << 16) - 1
TCP_BIND_CONNECT = 0b11
SCOPE_ABSTRACT_SOCKET_AND_SIGNAL = 0b11

SYSCALL_CREATE_RULESET = 444
VERSION_FLAG = 1
SIGNAL_SCOPE_ABI, TCP_ABI = 6, 4


@functools.cache
def abi() -> int:
    """The kernel's Landlock version, 0 where there is none or it's switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(SYSCALL_CREATE_RULESET, None, ctypes.c_size_t(0), VERSION_FLAG)
    return max(int(version), 0)


@dataclass(frozen=True)
class Ruleset:
    """What the bootstrap hands to the kernel.

    Attributes:
        size: bytes of the attribute structure that this kernel knows.
        files, network, scoped: rights that are denied unless a rule grants them.
        rules: (path, rights granted beneath it).
    """

    size: int
    files: int
    network: int
    scoped: int
    rules: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, object]:
        return {
            "size": self.size,
            "files": self.files,
            "network": self.network,
            "scoped": self.scoped,
            "rules": [list(rule) for rule in self.rules],
        }


def handled_files(version: int) -> int:
    """Every file right that a kernel of this ABI can withhold."""
    bits = 13
    for since, count in ((2, 14), (3, 15), (5, 16)):
        if version >= since:
            bits = count
    return (1 << bits) - 1


def carve(root: Path, hidden: Iterable[Path]) -> list[Path]:
    """Paths that together cover `root` without anything in `hidden`: rules grant and can't take away."""
    inside = [path for path in hidden if path == root or path.is_relative_to(root)]
    if root in inside:
        return []
    if not inside:
        return [root]
    pieces: list[Path] = []
    for child in sorted(root.iterdir()):
        if child.is_symlink():
            continue
        pieces += carve(child, inside)
    return pieces


def ruleset(
    *, readable: Iterable[Path], writable: Iterable[Path], devices: Iterable[Path], hidden: Iterable[Path]
) -> Ruleset:
    """Rules for this kernel.

    Args:
        readable: files and folders to read and execute.
        writable: folders in which everything is allowed.
        devices: device nodes to read, write and control.
        hidden: folders within `readable` whose content stays out of reach (their names can still be listed).
    """
    version = abi()
    handled = handled_files(version)
    hidden_paths = sorted({path.resolve() for path in hidden})
    rules: dict[str, int] = {}

    def grant(path: Path, rights: int) -> None:
        if path.exists():
            allowed = rights & handled if path.is_dir() else rights & handled & FILE_RIGHTS
            rules[str(path)] = rules.get(str(path), 0) | allowed

    for path in readable:
        pieces = carve(path.resolve(), hidden_paths) if path.exists() else []
        for piece in pieces:
            grant(piece, READ)
        if pieces and pieces != [path.resolve()]:
            grant(path.resolve(), READ_DIR)
    for path in writable:
        grant(path, ALL & ~IOCTL_DEVICE)
    for path in devices:
        grant(path, READ_FILE | WRITE_FILE | IOCTL_DEVICE | TRUNCATE)
    # Opened by the worker itself, so that it means the worker's own folder.
    # CUDA opens a file there with O_TRUNC when it starts.
    rules["/proc/self"] = (READ | WRITE_FILE | TRUNCATE) & handled
    return Ruleset(
        size=24 if version >= SIGNAL_SCOPE_ABI else 16 if version >= TCP_ABI else 8,
        files=handled,
        network=TCP_BIND_CONNECT if version >= TCP_ABI else 0,
        scoped=SCOPE_ABSTRACT_SOCKET_AND_SIGNAL if version >= SIGNAL_SCOPE_ABI else 0,
        rules=tuple(sorted(rules.items())),
    )


def judge_proc_files() -> list[Path]:
    """Files of /proc that libraries read at import and that tell nothing about other processes."""
    names = ("cpuinfo", "meminfo", "stat", "filesystems", "version", "uptime", "sys/kernel", "sys/vm", "driver")
    return [Path("/proc") / name for name in names if os.path.exists(f"/proc/{name}")]

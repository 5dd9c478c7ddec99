"""Which isolation this machine can give, by trying it; and what holds at each level.

`sealed`: bubblewrap, namespaces and a uid of its own. `uid`: started as root where namespaces are forbidden, a uid of
its own and a file allowlist (Landlock). `process`: a subprocess with rlimits, and Landlock and a system-call filter
where the kernel has them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from grader.errors import InfrastructureError, UsageError
from grader.sandbox import bubblewrap, cgroups, environment, landlock, seccomp
from grader.sandbox.environment import default_protect, readable_by_others, unreadable_by_others

Level = Literal["sealed", "uid", "process"]
LEVELS: tuple[Level, ...] = ("sealed", "uid", "process")
FORBID_VARIABLE = "GRADE_FORBID_NAMESPACES"
"""A testing aid: set to anything, it makes the machine look like one without namespaces. It can only weaken."""


@dataclass(frozen=True)
class Isolation:
    """The boundary that a run gets.

    Attributes:
        level: how strong it is.
        reason: why it isn't stronger, empty at `sealed`.
        limits: limit → the mechanism that enforces it.
        protect: files and folders that no worker may read, wherever they lie.
        bubblewrap: the program behind `sealed`, empty at other levels.
    """

    level: Level
    reason: str = ""
    limits: dict[str, str] = field(default_factory=dict)
    protect: tuple[Path, ...] = ()
    bubblewrap: str = ""


def choose_isolation(requested: str = "auto", protect: Iterable[Path] = ()) -> Isolation:
    """The strongest level that this machine gives, or the one asked for.

    Args:
        protect: what no worker may read (a course's `assignments`, `solutions`), besides this package itself and the
            course in its checkout.

    Raises:
        UsageError: no level is called that.
        InfrastructureError: the level asked for can't be had here; says why and what would help.
    """
    if requested != "auto" and requested not in LEVELS:
        raise UsageError(f"Unknown isolation level {requested!r}.", hint=f"Choose auto, {', '.join(LEVELS)}.")
    hidden = tuple(dict.fromkeys(path.absolute() for path in (*default_protect(), *protect)))
    wanted = LEVELS if requested == "auto" else (cast(Level, requested),)
    obstacles: list[str] = []
    for level in wanted:
        obstacle, binary = _obstacle(level, hidden)
        if not obstacle:
            # A weaker level that was asked for needs no excuse, but its reader should know that it was a choice.
            reason = "; ".join(obstacles) if requested == "auto" or level == "sealed" else f"`{level}` was asked for"
            return Isolation(level, reason, _mechanisms(level), hidden, binary)
        obstacles.append(f"no `{level}`: {obstacle}")
    raise InfrastructureError(f"Isolation level can't be had here: {'; '.join(obstacles)}.", hint=_hint(requested))


def _hint(requested: str) -> str:
    if requested == "sealed":
        return bubblewrap.UNPRIVILEGED_HINT + " Or choose `--isolation auto`."
    return "Choose `--isolation auto` to take the strongest level that works."


def _obstacle(level: Level, protect: tuple[Path, ...]) -> tuple[str, str]:
    """(why `level` can't be had, the bubblewrap program); the first is empty when it can."""
    if not sys.platform.startswith("linux"):
        return ("", "") if level == "process" else ("it needs Linux", "")
    if level == "sealed":
        return _sealed_obstacle(os.environ.get(FORBID_VARIABLE, ""))
    if level == "uid":
        return _uid_obstacle(protect), ""
    return "", ""


@functools.cache
def _sealed_obstacle(forbidden: str) -> tuple[str, str]:
    if forbidden:
        return f"${FORBID_VARIABLE} is set", ""
    if os.geteuid() == 0:
        # Mounts step over closed folders above the environment, but not over its own mode.
        closed = unreadable_by_others(environment.python_files().probes, ancestors=False)
        if closed is not None:
            return f"{closed} can't be read by another uid (try `chmod -R o+rX {closed}`)", ""
    binaries = bubblewrap.binaries()
    if not binaries:
        return "bubblewrap isn't installed", ""
    problems = []
    for binary in binaries:
        problem = bubblewrap.probe(binary)
        if not problem:
            return "", binary
        problems.append(problem)
    return f"bubblewrap can't make namespaces ({problems[0]})", ""


def _uid_obstacle(protect: tuple[Path, ...]) -> str:
    if os.geteuid() != 0:
        return "only root can change to a uid of its own"
    closed = unreadable_by_others(environment.python_files().probes, ancestors=True)
    if closed is not None:
        return f"Python can't be run by another uid because of {closed}; use a Python outside of it"
    if not landlock.abi():
        open_paths = readable_by_others(protect)
        if open_paths:
            first = open_paths[0]
            return f"any uid can read {first} and the kernel has no Landlock (try `chmod -R o-rwx {first}`)"
    return ""


def _mechanisms(level: Level) -> dict[str, str]:
    """Limit → mechanism, as `launch` will apply it at `level`."""
    groups = cgroups.hierarchy() if sys.platform.startswith("linux") else cgroups.NONE
    rules, filtered, root = landlock.abi(), seccomp.supported(), os.geteuid() == 0
    sampled = "RLIMIT_DATA + sampling"
    by_level = {
        "sealed": (
            "mount namespace",
            "network namespace",
            "pid namespace",
            "uid of its own" if root else "user namespace",
        ),
        "uid": (
            "landlock" if rules else "file modes",
            "seccomp" if filtered else "none",
            "uid",
            "uid of its own",
        ),
        "process": (
            "landlock" if rules else "none",
            "seccomp" if filtered else "none",
            "landlock" if rules >= landlock.SIGNAL_SCOPE_ABI else "none",
            "root without capabilities" if root else "the grader's own uid",
        ),
    }
    files, network, signals, identity = by_level[level]
    tasks = "sampling" if level == "process" and root else "RLIMIT_NPROC"
    return {
        "memory": groups.label("memory") or sampled,
        "processes": groups.label("pids") or tasks,
        "files": files,
        "network": network,
        "signals": signals,
        "identity": identity,
        "system calls": "seccomp" if filtered else "none",
        "scratch": "tmpfs" if level == "sealed" else "RLIMIT_FSIZE + sampling",
        "file size": "RLIMIT_FSIZE",
        "open files": "RLIMIT_NOFILE",
    }

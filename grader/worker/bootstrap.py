"""The first code of a worker: gives up every privilege, then hands over to the worker's main module.

`start.py` runs it under ``python -I`` with one argument: the number of a descriptor that holds its configuration (JSON,
made by `grader.sandbox.launch`). Standard library only. Nothing of a submission has been read when it ends.

Steps: become a supervisor where there is no pid namespace; descriptors; rlimits; uid or capabilities; Landlock;
system-call filter; one byte `READY` on the socket; `grader_worker.<entry>.main()`.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import resource
import signal
import struct
import sys
import time
from typing import Any

READY = b"\x06"
SOCKET_FD = 3
KILL_DEADLINE_S = 10.0

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
SECCOMP_MODE_FILTER = 2
CAPSET_NUMBERS = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION = 0x20080522
CAPABILITY_COUNT = 64
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_PATH_BENEATH = 1

_libc = ctypes.CDLL(None, use_errno=True)


class FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int) -> None:
    """prctl(2).

    Raises:
        OSError: the kernel refused.
    """
    words = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *words), f"prctl({option})")


def read_config(fd: int) -> dict[str, Any]:
    with open(fd, "rb") as file:
        file.seek(0)
        config: dict[str, Any] = json.load(file)
    return config


def place_descriptors(socket_fd: int) -> None:
    """Leave 0 (/dev/null), 1 and 2 (the judge's pipe) and 3 (the socket); close whatever else was inherited."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    if socket_fd != SOCKET_FD:
        os.dup2(socket_fd, SOCKET_FD)
    # Set where dup2 didn't: a program that the submission starts has no business with the socket.
    os.set_inheritable(SOCKET_FD, False)
    os.closerange(SOCKET_FD + 1, 1 << 16)


def apply_rlimits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def change_uid(uid: int) -> None:
    """Become `uid` for good; every capability goes with uid 0.

    Raises:
        OSError: it didn't take.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (uid, uid, uid) or os.getgroups():
        raise OSError(f"still uid {os.getresuid()}, gid {os.getresgid()}, groups {os.getgroups()}")


def empty_bounding_set() -> None:
    """Let no later exec bring a capability back, for a process that stays uid 0."""
    for number in range(CAPABILITY_COUNT):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:
            break


def drop_capabilities() -> None:
    """Give up every capability, inheritable and ambient ones too.

    Raises:
        OSError: the kernel refused.
    """
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    empty = struct.pack("6I", 0, 0, 0, 0, 0, 0)
    _check(_libc.syscall(CAPSET_NUMBERS[os.uname().machine], header, empty), "capset")


def apply_landlock(ruleset: dict[str, Any]) -> None:
    """Confine this process and its children to the rules of `grader.sandbox.landlock.Ruleset`."""
    attributes = struct.pack("QQQ", ruleset["files"], ruleset["network"], ruleset["scoped"])[: ruleset["size"]]
    size = ctypes.c_size_t(len(attributes))
    fd = _check(_libc.syscall(LANDLOCK_CREATE, attributes, size, 0), "landlock_create_ruleset")
    for path, rights in ruleset["rules"]:
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # A path that this uid can't reach needs no rule.
        rule = struct.pack("=Qi", rights, parent)
        _check(_libc.syscall(LANDLOCK_ADD, fd, LANDLOCK_PATH_BENEATH, rule, 0), f"landlock_add_rule({path})")
        os.close(parent)
    _check(_libc.syscall(LANDLOCK_RESTRICT, fd, 0), "landlock_restrict_self")
    os.close(fd)


def apply_seccomp(program: bytes) -> None:
    filter_program = FilterProgram(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter_program))


def confine(config: dict[str, Any]) -> None:
    """Give up everything that the configuration names."""
    os.umask(0o022)
    # When the machine runs out of memory, the worker goes before the judge does.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    apply_rlimits(config["rlimits"])
    if config["uid"] is not None:
        change_uid(config["uid"])
    else:
        empty_bounding_set()
    drop_capabilities()
    # A change of uid makes /proc/self unreadable to oneself; libraries look at maps and fd there.
    prctl(PR_SET_DUMPABLE, 1)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if config["supervise"]:
        # Last, because a change of uid clears it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != config["supervisor_pid"]:
            os._exit(0)
    if config["landlock"] is not None:
        apply_landlock(config["landlock"])
    if config["seccomp"]:
        apply_seccomp(base64.b64decode(config["seccomp"]))


def prepare_imports(directories: list[str]) -> None:
    """Put `directories` on the path (the first holds grader_worker) and forget an editable install of the grader."""
    sys.path[:0] = directories[:1]
    sys.path += [path for path in directories[1:] if path not in sys.path]
    sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]


def _descendants() -> list[tuple[int, int]]:
    """(pid, process group) of every process below this one, from /proc."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[2])))
    found: list[tuple[int, int]] = []
    queue = [os.getpid()]
    while queue:
        for pid, group in children.get(queue.pop(), ()):
            found.append((pid, group))
            queue.append(pid)
    return found


def _signal_uid(uid: int, number: int) -> None:
    """Signal every process of `uid` at once, from a child that becomes `uid` (kill(-1) spares its caller)."""
    try:
        child = os.fork()
    except BlockingIOError:
        return  # The judge has stopped all forks in our control group, and kills there by itself.
    if child == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, number)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def kill_descendants(uid: int | None) -> None:
    """SIGKILL everything below this process and every process of `uid`, until nothing is left to reap."""
    deadline = time.monotonic() + KILL_DEADLINE_S
    number = signal.SIGSTOP  # First stop them all, so that a process that forks faster than we look stands still.
    while time.monotonic() < deadline:
        below = _descendants()
        # A group is signalled in one step, so a process that forks and exits faster than we look can't slip through.
        groups = {-group for _, group in below if group != os.getpgrp()}
        for target in (*groups, *(pid for pid, _ in below)):
            try:
                os.kill(target, number)
            except ProcessLookupError:
                continue
        if uid is not None:
            _signal_uid(uid, number)
        number = signal.SIGKILL
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def supervise(config: dict[str, Any]) -> None:
    """Fork: the child returns and becomes the worker; the parent stays, adopts orphans and kills them all at the end.

    The end is the worker's exit, SIGTERM from the judge, or the judge's death. The parent's exit code is the worker's,
    or 128 + its signal.
    """
    signals = {signal.SIGTERM, signal.SIGCHLD}
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    config["supervisor_pid"] = os.getpid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        os.setsid()
        return
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 1 << 16)
    os._exit(_watch(child, config, signals))


def _watch(child: int, config: dict[str, Any], signals: set[signal.Signals]) -> int:
    code = 128 + signal.SIGKILL
    ended = os.getppid() != config["judge_pid"]
    while not ended:
        if signal.sigwait(signals) == signal.SIGTERM:
            break
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                ended = True
            if pid == 0 or ended:
                break
    kill_descendants(config["uid"])
    return code


def main() -> None:
    """Entry point; its configuration is described at `grader.sandbox.launch.bootstrap_config`."""
    config = read_config(int(sys.argv[1]))
    if config["supervise"]:
        supervise(config)
    place_descriptors(config["socket_fd"])
    confine(config)
    os.chdir(config["directory"])
    os.makedirs(os.environ["HOME"], exist_ok=True)
    prepare_imports(config["path"])
    os.write(SOCKET_FD, READY)
    module = importlib.import_module(f"grader_worker.{config['entry']}")
    # From here on the package imports its own modules through its own path; a submission's files can't be mixed up
    # with them.
    sys.path.remove(config["path"][0])
    module.main()

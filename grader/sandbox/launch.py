"""Starts a worker process behind the chosen isolation, and ends it for sure.

`launch` returns once the worker has given up its privileges (it says so with one byte) and before it has read a byte
of a submission. What follows on the socket is the protocol of `grader.worker.wire`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import py_compile
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grader.course import Limits
from grader.errors import InfrastructureError
from grader.machine import blame_the_machine
from grader.sandbox import bubblewrap, cgroups, environment, landlock, limits, processes, rundir, seccomp, uids
from grader.sandbox.environment import (
    CPU_TOPOLOGY,
    ETC_FILES,
    SYSTEM_DIRS,
    cuda_devices,
    cuda_library_dirs,
    variables,
)
from grader.sandbox.levels import Isolation, choose_isolation
from grader.sandbox.monitor import Bounds, Monitor
from grader.sandbox.spawner import spawn
from grader.sandbox.worker_process import ExitReason, LaunchedWorker
from grader.worker.bootstrap import READY

__all__ = ["ExitReason", "Isolation", "LaunchSpec", "LaunchedWorker", "choose_isolation", "launch"]

READY_TIMEOUT_S = 30.0
WORKER_PACKAGE = "grader_worker"
WORKER_SOURCE = Path(__file__).resolve().parent.parent / "worker"
PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
SMALL_ETC_FILES = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
_copy_lock = threading.Lock()


@dataclass(frozen=True)
class LaunchSpec:
    """One worker to start.

    Attributes:
        stage: folder of a staged submission; None for a worker that never sees one. The worker finds its path in
            $GRADE_SUBMISSION_DIR.
        runtime: heaviest library that the worker is to load first; passed on in $GRADE_RUNTIME.
        env: extra variables, e.g. ``MALLOC_PERTURB_=1``.
        entry: module of `grader_worker` whose `main()` runs.
        extra_modules: further files to put beside the worker's own modules (the tests' small workers).
        packets: its socket carries packets, for a worker that several judges ask.
    """

    isolation: Isolation
    limits: Limits = field(default_factory=Limits)
    stage: Path | None = None
    runtime: Literal["numpy", "torch", "triton"] = "numpy"
    device: Literal["cpu", "cuda"] = "cpu"
    env: dict[str, str] = field(default_factory=dict)
    entry: str = "main"
    extra_modules: tuple[Path, ...] = ()
    packets: bool = False


def _worker_package(target: Path, extra: tuple[Path, ...]) -> Path:
    """Copy the worker's modules to `target`/grader_worker, readable by any uid whatever the checkout's modes."""
    if target.exists():
        return target
    fresh = target.with_name(f"{target.name}.new")
    try:
        _copy_worker(fresh, extra)
        fresh.rename(target)
    except OSError as error:
        # Half a package would fail later, and look like the submission's fault.
        shutil.rmtree(fresh, ignore_errors=True)
        blame_the_machine(error)
        raise
    return target


def _copy_worker(target: Path, extra: tuple[Path, ...]) -> None:
    package = target / WORKER_PACKAGE
    package.mkdir(parents=True)
    for folder in (WORKER_SOURCE, *(path for path in sorted(WORKER_SOURCE.rglob("*")) if path.is_dir())):
        into = package / folder.relative_to(WORKER_SOURCE)
        into.mkdir(exist_ok=True)
        for path in folder.glob("*.py*"):
            # copy2 keeps the time of change, by which a compiled file is known to belong to its source.
            shutil.copy2(path, into / path.name)
            (into / path.name).chmod(0o644)
        into.chmod(0o755)
    for path in extra:
        shutil.copy2(path, package / path.name)
    target.chmod(0o755)


_laid_ahead: Path | None = None


def lay_ahead() -> None:
    """Copy and compile the worker's modules once for all workers of this process and of those that it forks.

    Pays for a process that forks judges: each would copy them again, and each worker compile them where Python writes
    no compiled files (PYTHONDONTWRITEBYTECODE, a checkout that can't be written to).
    """
    global _laid_ahead
    target = _worker_package(rundir.current() / "worker", ())
    package = target / WORKER_PACKAGE
    for path in package.rglob("*.py"):
        compiled = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), str(compiled), doraise=True, invalidation_mode=unchecked)
        compiled.chmod(0o644)
        compiled.parent.chmod(0o755)
    _laid_ahead = target


def _etc_files(folder: Path, uid: int) -> Path:
    """Minimal account files for a sealed root: who the worker is, and no look-ups beyond files."""
    folder.mkdir()
    (folder / "passwd").write_text(f"worker:x:{uid}:{uid}::/tmp/home:/bin/sh\n")
    (folder / "group").write_text(f"worker:x:{uid}:\n")
    (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def _memfd(name: str, content: bytes) -> int:
    fd = os.memfd_create(name)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _landlock(spec: LaunchSpec, worker: Path, scratch: Path) -> dict[str, object] | None:
    """Rules that show a worker without a mount namespace what a sealed one would see; None without Landlock."""
    if spec.isolation.level == "sealed" or not landlock.abi():
        return None
    files = environment.python_files()
    readable = [Path(name) for name in (*SYSTEM_DIRS, *ETC_FILES, *SMALL_ETC_FILES, *CPU_TOPOLOGY)]
    readable += [*files.roots, *files.hops, *(Path(name) for name in files.import_dirs), worker]
    readable += landlock.judge_proc_files()
    if spec.stage is not None:
        readable.append(spec.stage)
    devices = [Path(name) for name in PLAIN_DEVICES]
    if spec.device == "cuda":
        readable += [Path("/sys"), *cuda_library_dirs()]
        devices += cuda_devices()
    rules = landlock.ruleset(readable=readable, writable=[scratch], devices=devices, hidden=spec.isolation.protect)
    return rules.as_json()


@dataclass
class _Plan:
    """What one launch has made so far; `close` undoes it when the launch fails."""

    spec: LaunchSpec
    folder: Path
    lease: uids.UidLease | None = None
    group: cgroups.Group | None = None

    @property
    def sealed(self) -> bool:
        return self.spec.isolation.level == "sealed"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def submission_dir(self) -> str | None:
        """The stage's path as the worker sees it."""
        if self.spec.stage is None:
            return None
        return bubblewrap.SUBMISSION_DIR if self.sealed else str(self.spec.stage)

    def prepare(self) -> None:
        spec, level = self.spec, self.spec.isolation.level
        if os.geteuid() == 0 and level != "process":
            self.lease = uids.lease()
        where = cgroups.hierarchy()
        if where.parents:
            try:
                self.group = cgroups.Group.make(
                    where,
                    memory_bytes=spec.limits.memory_mib * limits.MIB,
                    processes=spec.limits.processes + limits.WRAPPER_TASKS,
                    record=self.folder,
                    run=rundir.run_id(),
                )
            except OSError as error:
                blame_the_machine(error)
                raise InfrastructureError(
                    f"A control group for a worker can't be made any more: {error}.", hint="Try again."
                ) from error
        if not self.sealed:
            self.scratch.mkdir(mode=0o700)
            if self.lease is not None:
                os.chown(self.scratch, self.lease.uid, self.lease.uid)

    def worker_dir(self) -> Path:
        """The copy of the worker's modules: shared by a judge's workers where none of them could write to it."""
        shareable = self.sealed or self.lease is not None or bool(landlock.abi())
        if shareable and not self.spec.extra_modules:
            if _laid_ahead is not None:
                return _laid_ahead
            with _copy_lock:
                return _worker_package(rundir.current() / "worker", ())
        return _worker_package(self.folder / "worker", self.spec.extra_modules)

    def config(self, worker: Path, socket_fd: int) -> dict[str, object]:
        """The bootstrap's configuration: see `grader.worker.bootstrap`."""
        spec, isolation = self.spec, self.spec.isolation
        held = self.group.folders if self.group is not None else {}
        program = seccomp.program(connect=self.sealed) if seccomp.supported() else b""
        return {
            "supervise": not self.sealed,
            "judge_pid": os.getpid(),
            "socket_fd": socket_fd,
            "uid": self.lease.uid if self.lease is not None else None,
            "rlimits": limits.rlimits(
                spec.limits,
                device=spec.device,
                memory_by_group="memory" in held,
                tasks=limits.task_limit(spec.limits, isolation.level),
            ),
            "landlock": _landlock(spec, worker, self.scratch),
            "seccomp": base64.b64encode(program).decode(),
            "directory": "/tmp" if self.sealed else str(self.scratch),
            "path": [bubblewrap.WORKER_DIR if self.sealed else str(worker), *environment.python_files().import_dirs],
            "entry": spec.entry,
        }

    def bounds(self) -> Bounds:
        """What the monitor has to enforce because nothing in the kernel does."""
        held = self.group.folders if self.group is not None else {}
        allowed = self.spec.limits
        root_process = self.spec.isolation.level == "process" and os.geteuid() == 0
        return Bounds(
            memory_bytes=None if "memory" in held else allowed.memory_mib * limits.MIB,
            tasks=allowed.processes + limits.WRAPPER_TASKS if root_process and "pids" not in held else None,
            scratch_bytes=None if self.sealed else limits.scratch_limit_bytes(allowed),
        )

    def close(self) -> None:
        if self.group is not None:
            self.group.kill()
            self.group.remove()
        if self.lease is not None:
            self.lease.release()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def _closing_fds() -> Iterator[list[int]]:
    fds: list[int] = []
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _sealed_command(plan: _Plan, worker: Path, fds: list[int], info_fd: int) -> list[str]:
    """Bubblewrap's command line; its arguments travel in a descriptor, since /proc/1/cmdline shows the rest inside."""
    spec = plan.spec
    uid = plan.lease.uid if plan.lease is not None else bubblewrap.USER_NAMESPACE_UID
    arguments = [
        *bubblewrap.namespace_arguments(),
        *bubblewrap.root_arguments(
            files=environment.python_files(),
            etc=_etc_files(plan.folder / "etc", uid),
            worker=worker,
            stage=spec.stage,
            protect=spec.isolation.protect,
            device=spec.device,
            tmp_bytes=limits.scratch_limit_bytes(spec.limits),
        ),
    ]
    fds.append(_memfd("arguments", b"".join(os.fsencode(argument) + b"\0" for argument in arguments)))
    return [spec.isolation.bubblewrap, "--args", str(fds[-1]), "--info-fd", str(info_fd), "--"]


def _start(plan: _Plan, child_socket: socket.socket, pipe_fd: int, info_fd: int) -> subprocess.Popen[bytes]:
    """Start the process tree; descriptors other than the socket, the pipe and the configuration stay behind."""
    spec = plan.spec
    worker = plan.worker_dir()
    with _closing_fds() as fds:
        config = json.dumps(plan.config(worker, child_socket.fileno())).encode()
        fds.append(_memfd("configuration", config))
        command: list[str] = []
        if plan.group is not None:
            command += ["/bin/sh", "-c", cgroups.JOIN_SCRIPT, "join", *plan.group.join_files, "--"]
        home = bubblewrap.WORKER_DIR if plan.sealed else str(worker)
        interpreter = [environment.python_files().executable, "-I", "-B", "-X", "utf8"]
        bootstrap = [f"{home}/{WORKER_PACKAGE}/start.py", str(fds[0])]
        if plan.sealed:
            command += _sealed_command(plan, worker, fds, info_fd)
        environ = variables(
            device=spec.device,
            tmp="/tmp" if plan.sealed else str(plan.scratch),
            submission=plan.submission_dir,
            extra={"GRADE_RUNTIME": spec.runtime, rundir.TAG_VARIABLE: rundir.run_id(), **spec.env},
        )
        passed = (*fds, child_socket.fileno(), *([info_fd] if plan.sealed else []))

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*command, *interpreter, *bootstrap],
                stdin=subprocess.DEVNULL,
                stdout=pipe_fd,
                stderr=pipe_fd,
                env=environ,
                cwd="/",
                pass_fds=passed,
                start_new_session=True,
            )

        return spawn(start)


def _read_init_pid(info: int) -> int | None:
    """The pid (as seen from here) of the first process in the worker's pid namespace.

    None when bubblewrap failed, or isn't used: then nobody writes and the pipe ends at once.
    """
    with open(info, "rb") as file:
        text = file.read()
    return int(json.loads(text)["child-pid"]) if text.strip() else None


def launch(spec: LaunchSpec) -> LaunchedWorker:
    """Start a worker; it has given up its privileges and waits for frames on the socket.

    Raises:
        InfrastructureError: it can't be started; no fault of any submission.
    """
    if spec.isolation.level == "process" and not landlock.abi():
        # Landlock would keep the worker from looking into its judge, which runs as the same user.
        processes.hide_memory()
    plan = _Plan(spec, rundir.new_worker_dir())
    with contextlib.ExitStack() as undo:
        undo.callback(plan.close)
        plan.prepare()
        kind = socket.SOCK_SEQPACKET if spec.packets else socket.SOCK_STREAM
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        undo.callback(ours.close)
        pipe_read, pipe_write = os.pipe()
        info_read, info_write = os.pipe()
        with theirs, _closing_fds() as fds:
            fds += [pipe_write, info_write]
            try:
                process = _start(plan, theirs, pipe_write, info_write)
            except BaseException:
                fds += [pipe_read, info_read]
                raise
        init_pid = _read_init_pid(info_read)
        worker = LaunchedWorker(
            sock=ours,
            process=process,
            isolation=spec.isolation,
            submission_dir=plan.submission_dir,
            group=plan.group,
            lease=plan.lease,
            folder=plan.folder,
            init_pid=init_pid,
        )
        worker.attach(Monitor(pipe_read, spec.limits.output_kib * 1024, plan.bounds(), worker.look, worker.stop_tree))
        undo.pop_all()
    _await_ready(worker)
    return worker


def _await_ready(worker: LaunchedWorker) -> None:
    """Wait for the bootstrap's byte.

    Raises:
        InfrastructureError: it ended, or took too long; with what it wrote.
    """
    worker.sock.settimeout(READY_TIMEOUT_S)
    try:
        answer = worker.sock.recv(1)
    except OSError as error:
        answer, problem = b"", f"no answer within {READY_TIMEOUT_S:g} s ({error})"
    else:
        problem = ""
    worker.sock.settimeout(None)
    if answer == READY:
        return
    reason = worker.exit_reason()
    worker.kill()
    wrote = worker.output.data.decode(errors="replace").strip()[-2000:]
    raise InfrastructureError(
        f"The worker could not be set up at level `{worker.level}`: {problem or reason.detail}. "
        f"It wrote: {wrote or 'nothing'}",
        hint="Run `grade doctor`.",
    )

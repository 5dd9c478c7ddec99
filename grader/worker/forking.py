"""A warm executor: it has loaded torch and Triton and forks one process for each submission.

It runs no tape itself, has one thread and never starts CUDA, so its children may do both. A packet on descriptor 3 with
one socket attached asks for a child; the child answers on that socket like any worker. Each has a scratch folder of its
own, which goes when it has ended: a batch's compiled kernels would fill the sandbox's.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
from importlib import import_module

CONTROL_FD = 3
MAX_PACKET = 1 << 16
READY = b"\x06"
SCRATCH_VARIABLES = ("TMPDIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
WARM_MODULES = ("serve", "tensors", "execute.service")


def main() -> None:
    """Load, then fork until the judge hangs up."""
    sys.dont_write_bytecode = True
    import_module("torch")
    import_module("triton.language")
    for name in WARM_MODULES:
        import_module(f"{__package__}.{name}")
    control = socket.socket(fileno=CONTROL_FD)
    signal.signal(signal.SIGCHLD, _clear_up)
    while True:
        packet, fds, _, _ = socket.recv_fds(control, MAX_PACKET, 1)
        if not packet:
            return
        if os.fork() == 0:
            _become_worker(json.loads(packet), fds)
        for fd in fds:
            os.close(fd)


def _scratch(pid: int) -> str:
    """The scratch folder of a child."""
    return f"{os.environ['TMPDIR']}/executor-{pid}"


def _clear_up(*_: object) -> None:
    """Reap the children that have ended (orphans of theirs too) and remove their folders."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            shutil.rmtree(_scratch(pid), ignore_errors=True)


def _become_worker(asked: dict[str, dict[str, str] | int], fds: list[int]) -> None:
    """In the child: take the socket's place, then serve until its judge hangs up. Never returns."""
    code = 1
    with contextlib.suppress(BaseException):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        environment, limit = asked["environment"], asked["data_bytes"]
        assert isinstance(environment, dict)
        assert isinstance(limit, int)
        shared, folder = os.environ["TMPDIR"], _scratch(os.getpid())
        os.mkdir(folder)
        tempfile.tempdir = folder
        os.environ.update({name: folder + os.environ[name].removeprefix(shared) for name in SCRATCH_VARIABLES})
        os.environ.update(environment)
        if limit:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        os.dup2(fds[0], CONTROL_FD)
        os.close(fds[0])
        os.write(CONTROL_FD, READY)
        import_module(f"{__package__}.serve").run()
        code = 0
    os._exit(code)

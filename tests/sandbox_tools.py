"""What the sandbox tests share: levels that this machine has, a worker that runs any text, a look for survivors."""

from __future__ import annotations

import ast
import os
import struct
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.course import Limits
from grader.errors import InfrastructureError
from grader.sandbox import environment
from grader.sandbox.launch import Isolation, LaunchedWorker, LaunchSpec, choose_isolation, launch

SMALL_WORKER = Path(__file__).with_name("small_worker.py")
LEVELS = ("sealed", "uid", "process")
IS_ROOT = os.geteuid() == 0


def system_python() -> environment.PythonFiles | None:
    """A Python of the system that any user can run; with this environment's packages where it is of the same version.

    Without those it's for workers that need the standard library alone.
    """
    path = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    same = path.exists()
    if not same and not (path := Path("/usr/bin/python3")).exists():
        return None
    packages = Path(np.__file__).parents[1]
    if not same or environment.unreadable_by_others([packages], ancestors=True):
        return environment.PythonFiles(str(path), (), (), (), (path,))
    return environment.PythonFiles(str(path), (packages,), (), (str(packages),), (path, packages))


def isolation_at(
    level: str, monkeypatch: pytest.MonkeyPatch, protect: tuple[Path, ...] = (), *, packages: bool = False
) -> Isolation:
    """`level`, as strong as it gets here; skips the test, with the reason, where it can't be had.

    Args:
        packages: workers need NumPy too.
    """
    if (
        level == "uid"
        and IS_ROOT
        and environment.unreadable_by_others(environment.python_files().probes, ancestors=True)
    ):
        found = system_python()
        if found is None or (packages and not found.import_dirs):
            pytest.skip(f"no Python that another uid could run{' with NumPy' if packages else ''}")
        monkeypatch.setattr(environment, "python_files", lambda: found)
    try:
        return choose_isolation(level, protect)
    except InfrastructureError as error:
        pytest.skip(str(error))


def start(isolation: Isolation, **options: Any) -> LaunchedWorker:
    """A small worker; `limits` are a dict of `course.Limits` fields."""
    limits = Limits(**options.pop("limits", {}))
    return launch(LaunchSpec(isolation, limits, entry="small_worker", extra_modules=(SMALL_WORKER,), **options))


def send(worker: LaunchedWorker, text: str) -> None:
    encoded = textwrap.dedent(text).encode()
    worker.sock.sendall(struct.pack("!I", len(encoded)) + encoded)


def receive(worker: LaunchedWorker, timeout_s: float = 120) -> str:
    """The answer; empty when the worker is gone."""
    worker.sock.settimeout(timeout_s)
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack("!I", data[:4])[0]:
        try:
            chunk = worker.sock.recv(65536)
        except ConnectionResetError:
            return ""
        if not chunk:
            return ""
        data += chunk
    return data[4:].decode()


def run(worker: LaunchedWorker, text: str) -> str:
    send(worker, text)
    return receive(worker)


def value(worker: LaunchedWorker, text: str) -> Any:
    """The value that `text` leaves in `result`."""
    answer = run(worker, text)
    try:
        return ast.literal_eval(answer)
    except (SyntaxError, ValueError):
        raise AssertionError(f"the worker answered {answer!r}") from None


def alive_with(marker: str) -> list[int]:
    """Processes whose command line contains `marker`, zombies aside."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if marker.encode() in line and state != b"Z":
                found.append(int(name))
    return found


def wait_until(condition: Any, timeout_s: float = 60) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""Nothing outlives a worker, and nothing outlives a judge that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from sandbox_tools import LEVELS, alive_with, isolation_at, receive, run, send, start, wait_until

from grader.sandbox import cgroups, rundir
from grader.sandbox.launch import Isolation

CHILD = Path(__file__).with_name("judge_child.py")
ORPHAN = """
import os
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            os.execve('/bin/sh', ['sh', '-c', 'trap "" TERM HUP INT; sleep 300; : MARKER'], {{}})
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def marker() -> str:
    return f"orphan-{uuid.uuid4().hex}"


@pytest.fixture(params=["cgroup", "no-cgroup"])
def isolation(request: pytest.FixtureRequest, level: str, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    if request.param == "no-cgroup":
        monkeypatch.setattr(cgroups, "hierarchy", lambda: cgroups.NONE)
    return isolation_at(level, monkeypatch)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_kill_ends_orphans_that_left_the_session(isolation: Isolation, marker: str) -> None:
    worker = start(isolation)
    run(worker, ORPHAN.replace("MARKER", marker).replace("{{}}", "{}"))
    assert wait_until(lambda: len(alive_with(marker)) >= 3)
    worker.kill()
    assert alive_with(marker) == []


def test_exit_of_the_worker_ends_its_orphans(isolation: Isolation, marker: str) -> None:
    with start(isolation) as worker:
        send(worker, ORPHAN.replace("MARKER", marker).replace("{{}}", "{}") + "\nos._exit(7)")
        assert receive(worker) == ""
        assert worker.exit_reason(60).code == 7
        assert wait_until(lambda: alive_with(marker) == [])


def test_kill_of_a_process_that_changes_its_pid_all_the_time_ends(isolation: Isolation, marker: str) -> None:
    """Each process soon forks and exits, so a pid that was seen may be gone before it can be signalled."""
    hop = """
import os, time
while True:
    time.sleep(0.03)
    try:
        if os.fork(): os._exit(0)
    except OSError:
        pass
"""
    text = f"""
import os, sys
if os.fork() == 0:
    os.execv(sys.executable, ['python', '-I', '-S', '-c', {hop!r}, '{marker}'])
"""
    worker = start(isolation, limits={"processes": 40})
    try:
        assert run(worker, text) == "None"
        assert wait_until(lambda: alive_with(marker) != [])
    finally:
        worker.kill()
    assert not wait_until(lambda: alive_with(marker) != [], 0.5)


def test_sigkill_of_the_judge_leaves_no_process_and_the_next_judge_sweeps(
    level: str, marker: str, tmp_path: Path
) -> None:
    if level == "uid":
        pytest.skip("needs a Python that another uid can run; the supervisor is that of `process`")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    judge = subprocess.Popen(
        [sys.executable, str(CHILD), level, "hold", marker], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert judge.stdout is not None
    line = judge.stdout.readline()
    if not line:
        pytest.skip(f"level {level} can't be had here")
    told = json.loads(line)
    assert wait_until(lambda: alive_with(marker) != [])
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    assert wait_until(lambda: alive_with(marker) == [])
    assert Path(told["run"]).is_dir()
    subprocess.run(
        [sys.executable, "-c", "from grader.sandbox import rundir; rundir.current()"],
        check=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert not Path(told["run"]).exists()
    assert not [path for path in told["groups"] if Path(path).exists()]


def test_judge_that_exits_without_killing_its_worker_leaves_nothing(level: str, marker: str, tmp_path: Path) -> None:
    if level == "uid":
        pytest.skip("needs a Python that another uid can run; the supervisor is that of `process`")
    done = subprocess.run(
        [sys.executable, str(CHILD), level, "leave", marker],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    if not done.stdout:
        pytest.skip(f"level {level} can't be had here")
    told = json.loads(done.stdout)
    assert wait_until(lambda: alive_with(marker) == [])
    assert not [path for path in (told["run"], *told["groups"]) if Path(path).exists()]


def test_sweep_leaves_a_living_judge_alone() -> None:
    mine = rundir.current()
    rundir._sweep(rundir.base_dir())
    assert mine.is_dir()


def test_base_dir_of_a_stranger_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grader.errors import InfrastructureError

    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / f"grade-{os.geteuid()}").symlink_to("/tmp")
    with pytest.raises(InfrastructureError, match="expected a folder of our own"):
        rundir.base_dir()

"""What a launched worker is, sees and may do, at every level that this machine has."""

from __future__ import annotations

import ctypes
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_tools import IS_ROOT, LEVELS, isolation_at, run, start, value, wait_until

from grader.errors import InfrastructureError
from grader.sandbox import environment, landlock, processes, rundir, uids
from grader.sandbox import launch as launching
from grader.sandbox.launch import Isolation, LaunchedWorker, LaunchSpec, choose_isolation, launch

ROOM = Path(__file__).resolve().parents[2]
SECRET = "the expected values"


@pytest.fixture
def course() -> Iterator[Path]:
    """A course with something to hide, in a folder that any user can read (those of pytest are 0700)."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        for folder in ("assignments", "solutions"):
            (root / folder).mkdir()
            (root / folder / "test_hidden.py").write_text(SECRET)
        (root / "stage").mkdir()
        (root / "stage" / "attention.py").write_text("answer = 42")
        yield root


@pytest.fixture(params=LEVELS)
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, course: Path) -> Isolation:
    return isolation_at(request.param, monkeypatch, (course / "assignments", course / "solutions"))


@pytest.fixture
def worker(isolation: Isolation, course: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LaunchedWorker]:
    monkeypatch.setenv("GRADE_SECRET", SECRET)
    with start(isolation, stage=course / "stage") as launched:
        yield launched


def test_worker_started_has_no_capability_and_no_new_privileges(worker: LaunchedWorker) -> None:
    status = value(worker, "result = open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


@pytest.mark.skipif(not IS_ROOT, reason="only root gives workers uids of their own")
def test_worker_started_as_root_has_a_uid_of_its_own(worker: LaunchedWorker) -> None:
    ids = value(worker, "import os\nresult = [*os.getresuid(), *os.getresgid(), *os.getgroups()]")
    assert len(set(ids)) == 1
    if worker.level == "process":
        assert ids[0] == 0
    else:
        assert ids[0] >= 60706


@pytest.mark.skipif(not IS_ROOT, reason="only root gives workers uids of their own")
def test_uids_of_two_workers_differ_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation = isolation_at("sealed", monkeypatch)
    # A part of the range that workers of tests running at the same time don't reach.
    monkeypatch.setattr(uids, "FIRST", uids.LAST - 7)
    text = "import os\nresult = os.getuid()"
    with start(isolation) as first, start(isolation) as second:
        one, two = value(first, text), value(second, text)
    assert one != two
    with start(isolation) as third:
        assert value(third, text) == min(one, two)


def test_environment_is_an_allowlist(worker: LaunchedWorker) -> None:
    names = value(worker, "import os\nresult = sorted(os.environ)")
    assert SECRET not in run(worker, "result = open('/proc/self/environ').read()")
    allowed = {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TZ", "PWD"),
        *("TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        *("GRADE_SUBMISSION_DIR", "GRADE_RUNTIME", "GRADE_WORKER_RUN"),
    }
    assert set(names) <= allowed


def test_descriptors_are_null_output_and_socket(worker: LaunchedWorker) -> None:
    links = value(
        worker,
        """
        import os
        names = [f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd')]
        found = {int(name[14:]): os.readlink(name) for name in names if os.path.lexists(name)}
        result = sorted((n, link.split(':')[0]) for n, link in found.items())
        """,
    )
    assert links == [(0, "/dev/null"), (1, "pipe"), (2, "pipe"), (3, "socket")]


def test_submission_is_readable_and_not_writable(worker: LaunchedWorker) -> None:
    assert value(worker, f"result = open('{worker.submission_dir}/attention.py').read()") == "answer = 42"
    assert "Error" in run(worker, f"open('{worker.submission_dir}/attention.py', 'w')")
    assert "Error" in run(worker, f"open('{worker.submission_dir}/new.py', 'w')")


def test_scratch_is_writable(worker: LaunchedWorker) -> None:
    text = "import tempfile\nwith tempfile.NamedTemporaryFile() as f: result = f.write(b'x')"
    assert value(worker, text) == 1


def test_worker_modules_are_not_writable(worker: LaunchedWorker) -> None:
    assert "Error" in run(worker, "import grader_worker\nopen(grader_worker.__path__[0] + '/wire.py', 'a')")


@pytest.mark.parametrize("name", ["assignments", "solutions"])
def test_course_is_out_of_reach(worker: LaunchedWorker, course: Path, name: str) -> None:
    assert (course / name / "test_hidden.py").read_text() == SECRET
    answer = run(worker, f"result = open('{course}/{name}/test_hidden.py').read()")
    assert answer.startswith(("FileNotFoundError", "PermissionError"))
    answer = run(worker, f"import os\nresult = os.listdir('{course}/{name}')")
    assert answer.startswith(("FileNotFoundError", "PermissionError"))


def test_grader_itself_is_out_of_reach(worker: LaunchedWorker) -> None:
    source = environment.PACKAGE_DIR / "sandbox" / "launch.py"
    assert run(worker, f"open('{source}')").startswith(("FileNotFoundError", "PermissionError"))
    assert "Error" in run(worker, "import grader.sandbox.launch")


def test_rest_of_the_machine_is_out_of_reach(worker: LaunchedWorker) -> None:
    roots = environment.python_files().roots
    for path in ("/root", "/home", "/var/log", str(ROOM / "pyproject.toml"), "/etc/shadow", "/proc/kcore"):
        text = f"import os\nresult = os.listdir('{path}') if os.path.isdir('{path}') else open('{path}', 'rb').read(9)"
        answer = run(worker, text)
        # A folder above the environment is there, with nothing in it but the way down.
        way = sorted({root.relative_to(path).parts[0] for root in roots if root.is_relative_to(path)})
        assert answer.startswith(("FileNotFoundError", "PermissionError")) or (way and answer == repr(way)), answer
    assert "Error" in run(worker, "open('/usr/share/mine', 'w')")


def test_other_stage_is_out_of_reach(worker: LaunchedWorker, course: Path) -> None:
    other = course / "other"
    other.mkdir()
    (other / "attention.py").write_text(SECRET)
    assert run(worker, f"open('{other}/attention.py')").startswith(("FileNotFoundError", "PermissionError"))


@pytest.mark.parametrize("name", ["environ", "mem", "fd", "root", "cwd", "maps"])
def test_judge_in_proc_is_out_of_reach(worker: LaunchedWorker, name: str) -> None:
    path = f"/proc/{os.getpid()}/{name}"
    text = f"import os\nresult = os.listdir('{path}') if os.path.isdir('{path}') else open('{path}', 'rb').read(4)"
    assert run(worker, text).startswith(("FileNotFoundError", "PermissionError", "ProcessLookupError"))


SYSTEM_CALLS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    function = getattr(libc, name)
    ctypes.set_errno(0)
    return function(*arguments), ctypes.get_errno()
"""


@pytest.mark.parametrize(
    "call",
    [
        "call('setuid', 12345)",
        "call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
        "call('umount2', b'/proc', 2)",
        "call('unshare', 0x10000000)",
        "call('unshare', 0x00020000)",
        "call('setns', 0, 0)",
        "call('chroot', b'/tmp')",
        "call('ptrace', 0, 0, 0, 0)",
        "call('syscall', 250, 0, 0, 0, 0, 0)",
        "call('syscall', 321, 0, 0, 0)",
        "call('syscall', 425, 8, 0)",
        "call('process_vm_readv', 1, None, 0, None, 0, 0)",
        "call('syscall', 56, 0x10000000 | 17, 0, 0, 0, 0)",
    ],
)
def test_privileged_call_is_refused(worker: LaunchedWorker, call: str) -> None:
    result, number = value(worker, f"{SYSTEM_CALLS}\nresult = {call}")
    assert result == -1
    assert number == 1, os.strerror(number)


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_NETLINK"])
def test_network_socket_is_refused(worker: LaunchedWorker, family: str) -> None:
    text = f"import socket\nsocket.socket(socket.{family}, socket.SOCK_DGRAM)"
    assert run(worker, text).startswith("PermissionError")


def test_unix_socket_of_the_machine_is_out_of_reach(worker: LaunchedWorker, course: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(course / "engine.sock"))
        (course / "engine.sock").chmod(0o777)
        server.listen()
        text = f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('{course}/engine.sock')"
        assert run(worker, text).startswith(("PermissionError", "FileNotFoundError"))


def test_signal_to_the_judge_is_refused(worker: LaunchedWorker) -> None:
    assert run(worker, f"import os\nos.kill({os.getpid()}, 0)").startswith(("ProcessLookupError", "PermissionError"))
    assert run(worker, f"import os\nos.kill({worker.pid}, 0)").startswith(("ProcessLookupError", "PermissionError"))


def test_resource_limit_of_the_judge_is_refused(worker: LaunchedWorker) -> None:
    text = f"import resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE)"
    assert run(worker, text).startswith(("ProcessLookupError", "PermissionError"))


def test_threads_and_subprocesses_work(worker: LaunchedWorker) -> None:
    text = """
    import subprocess, threading
    seen = []
    threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    result = len(seen), subprocess.run(['/bin/sh', '-c', 'echo hello'], capture_output=True, text=True).stdout
    """
    assert value(worker, text) == (8, "hello\n")


@pytest.mark.parametrize("name", ["environ", "mem", "fd/0", "maps"])
def test_judge_in_proc_is_out_of_reach_without_landlock(
    name: str, course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    isolation = choose_isolation("process")
    assert isolation.limits["files"] == "none"
    libc = ctypes.CDLL(None)
    try:
        with start(isolation) as worker:
            path = f"/proc/{os.getpid()}/{name}"
            text = (
                f"import os\nresult = os.listdir('{path}') if os.path.isdir('{path}') else open('{path}', 'rb').read(4)"
            )
            assert run(worker, text).startswith("PermissionError")
    finally:
        libc.prctl(processes.PR_SET_DUMPABLE, ctypes.c_ulong(1), *(ctypes.c_ulong(0) for _ in range(3)))


def test_dev_holds_only_plain_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(isolation_at("sealed", monkeypatch)) as worker:
        names = set(value(worker, "import os\nresult = os.listdir('/dev')"))
        assert names <= {"null", "zero", "full", "random", "urandom", "tty", "shm", "pts", "ptmx", "core", "fd"} | {
            "stdin",
            "stdout",
            "stderr",
        }
        assert "Error" in run(worker, "open('/dev/mine', 'w')")
        assert "Error" in run(worker, "open('/mine', 'w')")
        assert value(worker, "result = open('/dev/null', 'w').write('x')") == 1


def test_sealed_worker_sees_only_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(isolation_at("sealed", monkeypatch)) as worker:
        assert len(value(worker, "import os\nresult = [n for n in os.listdir('/proc') if n.isdigit()]")) == 2
        # Bubblewrap's command line doesn't tell where things lie on this machine.
        assert str(environment.PACKAGE_DIR) not in value(worker, "result = open('/proc/1/cmdline').read()")


def test_numeric_libraries_import(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in ("sealed", "process"):
        with start(isolation_at(level, monkeypatch)) as worker:
            assert value(worker, "import numpy\nresult = int(numpy.ones((64, 64)).dot(numpy.ones(64)).sum())") == 4096


def test_launch_from_a_thread_that_ends_survives_it(isolation: Isolation) -> None:
    workers: list[LaunchedWorker] = []
    thread = threading.Thread(target=lambda: workers.append(start(isolation)))
    thread.start()
    thread.join()
    with workers[0] as worker:
        time.sleep(0.1)
        assert value(worker, "result = 1") == 1


def test_launch_without_the_main_module_fails_before_any_submission(isolation: Isolation) -> None:
    worker = launch(LaunchSpec(isolation, entry="no_such_module"))
    with worker:
        assert worker.sock.recv(1) == b""
        assert worker.exit_reason().kind == "exited"
        assert wait_until(lambda: b"no_such_module" in worker.output.data)


def test_launch_with_a_broken_bootstrap_raises(isolation: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    from grader.sandbox import limits

    monkeypatch.setattr(limits, "rlimits", lambda *a, **k: {"RLIMIT_NONSENSE": 1})
    with pytest.raises(InfrastructureError, match="RLIMIT_NONSENSE"):
        start(isolation)


def test_kill_twice_is_harmless_and_leaves_no_folder(isolation: Isolation) -> None:
    from grader.sandbox import rundir

    # Tests that ran before may have workers that stay warm.
    before = set(rundir.current().glob("w-*"))
    worker = start(isolation)
    assert set(rundir.current().glob("w-*")) > before
    worker.kill()
    worker.kill()
    assert worker.exit_reason().kind == "killed"
    assert set(rundir.current().glob("w-*")) == before


def test_default_protection_covers_this_checkout() -> None:
    isolation = choose_isolation("process")
    assert environment.PACKAGE_DIR in isolation.protect
    assert ROOM / "assignments" in isolation.protect


def test_worker_laid_ahead_is_compiled_once_and_started_from_there(
    monkeypatch: pytest.MonkeyPatch, course: Path
) -> None:
    """Its sources are spoilt after that: a worker that compiled them again, or copied them again, would not start."""
    monkeypatch.setattr(rundir, "current", lambda: course)
    monkeypatch.setattr(launching, "_laid_ahead", None)
    launching.lay_ahead()
    for path in (course / "worker" / "grader_worker").glob("*.py"):
        if path.name != "start.py":
            path.write_text("raise SystemExit(9)")
    for level in LEVELS:
        isolation = isolation_at(level, monkeypatch)
        spec = LaunchSpec(isolation, stage=course / "stage")
        if level == "process" and not landlock.abi():
            continue  # Such a worker could write to the copy, so it gets one of its own.
        with launch(spec) as launched:
            assert launched.exit_reason(wait_s=0).kind == "running"

"""Limits hold: memory, processes, files, output; with a control group and without one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from sandbox_tools import IS_ROOT, LEVELS, isolation_at, receive, run, send, start, value, wait_until

from grader.course import Limits
from grader.sandbox import cgroups, limits, processes
from grader.sandbox.launch import Isolation
from grader.sandbox.monitor import BoundedOutput, Bounds, Sample
from grader.sandbox.worker_process import decode

MIB = 1 << 20
SMALL = {"memory_mib": 256, "processes": 20, "tmp_mib": 32, "file_size_mib": 64}


@pytest.fixture(params=["cgroup", "sampling"])
def accounting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with a control group where the machine has one, and as if it had none."""
    if request.param == "cgroup" and not cgroups.hierarchy().parents:
        pytest.skip("no control group can be made here")
    if request.param == "sampling":
        monkeypatch.setattr(cgroups, "hierarchy", lambda: cgroups.NONE)
    return str(request.param)


@pytest.fixture(params=LEVELS)
def isolation(request: pytest.FixtureRequest, accounting: str, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    found = isolation_at(request.param, monkeypatch)
    held_by_group = found.limits["memory"].startswith("cgroup")
    assert held_by_group == (accounting == "cgroup")
    return found


def test_memory_beyond_the_limit_ends_as_oom_or_memory_error(isolation: Isolation) -> None:
    with start(isolation, limits=SMALL) as worker:
        answer = run(worker, "blocks = [b'x' * (64 << 20) for _ in range(800)]")
        assert answer.startswith("MemoryError") or (answer == "" and worker.exit_reason(60).kind == "oom")
        worker.kill()
        assert answer or worker.exit_reason().kind == "oom"


def test_memory_of_50_gb_at_once_is_refused(isolation: Isolation) -> None:
    with start(isolation, limits=SMALL) as worker:
        answer = run(worker, "block = bytearray(50 << 30)\nblock[::4096] = b'x' * len(block[::4096])")
        assert answer.startswith("MemoryError") or worker.exit_reason(60).kind == "oom"


def test_memory_within_the_limit_is_granted(isolation: Isolation) -> None:
    with start(isolation, limits=SMALL) as worker:
        assert (
            value(worker, "import time\nblock = b'x' * (150 << 20)\ntime.sleep(0.2)\nresult = len(block)\ndel block")
            == 150 * MIB
        )
        assert worker.peak_bytes() > 150 * MIB
        assert worker.resident_peak_bytes() > 150 * MIB
        assert worker.reset_peak() < 100 * MIB
        assert worker.resident_peak_bytes() < 100 * MIB


def test_memory_of_forked_children_counts(isolation: Isolation) -> None:
    text = """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            block = b'x' * (60 << 20)
            time.sleep(100)
            os._exit(0)
    time.sleep(100)
    """
    with start(isolation, limits=SMALL) as worker:
        send(worker, text)

        def broken() -> bool:
            return worker.exit_reason(0).kind == "oom" or (worker._group is not None and worker._group.oom_kills() > 0)

        assert wait_until(broken)


def test_memory_in_memfds_counts(isolation: Isolation) -> None:
    text = """
    import os
    fds = []
    for _ in range(40):
        fds.append(os.memfd_create('x'))
        for _ in range(3): os.write(fds[-1], b'x' * (16 << 20))
    import time; time.sleep(60)
    """
    with start(isolation, limits=SMALL) as worker:
        assert run(worker, text) == ""
        assert worker.exit_reason(60).kind == "oom"


def test_memfd_larger_than_the_file_limit_is_refused(isolation: Isolation) -> None:
    text = "import os\nfd = os.memfd_create('x')\nos.truncate(fd, 1 << 40)"
    with start(isolation, limits=SMALL) as worker:
        assert run(worker, text).startswith("OSError: [Errno 27]")


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_scratch_of_a_sealed_worker_is_full_at_its_size(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
    for i in range(20):
        with open(f'{place}/{{i}}', 'wb') as file: file.write(b'x' * (8 << 20))
    """
    with start(isolation_at("sealed", monkeypatch), limits=SMALL) as worker:
        assert run(worker, text).startswith("OSError: [Errno 28]")


@pytest.mark.parametrize("level", ["uid", "process"])
def test_scratch_beyond_the_limit_is_ended(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    import time
    for i in range(20):
        with open(f'{i}', 'wb') as file: file.write(b'x' * (8 << 20))
    time.sleep(60)
    """
    with start(isolation_at(level, monkeypatch), limits=SMALL) as worker:
        assert run(worker, text) == ""
        reason = worker.exit_reason()
        assert reason.kind == "killed"
        assert "allowed 32 MiB" in reason.limit


def test_fork_bomb_stops_at_the_limit_and_leaves_nothing(isolation: Isolation) -> None:
    text = """
    import os, time
    count = 0
    try:
        for _ in range(200):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            count += 1
        time.sleep(60)  # until the judge has looked, where it samples
    except OSError:
        pass
    result = count
    """
    worker = start(isolation, limits=SMALL)
    answer = run(worker, text)
    sampled = isolation.limits["processes"] == "sampling"
    if answer:
        assert int(answer) <= SMALL["processes"]
        assert not sampled
    else:
        assert sampled
        assert "allowed" in worker.exit_reason().limit
    pids = worker.tree()
    worker.kill()
    assert not [pid for pid in pids if processes.is_running(pid)]


def test_fork_bomb_takes_nothing_from_the_next_worker(isolation: Isolation) -> None:
    """The next worker gets the same uid; a zombie that nobody reaped would count against it."""
    bomb = "import os, time\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(60)\nexcept OSError: pass"
    if isolation.limits["processes"] == "sampling":
        pytest.skip("the bomb ends when the judge sees it")
    count = """
    import threading
    threads, enough = [], threading.Event()
    try:
        while True:
            thread = threading.Thread(target=enough.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        result = len(threads)
    enough.set()
    for thread in threads: thread.join()
    """
    with start(isolation, limits=SMALL) as worker:
        before = value(worker, count)
    with start(isolation, limits=SMALL) as worker:
        run(worker, bomb)
    with start(isolation, limits=SMALL) as worker:
        assert value(worker, count) == before


def test_honest_threads_fit_within_the_limit(isolation: Isolation) -> None:
    text = """
    import threading
    together = threading.Barrier(16)
    threads = [threading.Thread(target=together.wait) for _ in range(15)]
    [t.start() for t in threads]; together.wait(); [t.join() for t in threads]
    result = 'fine'
    """
    with start(isolation, limits=SMALL) as worker:
        assert value(worker, text) == "fine"


def test_open_files_are_bounded(isolation: Isolation) -> None:
    with start(isolation, limits=SMALL | {"open_files": 64}) as worker:
        answer = run(worker, "import os\nfds = [os.open('/dev/null', 0) for _ in range(100)]")
        assert answer.startswith("OSError: [Errno 24]")


def test_limits_cannot_be_raised_again(isolation: Isolation) -> None:
    text = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))"
    with start(isolation, limits=SMALL) as worker:
        assert run(worker, text).startswith("ValueError")


def test_flood_of_output_neither_blocks_nor_grows() -> None:
    import sandbox_tools

    isolation = sandbox_tools.choose_isolation("auto")
    text = "import os\nfor _ in range(3200): os.write(1, b'y' * 65536)\nos.write(2, b'the end')\nresult = 'done'"
    with start(isolation, limits=SMALL | {"output_kib": 4}) as worker:
        assert value(worker, text) == "done"
        assert wait_until(lambda: worker.output.total_bytes == 3200 * 65536 + 7)
        output = worker.output
        assert output.truncated
        assert len(output.data) < 5000
        assert output.data.endswith(b"the end")


def test_exit_reasons_tell_code_signal_and_running(isolation: Isolation) -> None:
    with start(isolation) as worker:
        assert worker.exit_reason(0).kind == "running"
        send(worker, "import os\nos._exit(3)")
        assert receive(worker) == ""
        reason = worker.exit_reason()
        assert (reason.kind, reason.code) == ("exited", 3)
    assert worker.exit_reason() == reason
    with start(isolation) as worker:
        send(worker, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
        assert receive(worker) == ""
        reason = worker.exit_reason()
        assert (reason.kind, reason.detail) == ("signal", "ended by SIGSEGV (signal 11)")


def test_exit_reason_waits_for_a_process_that_ends_long_after_its_socket() -> None:
    """On a busy machine a crash is told by the wrapper's end, which may come seconds later."""
    import sandbox_tools

    with start(sandbox_tools.choose_isolation("auto")) as worker:
        send(worker, "import os, time\nos.close(3)\ntime.sleep(1.5)\nos._exit(3)")
        assert receive(worker) == ""
        reason = worker.exit_reason()
    assert (reason.kind, reason.code) == ("exited", 3)


def test_stopped_worker_can_be_killed(isolation: Isolation) -> None:
    worker = start(isolation)
    send(worker, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")
    pids = worker.tree()
    time.sleep(0.1)
    worker.kill()
    assert worker.exit_reason().kind == "killed"
    assert not [pid for pid in pids if processes.is_running(pid)]


def test_group_of_a_killed_worker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cgroups.hierarchy().parents:
        pytest.skip("no control group can be made here")
    worker = start(isolation_at("process", monkeypatch))
    assert worker._group is not None
    folders = list(worker._group.folders.values())
    assert all(path.is_dir() for path in folders)
    worker.kill()
    assert not any(path.exists() for path in folders)


def test_bounded_output_keeps_both_ends() -> None:
    output = BoundedOutput(10)
    for chunk in (b"abc", b"defgh", b"ijklmnop"):
        output.add(chunk)
    found = output.get()
    assert found.data.startswith(b"abcde\n")
    assert found.data.endswith(b"\nlmnop")
    assert (found.truncated, found.total_bytes) == (True, 16)


def test_bounded_output_that_fits_is_whole() -> None:
    output = BoundedOutput(10)
    output.add(b"abcdefghij")
    assert output.get().data == b"abcdefghij"
    assert not output.get().truncated


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        (Sample(101, 1, 1), "oom"),
        (Sample(1, 11, 1), "killed"),
        (Sample(1, 1, 1001), "killed"),
        (Sample(100, 10, 1000), None),
    ],
)
def test_bounds_break_only_beyond_the_limit(sample: Sample, kind: str | None) -> None:
    broken = Bounds(100, 10, 1000).broken_by(sample)
    assert (broken[0] if broken else None) == kind


def test_rlimits_without_group_bound_data_except_with_cuda() -> None:
    given = Limits()
    assert "RLIMIT_DATA" in limits.rlimits(given, device="cpu", memory_by_group=False, tasks=None)
    assert "RLIMIT_DATA" not in limits.rlimits(given, device="cuda", memory_by_group=False, tasks=None)
    assert "RLIMIT_DATA" not in limits.rlimits(given, device="cpu", memory_by_group=True, tasks=None)
    assert "RLIMIT_NPROC" not in limits.rlimits(given, device="cpu", memory_by_group=True, tasks=None)
    assert not [name for name in limits.rlimits(given, device="cpu", memory_by_group=False, tasks=4) if "AS" in name]


def test_task_limit_at_process_level_counts_from_what_runs() -> None:
    found = limits.task_limit(Limits(processes=64), "process")
    assert found is None if IS_ROOT else found is not None and found > 64
    assert limits.task_limit(Limits(processes=64), "sealed") == 64


@pytest.mark.parametrize(
    ("code", "kind", "number"),
    [(0, "exited", 0), (3, "exited", 3), (139, "signal", 11), (-9, "signal", 9), (255, "exited", 255)],
)
def test_decode_reads_a_wrappers_exit_code(code: int, kind: str, number: int) -> None:
    assert (decode(code).kind, decode(code).code) == (kind, number)


def test_tree_bytes_skips_links_and_vanished_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 8192)
    (tmp_path / "link").symlink_to("/usr/bin/python3")
    os.mkfifo(tmp_path / "pipe")
    assert 8192 <= processes.tree_bytes(tmp_path) <= 16384
    assert processes.tree_bytes(tmp_path / "missing") == 0

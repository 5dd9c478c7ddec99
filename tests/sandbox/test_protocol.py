"""A submission that gets hold of the protocol's socket can spoil its own check, and only that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sandbox_tools import wait_until
from small_submission import small_submission

from grader.sandbox.failures import ContractViolated, Crashed, SubmissionRaised, TimedOut, WorkerFailure
from grader.sandbox.submission import Submission

TOOLS = '''
import array, atexit, fcntl, gc, json, os, signal, socket, struct, sys, threading, time
import numpy as np

def protocol_fd():
    """The descriptor of the socket, found as a hostile submission would: by looking at every one."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                return int(name)
        except OSError:
            pass

def request_id():
    """The number of the request in progress, from the server's own state."""
    serve = sys.modules["grader_worker.serve"]
    return next(o._request for o in gc.get_objects() if type(o) is serve._Worker)

def frame(kind, number, body):
    header = json.dumps({"k": kind, "i": number, "b": body, "p": 0, "f": False, "s": []}).encode()
    return b"GRD1" + struct.pack("<I", len(header)) + header

def table(value):
    return {"~": "dict", "k": ["value", "mutated"], "v": [value, {"~": "dict", "k": [], "v": []}]}

def write(data):
    fd = os.dup(protocol_fd())
    while data:
        try:
            data = data[os.write(fd, data):]
        except BlockingIOError:
            time.sleep(0.001)

let_go = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: let_go.set())

def right(): return 42
'''


def submission(folder: Path, source: str) -> Submission:
    return small_submission(folder, TOOLS + source)


def something_comes(found: Submission) -> bool:
    """Let the worker's thread go on, now that its call is over, and tell whether it writes what nobody asked for."""
    assert found._last is not None
    os.kill(found._last.launched.worker_pid(), signal.SIGUSR1)
    return wait_until(found._last._channel.has_input)


def then_right(found: Submission) -> int:
    """The answer of the next check that asks; a breach by a thread may cost one check more, no further."""
    for _ in range(3):
        try:
            return int(found.call("right"))
        except ContractViolated:
            continue
    raise AssertionError("the worker was not replaced")


def test_reply_forged_before_the_real_one_breaks_the_contract(tmp_path: Path) -> None:
    source = "def f():\n    write(frame('result', request_id(), table(1)))\n    return 2\n"
    with submission(tmp_path, source) as found:
        failures = []
        for _ in range(2):  # the second reply may arrive a moment after the first was read: then the next call sees it
            try:
                found.call("f")
            except WorkerFailure as failure:
                failures.append(failure)
        assert failures
        assert all(isinstance(failure, ContractViolated) for failure in failures)
        assert then_right(found) == 42


@pytest.mark.parametrize(
    "data",
    [
        "frame('result', 7, table(1))",
        "frame('result', request_id() + 1, table(1))",
        "frame('host_call', request_id(), {'~': 'dict', 'k': ['n'], 'v': [1]})",
        "frame('passed', request_id(), table(1))",
        "frame('result', request_id(), {'~': 'pickle'})",
        "frame('result', request_id(), [])",
        'b\'{"status": "pass"}\' * 10',
        "b'GRD1' + b'\\xff' * 4",
        "b'\\x80\\x04\\x95' + bytes(100)",
        "b'x' * (64 << 20)",
    ],
    ids=range(10),
)
def test_forged_bytes_break_the_contract(tmp_path: Path, data: str) -> None:
    with submission(tmp_path, f"def f():\n    write({data})\n    time.sleep(0.05)\n    os._exit(0)\n") as found:
        with pytest.raises(ContractViolated):
            found.call("f")
        assert then_right(found) == 42


def test_half_a_frame_and_silence_meet_the_deadline(tmp_path: Path) -> None:
    with submission(tmp_path, "def f():\n    write(b'GRD1\\x10\\x00')\n    time.sleep(60)\n") as found:
        with pytest.raises(TimedOut, match=r"after 0\.5 s"):
            found.call("f", timeout_s=0.5)
        assert then_right(found) == 42


def test_raise_claimed_by_a_forged_reply_is_only_data(tmp_path: Path) -> None:
    source = """
def f():
    values = [["x"], {"~": "float", "v": "nan"}, 3, 4, 5]
    body = {"~": "dict", "k": ["type", "text", "where", "frames", "memory"], "v": values}
    write(frame('raised', request_id(), body))
    os._exit(0)
"""
    with submission(tmp_path, source) as found, pytest.raises(WorkerFailure):
        found.call("f")


@pytest.mark.parametrize("action", ["os.close(protocol_fd())", "socket.socket(fileno=protocol_fd()).shutdown(2)"])
def test_closed_socket_is_a_crash(tmp_path: Path, action: str) -> None:
    with submission(tmp_path, f"def f():\n    {action}\n    return 1\n") as found:
        with pytest.raises((Crashed, ContractViolated)):
            found.call("f")
        assert then_right(found) == 42


def test_socket_replaced_by_another_is_a_crash(tmp_path: Path) -> None:
    source = """
def f():
    ours, theirs = socket.socketpair()
    os.dup2(theirs.fileno(), protocol_fd())
    time.sleep(0.2)
    os._exit(0)
"""
    with submission(tmp_path, source) as found:
        with pytest.raises(Crashed):
            found.call("f")
        assert then_right(found) == 42


@pytest.mark.parametrize("count", [1, 40, 200])
def test_flood_of_descriptors_breaks_the_contract_and_leaks_none(tmp_path: Path, count: int) -> None:
    source = f"""
def f():
    fd = os.open("/dev/null", os.O_RDONLY)
    message = frame('result', request_id(), table(1))
    sock = socket.socket(fileno=os.dup(protocol_fd()))
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * {count}))])
    time.sleep(0.1)
    os._exit(0)
"""
    with submission(tmp_path, source) as found:
        assert found.call("right") == 42
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ContractViolated, match="descriptors"):
            found.call("f")
        assert then_right(found) == 42
        assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.parametrize("seals", ["0", "fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW"])
def test_memfd_that_can_still_change_breaks_the_contract(tmp_path: Path, seals: str) -> None:
    source = f"""
def f():
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 64)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, {seals})
    body = table({{"~": "array", "d": "float64", "s": [8], "b": 0}})
    header = json.dumps({{"k": "result", "i": request_id(), "b": body, "p": 64, "f": True, "s": [[0, 64]]}}).encode()
    message = b"GRD1" + struct.pack("<I", len(header)) + header
    sock = socket.socket(fileno=os.dup(protocol_fd()))
    sock.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.ftruncate(fd, 0)
    time.sleep(0.1)
    os._exit(0)
"""
    with submission(tmp_path, source) as found:
        with pytest.raises(ContractViolated, match=r"regular file|seals"):
            found.call("f")
        assert then_right(found) == 42


def test_thread_that_writes_between_calls_breaks_the_contract(tmp_path: Path) -> None:
    source = """
def f():
    number = request_id()
    def later():
        let_go.wait()
        write(frame('result', number, table(1)))
    threading.Thread(target=later, daemon=True).start()
    return 1
"""
    with submission(tmp_path, source) as found:
        assert found.call("f") == 1
        assert something_comes(found)
        with pytest.raises(ContractViolated, match="a message that nobody asked for"):
            found.call("right")
        assert found.call("right") == 42


def test_thread_that_calls_a_hosted_object_after_its_call_breaks_the_contract(tmp_path: Path) -> None:
    source = """
def f(stream):
    def later():
        let_go.wait()
        stream.next_block()
    threading.Thread(target=later, daemon=True).start()
    return 1
"""

    class Stream:
        def next_block(self) -> None:
            return None

    with submission(tmp_path, source) as found:
        stream = found.host(Stream(), ("next_block",))
        assert found.call("f", stream) == 1
        assert something_comes(found)
        with pytest.raises(ContractViolated):
            found.call("right")
        assert stream.calls["next_block"] == 0
        assert then_right(found) == 42


def test_stub_kept_for_a_later_call_reaches_no_object(tmp_path: Path) -> None:
    source = """
kept = []
def keep(stream): kept.append(stream)
def use(): return kept[0].next_block()
"""

    class Stream:
        def next_block(self) -> int:
            return 1

    with submission(tmp_path, source) as found:
        stream = found.host(Stream(), ("next_block",))
        found.call("keep", stream)
        with pytest.raises(ContractViolated, match="a call of an unknown hosted object"):
            found.call("use")
        assert stream.calls["next_block"] == 0


def test_exit_handlers_and_daemon_threads_write_nothing_that_counts(tmp_path: Path) -> None:
    source = """
atexit.register(lambda: write(frame('result', 0, table(1))))
def chatter():
    while True:
        print("42 passed", flush=True)
        time.sleep(0.01)
threading.Thread(target=chatter, daemon=True).start()
def wrong(): return 41
"""
    with submission(tmp_path, source) as found:
        assert found.call("wrong") == 41
        assert found.call("right") == 42


def test_result_written_after_the_return_does_not_arrive(tmp_path: Path) -> None:
    source = """
out, called_again, written = np.zeros(1000), threading.Event(), threading.Event()
def later():
    called_again.wait()
    out[:] = 42.0
    written.set()
def f():
    threading.Thread(target=later, daemon=True).start()
    return out
def again():
    called_again.set()
    written.wait()
    return out.max()
"""
    with submission(tmp_path, source) as found:
        returned = found.call("f")
        assert found.call("again") == 42.0
        assert returned.max() == 0.0


def test_fault_of_the_graders_claimed_by_a_submission_is_its_own(tmp_path: Path) -> None:
    source = """
def f():
    body = {"~": "dict", "k": ["message"], "v": ["made up"]}
    write(frame("fault", request_id(), body))
    time.sleep(1)
"""
    with submission(tmp_path, source) as found:
        with pytest.raises(ContractViolated, match="replaces functions"):
            found.call("f")
        assert then_right(found) == 42


def test_message_with_half_a_surrogate_pair_fits_a_file(tmp_path: Path) -> None:
    source = "def f():\n    raise ValueError(chr(0xd800) + 'text')\n"
    with submission(tmp_path, source) as found, pytest.raises(SubmissionRaised) as caught:
        found.call("f")
    assert caught.value.message.encode().endswith(b"ValueError: ?text")


def test_long_report_of_a_fault_is_cut_at_its_beginning(tmp_path: Path) -> None:
    """The last lines of a traceback name the error."""
    source = TOOLS + (
        "def f():\n"
        "    text = 'x' * 3900 + 'KeyError: 17'\n"
        "    write(frame('fault', request_id(), {'~': 'dict', 'k': ['message'], 'v': [text]}))\n"
        "    time.sleep(60)\n"
    )
    with small_submission(tmp_path, source) as submission, pytest.raises(ContractViolated, match="KeyError: 17"):
        submission.call("f")

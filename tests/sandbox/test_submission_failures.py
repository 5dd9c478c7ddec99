"""However a submission fails, the check gets the right status, the next one a working worker, and nothing is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_submission import small_submission

from grader.report.model import Status
from grader.sandbox.failures import (
    Crashed,
    ImportFailed,
    OutOfMemory,
    SubmissionRaised,
    TimedOut,
    WorkerFailure,
)
from grader.sandbox.monitor import BoundedOutput
from grader.sandbox.processes import is_running
from grader.sandbox.submission import Submission

SOURCE = """
import ctypes, os, signal, sys, time
import numpy as np

count = 0

def fine():
    global count
    count += 1
    return count
def leave(): os._exit(0)
def leave_with_reason(): print("leaving now"); sys.stdout.flush(); os._exit(3)
def abort(): os.abort()
def segfault(): ctypes.string_at(0)
def kill(): os.kill(os.getpid(), signal.SIGKILL)
def stop(): os.kill(os.getpid(), signal.SIGSTOP)
def spin():
    while True: pass
def sleep(): time.sleep(60)
def hog():
    held = []
    while True: held.append(np.ones(1 << 22))
def exits(): sys.exit(0)
def interrupted(): raise KeyboardInterrupt("no")
def todo(): raise NotImplementedError("TODO: rescale the accumulator")
class Odd(Exception):
    def __str__(self): raise RuntimeError("ha")
def odd(): raise Odd
def deep(n=0): return deep(n + 1)
def inner(): return {}["missing"]
def outer(): return [inner() for _ in range(3)]
def library(): return np.linalg.inv(np.zeros((2, 2)))
def flood():
    line = b"x" * (1 << 20)
    for _ in range(300): os.write(1, line)
    return "done"
def child_keeps_socket():
    if os.fork() == 0:
        time.sleep(60)
    os._exit(1)
"""


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submission]:
    folder = tmp_path_factory.mktemp("failures")
    with small_submission(folder, SOURCE, memory_mib=400) as found:
        yield found


@pytest.mark.parametrize(
    ("function", "failure", "words"),
    [
        ("leave", Crashed, "exited with code 0 while calling `leave`"),
        ("leave_with_reason", Crashed, "exited with code 3 .* It printed last: leaving now"),
        ("abort", Crashed, "SIGABRT"),
        ("segfault", Crashed, r"(?s)SIGSEGV.* in segfault$"),
        ("kill", Crashed, "SIGKILL"),
        ("child_keeps_socket", Crashed, "exited with code 1"),
        ("hog", OutOfMemory, "400 MiB"),
    ],
)
def test_call_that_ends_the_process_has_its_status_and_the_next_call_works(
    submission: Submission, function: str, failure: type[WorkerFailure], words: str
) -> None:
    with pytest.raises(failure, match=words):
        submission.call(function)
    assert submission.call("fine") == 1


def test_call_that_ends_the_process_tells_what_it_printed_however_late_that_is_read(
    submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = BoundedOutput.add

    def late(self: BoundedOutput, chunk: bytes) -> None:
        time.sleep(0.5)
        add(self, chunk)

    monkeypatch.setattr(BoundedOutput, "add", late)
    with pytest.raises(Crashed, match="It printed last: leaving now"):
        submission.call("leave_with_reason")


@pytest.mark.parametrize("function", ["spin", "sleep", "stop"])
def test_call_that_hangs_is_stopped_at_its_limit(submission: Submission, function: str) -> None:
    with pytest.raises(TimedOut, match=rf"No answer after 0.7 s \(the limit\) while calling `{function}`") as caught:
        submission.call(function, timeout_s=0.7)
    assert caught.value.status is Status.TIMEOUT
    assert caught.value.phase == "call"
    assert submission.call("fine") == 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("exits", "answer.py:23 in exits: SystemExit: 0"),
        ("interrupted", "answer.py:24 in interrupted: KeyboardInterrupt: no"),
        ("todo", "answer.py:25 in todo: NotImplementedError: TODO: rescale the accumulator"),
        ("odd", r"Odd: \(its text can't be read: RuntimeError\)"),
        ("deep", "RecursionError"),
        ("outer", "answer.py:30 in inner: KeyError: 'missing'"),
        ("library", "answer.py:32 in library: LinAlgError: Singular matrix"),
    ],
)
def test_call_that_raises_tells_where_and_keeps_the_worker(submission: Submission, function: str, words: str) -> None:
    before = submission.call("fine")
    with pytest.raises(SubmissionRaised, match=words) as caught:
        submission.call(function)
    assert caught.value.status is Status.FAIL
    assert all(frame.startswith("answer.py:") for frame in caught.value.frames)
    assert len(caught.value.frames) <= 6
    assert submission.call("fine") == before + 1


def test_call_that_raises_in_a_helper_shows_both_frames(submission: Submission) -> None:
    with pytest.raises(SubmissionRaised) as caught:
        submission.call("outer")
    assert caught.value.frames[0].startswith("answer.py:31 in outer")
    assert caught.value.frames[-1] == caught.value.where == "answer.py:30 in inner"


def test_call_that_prints_without_end_is_bounded(submission: Submission) -> None:
    assert submission.call("flood") == "done"
    assert len(submission.output) < 1 << 17


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:\n    pass\n", r"answer.py:1: SyntaxError: invalid syntax"),
        ("x = 1\nimport absent_library\n", "answer.py:2 in <module>: ModuleNotFoundError: No module named 'absent"),
        ("import helper\n", "helper.py:1 in <module>: ZeroDivisionError"),
        ("raise SystemExit(0)\n", "SystemExit"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("def f():\n\tx = 1\n        y = 2\n", r"answer.py:3: TabError"),
        ("x = 1\0\n", r"failed at answer.py: SyntaxError: source code string cannot contain null bytes"),
    ],
    ids=range(7),
)
def test_import_that_fails_tells_where_and_is_remembered(tmp_path: Path, source: str, words: str) -> None:
    with small_submission(tmp_path, source, files={"helper.py": "1 / 0\n"}) as found:
        with pytest.raises(ImportFailed, match=words) as caught:
            found.call("f")
        assert caught.value.phase == "import"
        with pytest.raises(ImportFailed, match=words):
            found.call("g")


@pytest.mark.parametrize(
    ("source", "import_s", "failure"),
    [("import os\nos._exit(0)\n", 120.0, Crashed), ("while True: pass\n", 1.0, TimedOut)],
)
def test_import_that_ends_or_hangs_is_remembered(
    tmp_path: Path, source: str, import_s: float, failure: type[WorkerFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_submission(tmp_path, source, import_s=import_s) as found:
        with pytest.raises(failure, match=r"while importing answer\.py") as caught:
            found.call("f")
        assert caught.value.phase == "import"
        # No second wait for the limit: no worker is started that could try again.
        monkeypatch.setattr(found, "_launcher", lambda spec: pytest.fail("tried again"))
        with pytest.raises(failure):
            found.call("f")


def test_import_that_fails_is_told_again_without_the_frames_of_the_calls_before(tmp_path: Path) -> None:
    def frames_of_a_call() -> int:
        with pytest.raises(ImportFailed) as caught:
            found.call("f")
        return len(caught.traceback)

    with small_submission(tmp_path, "def f(:\n") as found:
        frames_of_a_call()
        # Each test's report takes time by the frame: with hundreds of calls it would take a minute.
        assert [frames_of_a_call() for _ in range(5)] == [frames_of_a_call()] * 5


def test_import_missing_file_names_what_is_there(tmp_path: Path) -> None:
    with (
        small_submission(tmp_path, "", files={"awnser.py": ""}) as found,
        pytest.raises(ImportFailed, match=r"answers.py isn't in the submission. .*: answer.py, awnser.py. Did you"),
    ):
        found.call("f", module="answers")


def test_import_module_named_like_a_library_cannot_take_its_place(tmp_path: Path) -> None:
    lies = dict.fromkeys(("numpy.py", "random.py", "json.py", "socket.py"), "raise RuntimeError('shadowed')\n")
    source = "import numpy as np, random, json\ndef f(): return np.ones(2), random.__file__.endswith('/answer.py')\n"
    with small_submission(tmp_path, source, files=lies) as found:
        ones, shadowed = found.call("f")
        assert ones.tolist() == [1.0, 1.0]
        assert shadowed is False


def test_import_file_named_like_the_standard_library_is_loaded_when_asked_for(tmp_path: Path) -> None:
    source = "import copy\ndef f(): return copy.copy([1])\n"
    with small_submission(tmp_path, source, files={"copy.py": "def stencil(): return 5\n"}) as found:
        assert found.call("stencil", module="copy") == 5
        assert found.call("f") == [1]


def test_close_leaves_no_process_and_no_descriptor(tmp_path: Path) -> None:
    with small_submission(tmp_path, "import os\ndef f(): return os.getpid()\n") as warm:
        warm.call("f")
    before = len(os.listdir("/proc/self/fd"))
    with small_submission(tmp_path, "import os\ndef f(): return os.getpid()\n") as found:
        found.call("f")
        assert found._last is not None
        tree = found._last.launched.tree()
        assert tree
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [pid for pid in tree if is_running(pid)]


def test_call_after_monkeypatched_libraries_still_answers(tmp_path: Path) -> None:
    source = """
import json, os, select, socket, struct, sys, time
import numpy as np
def broken(*a, **k): raise RuntimeError("patched")
for owner, names in ((json, ("dumps", "loads")), (time, ("monotonic", "time")), (os, ("write", "close", "preadv")),
                     (np, ("frombuffer", "full", "array_equal", "shares_memory")), (struct, ("pack", "unpack"))):
    for name in names:
        setattr(owner, name, broken)
sys.stdout = sys.stderr = None
def f(x): return x + 1
"""
    with small_submission(tmp_path, source) as found:
        for _ in range(3):
            assert found.call("f", np.ones(300_000))[0] == 2.0

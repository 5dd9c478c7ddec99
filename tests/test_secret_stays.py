"""The instructor's secret reaches no worker, no report and no bundle: a submission looks for it wherever it can.

The secret is a word and 32 hexadecimal digits; who searches knows the word alone, so finds no copy of its own pattern.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import threading
from pathlib import Path

import psutil
import pytest
from sandbox_tools import IS_ROOT, isolation_at
from toy_course import LAB_ID, PROJECT, write_course, write_submission

from grader.course import Course
from grader.judge.seeds import Seeds
from grader.release.bundle import bundle_files
from grader.report import json as report_json
from grader.report.model import Report
from grader.session import GradeRequest, grade

SECRET = "classroom-key-0123456789abcdef0123456789abcdef"
PATTERN = re.compile(rb"classroom-key-[0-9a-f]{32}")

SEARCH = """
import os
import re

PATTERN = re.compile(b"classroom-" + b"key-[0-9a-f]{32}")


def read(path, start=0, size=1 << 24):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, start)
    except OSError:
        return b""
    finally:
        os.close(fd)


def memory(pid):
    for line in read(f"/proc/{pid}/maps").decode("utf-8", "replace").splitlines():
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if line.split()[1].startswith("r") and end - start < 1 << 26 and start < 1 << 47:
            yield read(f"/proc/{pid}/mem", start, end - start)


def descriptors(pid):
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        yield read(f"/proc/{pid}/fd/{name}") if name != "3" or pid != "self" else b"socket"


def pids():
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return [str(os.getppid() - back) for back in range(20)]


def double(x):
    found, looked = [], {"own": len(repr(dict(os.environ)))}
    for pid in ["self", *pids()]:
        for kind, texts in (
            ("environ", [read(f"/proc/{pid}/environ")]),
            ("cmdline", [read(f"/proc/{pid}/cmdline")]),
            ("memory", memory(pid)),
            ("descriptors", descriptors(pid)),
        ):
            for text in texts:
                looked[kind] = looked.get(kind, 0) + len(text)
                if PATTERN.search(text):
                    found.append(f"{kind} of {pid}")
    if PATTERN.search(repr(dict(os.environ)).encode()):
        found.append("os.environ")
    if read("SECRET-FILE"):
        found.append("its file")
    raise RuntimeError(f"FOUND {sorted(set(found))}" if found else f"NOTHING in {looked}")
"""

UNTIL_LOOKED_AT = """
import signal
import threading

looked = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: looked.set())


def double(x):
    looked.wait(20)
    return x * 2
"""


@pytest.fixture(params=["variable", "file"])
def secret_file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The secret put to use in one of the two ways; the file is there in both."""
    file = tmp_path / "instructor" / "secret"
    file.parent.mkdir()
    file.write_text(SECRET)
    file.chmod(0o600)
    monkeypatch.delenv("GRADE_SECRET", raising=False)
    monkeypatch.delenv("GRADE_SECRET_FILE", raising=False)
    if request.param == "variable":
        monkeypatch.setenv("GRADE_SECRET", SECRET)
    else:
        monkeypatch.setenv("GRADE_SECRET_FILE", str(file))
    return file


@pytest.fixture
def course(tmp_path: Path) -> Course:
    tmp_path.chmod(0o755)
    return write_course(tmp_path / "course")


def graded(course: Course, submission: Path, level: str) -> Report:
    return grade(
        GradeRequest(course=course, lab_id=LAB_ID, submission=submission, device="cpu", isolation=level, select="small")
    )


def small(report: Report) -> str:
    return next(check.message for check in report.checks if check.id == "small")


@pytest.mark.parametrize("level", ["sealed", "uid", "process"])
def test_secret_is_not_found_by_a_submission_that_searches(
    course: Course, secret_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    isolation_at(level, monkeypatch, packages=True)
    submission = write_submission(tmp_path / "ada", SEARCH.replace("SECRET-FILE", str(secret_file)))
    report = graded(course, submission, level)
    message = small(report)
    assert "NOTHING in" in message, message
    looked = dict(re.findall(r"'(\w+)': (\d+)", message))
    # It did look: a search that reads nothing would prove nothing.
    assert int(looked["own"]) > 0
    if level in ("sealed", "uid"):
        # At the level `process` nothing of /proc can be opened at all.
        assert int(looked["environ"]) > 0
        assert int(looked["cmdline"]) > 0
        assert int(looked["memory"]) > 1 << 20
    assert report.seed.source == "secret"
    assert report.seed.key_id == Seeds(SECRET.encode(), "secret").record().key_id
    assert not PATTERN.search(report_json.dumps(report).encode())


@pytest.mark.skipif(not IS_ROOT, reason="only root may look into the worker from outside")
def test_secret_is_in_nothing_of_a_running_worker(course: Course, secret_file: Path, tmp_path: Path) -> None:
    submission = write_submission(tmp_path / "ada", UNTIL_LOOKED_AT)
    thread = threading.Thread(target=graded, args=(course, submission, "auto"))
    before = set(psutil.Process().children(recursive=True))
    thread.start()
    seen = 0
    try:
        while thread.is_alive():
            for process in set(psutil.Process().children(recursive=True)) - before:
                # A child that hasn't begun another program yet is a copy of the judge; no submission has run in it.
                if is_worker(process.pid):
                    called = handles_the_signal(process.pid)
                    texts = list(texts_of(process.pid))
                    assert not [kind for kind, text in texts if PATTERN.search(text)]
                    if called:
                        seen = max(seen, sum(len(text) for _, text in texts))
                        with contextlib.suppress(psutil.NoSuchProcess):  # let go before, and ended since
                            process.send_signal(signal.SIGUSR1)
            thread.join(0.05)
    finally:
        thread.join()
    assert seen > 1 << 20


def handles_the_signal(pid: int) -> bool:
    """Whether the submission has been imported in that process."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read(f"/proc/{pid}/status").decode(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def is_worker(pid: int) -> bool:
    return b"grader_worker" in read(f"/proc/{pid}/cmdline") or b"bootstrap" in read(f"/proc/{pid}/cmdline")


def texts_of(pid: int) -> list[tuple[str, bytes]]:
    texts = [(kind, read(f"/proc/{pid}/{kind}")) for kind in ("environ", "cmdline", "maps")]
    for line in read(f"/proc/{pid}/maps").decode("utf-8", "replace").splitlines():
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if line.split()[1].startswith("r") and end - start < 1 << 26 and start < 1 << 47:
            texts.append(("memory", read(f"/proc/{pid}/mem", start, end - start)))
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # it may end meanwhile
        for name in os.listdir(folder):
            if stat.S_ISREG(os.stat(f"{folder}/{name}").st_mode):
                texts.append(("descriptor", read(f"{folder}/{name}")))
    return texts


def read(path: str, start: int = 0, size: int = 1 << 24) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            if start:
                file.seek(start)
            return file.read(size) or b""
    except OSError:
        return b""


def test_secret_is_not_in_the_bundle(secret_file: Path) -> None:
    files = bundle_files(Course.find(PROJECT), ["lab02_online_softmax"])
    assert not [name for name, raw in files.items() if PATTERN.search(raw)]

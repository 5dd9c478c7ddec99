"""A class of the toy lab, and `grade batch` as a process of its own that a test may kill."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from toy_course import LAB_ID, LAB_TOML, REFERENCE, write_course, write_submission

from grader.course import Course
from grader.sandbox import processes

SECRET = "a secret of the tests, long enough"
PROJECT = Path(__file__).resolve().parent.parent
SLOW = "import time\n\ndef double(x):\n    time.sleep(0.4)\n    return x * 2\n"
ANSWERS: dict[str, str] = {
    "ada": REFERENCE,
    "bob": "def double(x):\n    return x * 1\n",
    "cyd": "import os\n\ndef double(x):\n    os._exit(0)\n",
    "dee": "import time\n\ndef double(x):\n    while len(x) == 7:\n        time.sleep(1)\n    raise ValueError\n",
    "eve": "def double(x:\n",
    "fay": REFERENCE.replace("x * 2", "x + x"),
}
"""Student → double.py: right, wrong, ending its process, never ending one check, no Python, right in another way."""


def hurried_course(root: Path) -> Course:
    """The toy course, where a call that hangs is given up soon in the check that hangs for one of `ANSWERS`."""
    return write_course(root, lab_toml=LAB_TOML.replace("points = 40", "points = 40\ntimeout_s = 6.0"))


def write_class(folder: Path, answers: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for student, source in answers.items():
        write_submission(folder / student / LAB_ID, source)
    return folder


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-c", "from grader.cli.main import main; main()", *map(str, words)]


def environment(course: Course, tmp: Path) -> dict[str, str]:
    """Of a `grade` that finds the toy course, has its secret, and whose temporary folder is `tmp`."""
    tmp.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("GRADE_SECRET_FILE", "GRADE_LOG")}
    return {**kept, "GRADE_COURSE": str(course.root), "GRADE_SECRET": SECRET, "TMPDIR": str(tmp), "NO_COLOR": "1"}


def run_grade(course: Course, tmp: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """A `grade` command, run to its end."""
    return subprocess.run(
        command(*words), env=environment(course, tmp), cwd=PROJECT, capture_output=True, text=True, check=False
    )


def start_grade(course: Course, tmp: Path, *words: str | Path) -> subprocess.Popen[str]:
    """A `grade` command that goes on while the test does something to it."""
    return subprocess.Popen(
        command(*words),
        env=environment(course, tmp),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def table(results: Path) -> list[dict[str, str]]:
    """The gradebook without its times."""
    with open(results / "gradebook.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if name not in ("received_at", "graded_at")} for row in rows]


def finals(results: Path) -> dict[str, str]:
    return {row["student"]: row["final"] for row in table(results)}


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
    """Wait until it holds; fails the test with `what` when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def judges_of(course: Course) -> list[int]:
    """The warm judge of a batch on this course and its grading processes, by the words that they were started with."""
    named = str(course.root).encode()
    found = []
    for pid in processes.all_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"grader.batch.server" in words and named in words and processes.is_running(pid):
            found.append(pid)
    return found


def run_ids(results: Path) -> set[str]:
    """Ids of the grading processes that have started a worker, by which those workers can be found."""
    return {path.name.removeprefix("run-") for path in (results / ".work" / "tmp").glob("grade-*/run-*")}


def workers_of(ids: set[str]) -> list[int]:
    found = [pid for name in ids for pid in processes.tagged(f"GRADE_WORKER_RUN={name}".encode())]
    return [pid for pid in found if processes.is_running(pid)]


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())

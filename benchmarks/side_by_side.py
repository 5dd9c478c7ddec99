"""Grades several labs at once on one GPU: what isn't timed side by side, what is timed by itself.

The device's lock is held here until every job has reached its first timed check, where it waits for that lock. Then
nothing but timed checks is left, and those take turns by it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grader.judge.speed.lock import device_lock

ROOT = Path(__file__).resolve().parent.parent
MODULE = "benchmarks.speed_on_gpu"
TIMED = ": timed from here on"
"""Ends the line that a job writes when it comes to a timed check."""
LONGEST_S = 480.0
"""After that the lock is given up whatever the jobs do: they wait for it no longer than ten minutes."""


def run(jobs: Mapping[str, Sequence[str]], device: str, say: Callable[[str], None]) -> None:
    """Run all jobs to their ends.

    Args:
        jobs: name → arguments of `MODULE`.
        device: whose lock.
        say: told every line that a job writes.
    """
    early = set(jobs)
    changed = threading.Condition()

    def follow(name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            say(f"{name}: {line.rstrip()}")
            if line.rstrip().endswith(TIMED):
                arrived(name)
        process.wait()
        arrived(name)

    def arrived(name: str) -> None:
        with changed:
            early.discard(name)
            changed.notify()

    with device_lock(device):
        threads = [threading.Thread(target=follow, args=(name, _start(job))) for name, job in jobs.items()]
        for thread in threads:
            thread.start()
        with changed:
            changed.wait_for(lambda: not early, LONGEST_S)
        say("the timed checks begin")
    for thread in threads:
        thread.join()


def _start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", MODULE, *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )

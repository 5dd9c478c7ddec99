"""Runs programs on the GPUs at hand, as many at once on each as is told, and passes on what they say."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(
    jobs: Mapping[str, Sequence[str]], devices: Sequence[str], say: Callable[[str], None], *, on_each: int
) -> dict[str, int]:
    """Run all jobs to their ends, in the order given.

    Args:
        jobs: name → arguments of Python.
        devices: values for CUDA_VISIBLE_DEVICES; an empty one leaves it as it is.
        say: told every line that a job writes.
        on_each: jobs that a device runs at once.

    Returns:
        name → exit code.

    Raises:
        ValueError: there are jobs and no device.
    """
    free: queue.Queue[str] = queue.Queue()
    for _ in range(on_each):
        for device in devices:
            free.put(device)
    if jobs and free.empty():
        # Each job would wait for a device that never comes.
        raise ValueError("no GPU to run on: nvidia-smi lists none")
    at_once = min(len(jobs), free.qsize()) or 1
    threads = max(1, (os.cpu_count() or 1) // at_once)

    def follow(name: str) -> int:
        device = free.get()
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if device:
            environment["CUDA_VISIBLE_DEVICES"] = device
        try:
            with _start(jobs[name], environment) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    say(f"{name}: {line.rstrip()}")
            return process.returncode
        finally:
            free.put(device)

    with ThreadPoolExecutor(at_once) as pool:
        return dict(zip(jobs, pool.map(follow, jobs), strict=True))


def _start(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )

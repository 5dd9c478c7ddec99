"""The same class through a real dask cluster of two workers, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from batch_tools import (
    ANSWERS,
    PROJECT,
    environment,
    eventually,
    hurried_course,
    judges_of,
    run_grade,
    table,
    write_class,
)

from grader.batch.cluster import connected
from grader.course import Course
from grader.errors import ExitCode
from grader.modules import load_module

pytest.importorskip("distributed")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return hurried_course(tmp_path / "course")


def dask(course: Course, tmp: Path, *words: str) -> subprocess.Popen[bytes]:
    code = f"from distributed.cli.{words[0]} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words[1:]],
        env=environment(course, tmp),
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def is_whole(address: Path) -> bool:
    """Whether the scheduler has written all of its file: it's there, and empty, before."""
    return address.is_file() and address.read_text().endswith("\n}")


@pytest.fixture
def scheduler(course: Course, tmp_path: Path) -> Iterator[str]:
    """Address file of a scheduler with two workers."""
    address = tmp_path / "scheduler.json"
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = stack.enter_context(dask(course, tmp_path / "tmp", *words))
            stack.callback(process.terminate)
            return process

        common = ("--no-dashboard", "--scheduler-file", str(address))
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common)
        eventually(lambda: is_whole(address), "the scheduler didn't start")
        for name in ("one", "two"):
            folder = ("--local-directory", str(tmp_path / name))
            start("dask_worker", "--no-nanny", "--nthreads", "1", "--name", name, *folder, *common)
        found = json.loads(address.read_text())["address"]
        with connected(found) as client:
            client.wait_for_workers(2, timeout=300)  # the first would take all jobs if the second came late
        yield found
    eventually(lambda: not judges_of(course), "warm judges outlived the cluster")


def test_batch_on_a_cluster_gives_the_table_of_this_machine(course: Course, tmp_path: Path, scheduler: str) -> None:
    submissions = write_class(tmp_path / "class", ANSWERS)
    (submissions / "gus").mkdir()
    here, there, tmp = tmp_path / "here", tmp_path / "there", tmp_path / "tmp"
    assert run_grade(course, tmp, "batch", submissions, "-o", here).returncode == ExitCode.OK
    done = run_grade(course, tmp, "batch", submissions, "-o", there, "--scheduler", scheduler)
    assert done.returncode == ExitCode.OK, done.stderr
    assert table(there) == table(here)
    assert "7 submissions: 6 graded, 1 refused" in done.stderr
    assert len(judges_of(course)) == 2, "both workers graded"


def test_batch_without_a_scheduler_is_an_infrastructure_failure(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grader.batch.cluster.CONNECT_TIMEOUT_S", 1)
    from grader.errors import InfrastructureError

    with (
        pytest.raises(InfrastructureError, match="No dask scheduler answers"),
        connected("tcp://127.0.0.1:1"),
    ):
        pass


def test_batch_jobs_with_a_scheduler_is_a_usage_error(course: Course, tmp_path: Path) -> None:
    submissions = write_class(tmp_path / "class", {"ada": ANSWERS["ada"]})
    words = ("batch", submissions, "-o", tmp_path / "results", "--scheduler", "tcp://127.0.0.1:1", "--jobs", "2")
    done = run_grade(course, tmp_path / "tmp", *words)
    assert done.returncode == ExitCode.USAGE
    assert "of this machine" in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("gpu", [False, True])
def test_slurm_cluster_asks_for_one_thread_a_worker(gpu: bool) -> None:
    """What dask-jobqueue would submit; no Slurm is needed to write it."""
    pytest.importorskip("dask_jobqueue")
    module = load_module(PROJECT / "cluster" / "slurm_dask.py", "slurm_dask")
    with module.make_cluster(gpu=gpu, cores=4) as cluster:
        script = cluster.job_script()
    assert "#SBATCH --cpus-per-task=4" in script
    last = script.strip().splitlines()[-1].split()
    assert last[len(last) - 1 - last[::-1].index("--nthreads") + 1] == "1"
    if gpu:
        assert "#SBATCH --gres=gpu:1" in script
        assert last[last.index("--resources") + 1] == "GPU=1"
        assert "--nworkers" not in last
    else:
        assert last[last.index("--nworkers") + 1] == "4"

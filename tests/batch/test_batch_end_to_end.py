"""`grade batch` on a small class, as a whole: what comes out, and what a kill at any moment costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from batch_tools import (
    ANSWERS,
    PROJECT,
    SLOW,
    environment,
    eventually,
    files_below,
    finals,
    hurried_course,
    judges_of,
    run_grade,
    run_ids,
    start_grade,
    table,
    workers_of,
    write_class,
)
from toy_course import write_course

from grader.course import Course
from grader.errors import ExitCode
from grader.sandbox import processes

FINALS = {"ada": "100", "bob": "0", "cyd": "0", "dee": "0", "eve": "0", "fay": "100"}


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return write_course(tmp_path / "course")


def slow_class(folder: Path, count: int = 4) -> Path:
    return write_class(folder, {f"s{number}": SLOW for number in range(count)})


def records(results: Path) -> list[Path]:
    return sorted((results / "records").glob("*/*/*.json"))


def test_batch_hostile_class_gives_everyone_a_row_and_leaves_nothing_behind(tmp_path: Path) -> None:
    course = hurried_course(tmp_path / "course")
    submissions = write_class(tmp_path / "class", ANSWERS)
    (submissions / "gus").mkdir()
    before = files_below(tmp_path)
    done = run_grade(course, tmp_path / "tmp", "batch", submissions, "-o", tmp_path / "results", "--jobs", "2")
    assert done.returncode == ExitCode.OK, done.stderr
    assert finals(tmp_path / "results") == FINALS | {"gus": ""}
    assert {"similarity.json", "similarity.html"} <= {path.name for path in (tmp_path / "results").iterdir()}
    assert "7 submissions: 6 graded, 1 refused" in done.stderr
    assert "[7/7]" in done.stderr
    assert "\x1b" not in done.stderr
    assert not judges_of(course)
    new = set(files_below(tmp_path)) - set(before)
    assert {path for path in new if not path.startswith("results/")} == set()
    assert not (tmp_path / "results" / ".work").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_batch_resume_keeps_results_and_grades_what_changed(course: Course, tmp_path: Path) -> None:
    submissions = write_class(tmp_path / "class", {name: ANSWERS[name] for name in ("ada", "bob")})
    words = ("batch", submissions, "-o", tmp_path / "results", "--jobs", "1")
    assert run_grade(course, tmp_path / "tmp", *words).returncode == ExitCode.OK
    refused = run_grade(course, tmp_path / "tmp", *words)
    assert refused.returncode == ExitCode.USAGE
    assert "--resume" in refused.stderr
    write_class(submissions, {"bob": ANSWERS["fay"]})
    again = run_grade(course, tmp_path / "tmp", *words, "--resume")
    assert "2 submissions: 1 graded, 1 kept from before" in again.stderr
    assert finals(tmp_path / "results") == {"ada": "100", "bob": "100"}


def test_batch_results_among_the_submissions_are_refused(course: Course, tmp_path: Path) -> None:
    (tmp_path / "class" / "ada").mkdir(parents=True)
    for results in ("class/results", "class", "."):
        done = run_grade(course, tmp_path / "tmp", "batch", tmp_path / "class", "-o", tmp_path / results)
        assert done.returncode == ExitCode.USAGE
        assert "one lies in the other" in done.stderr
    assert [path.name for path in (tmp_path / "class").iterdir()] == ["ada"]


def test_batch_keeps_the_roster_that_was_named_for_later_commands(course: Course, tmp_path: Path) -> None:
    (tmp_path / "class" / "77").mkdir(parents=True)
    roster = tmp_path / "who.csv"
    roster.write_text("student,folder\nada,77\nben,78\n")
    results = tmp_path / "results"
    results.mkdir()
    entry = '[[overrides]]\nstudent = "zed"\ncheck = "small"\npoints = 1\nreason = "r"\ndate = 2026-03-10\n'
    (results / "overrides.toml").write_text(f"format_version = 1\n{entry}")
    tmp = tmp_path / "tmp"
    done = run_grade(course, tmp, "batch", tmp_path / "class", "-o", results, "--roster", roster, "--jobs", "1")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "overrides.toml: `overrides` entry 1 (student 'zed'): no effect: no student 'zed'" in done.stderr
    rows = table(results)
    assert [(row["student"], row["status"]) for row in rows] == [("ada", "refused"), ("ben", "missing")]
    roster.unlink()
    (results / "overrides.toml").unlink()
    (results / "gradebook.csv").unlink()
    assert run_grade(course, tmp, "gradebook", results).returncode == ExitCode.OK
    assert table(results) == rows
    assert (results / "roster.csv").stat().st_mode & 0o777 == 0o600


def test_batch_wrong_overrides_are_told_before_anything_is_graded(course: Course, tmp_path: Path) -> None:
    submissions = write_class(tmp_path / "class", {"ada": ANSWERS["ada"]})
    results = tmp_path / "results"
    results.mkdir()
    (results / "overrides.toml").write_text('format_version = 1\n[[overrides]]\nstudent = "ada"\n')
    done = run_grade(course, tmp_path / "tmp", "batch", submissions, "-o", results)
    assert done.returncode == ExitCode.USAGE
    assert "`points` of `overrides` entry 1 (student 'ada') is missing" in done.stderr
    assert [path.name for path in results.iterdir()] == ["overrides.toml"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The table of the slow class, undisturbed."""
    root = tmp_path_factory.mktemp("calm")
    course, submissions = write_course(root / "course"), slow_class(root / "class")
    done = run_grade(course, root / "tmp", "batch", submissions, "--jobs", "2", "-o", root / "results")
    assert done.returncode == ExitCode.OK, done.stderr
    return table(root / "results")


def killed(candidates: list[int]) -> bool:
    """Whether one of the processes could be killed; each may end by itself before."""
    for pid in candidates:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


@pytest.mark.parametrize("victim", ["parent", "judge", "job"])
def test_batch_killed_and_resumed_gives_the_table_of_an_undisturbed_run(
    course: Course, tmp_path: Path, victim: str, calm: list[dict[str, str]]
) -> None:
    submissions, results = slow_class(tmp_path / "class"), tmp_path / "results"
    tmp = tmp_path / "tmp"
    words = ("batch", submissions, "--jobs", "2", "-o")
    batch = start_grade(course, tmp, *words, results)
    eventually(lambda: len(records(results)) >= 1 and len(judges_of(course)) >= 2, "no submission was graded")
    ids = run_ids(results)
    victims: dict[str, Callable[[], list[int]]] = {
        "parent": lambda: [batch.pid],
        "judge": lambda: [pid for pid in judges_of(course) if processes.parent(pid) == batch.pid],
        "job": lambda: [pid for pid in judges_of(course) if processes.parent(pid) != batch.pid],
    }
    eventually(lambda: killed(victims[victim]()), f"there was no {victim} to kill")
    _, said = batch.communicate(timeout=300)
    if victim == "parent":
        eventually(lambda: not judges_of(course) and not workers_of(ids), "processes outlived a killed batch")
        assert all(path.read_text().endswith("}\n") for path in records(results))
        again = run_grade(course, tmp, *words, results, "--resume")
        assert again.returncode == ExitCode.OK
        assert "kept from before" in again.stderr
    else:
        assert batch.returncode == ExitCode.OK, said
    assert table(results) == calm
    assert not judges_of(course)
    assert not workers_of(ids)
    assert not (results / ".work").exists()
    assert list(tmp.iterdir()) == []


def test_batch_stopped_by_sigterm_keeps_what_is_done(course: Course, tmp_path: Path) -> None:
    # More than can be graded until the signal comes, however slow this machine is.
    submissions, results = slow_class(tmp_path / "class", 100), tmp_path / "results"
    batch = start_grade(course, tmp_path / "tmp", "batch", submissions, "-o", results, "--jobs", "1")
    eventually(lambda: len(records(results)) >= 1 and bool(run_ids(results)), "no submission was graded")
    ids = run_ids(results)
    second = run_grade(course, tmp_path / "tmp", "batch", submissions, "-o", results, "--resume")
    assert second.returncode == ExitCode.USAGE
    assert "Another batch is writing" in second.stderr
    batch.terminate()
    _, said = batch.communicate(timeout=300)
    assert batch.returncode == 128 + signal.SIGTERM
    assert "--resume goes on" in said
    assert len(table(results)) == len(records(results)) < 100
    assert not judges_of(course)
    assert not workers_of(ids)
    assert not (results / ".work").exists()


def test_slurm_array_merged_gives_the_table_of_the_whole(course: Course, tmp_path: Path) -> None:
    """The script that is handed to sbatch, run with what Slurm would tell each of its tasks."""
    submissions = write_class(tmp_path / "class", {f"s{number}": ANSWERS["fay"] for number in range(5)})
    tmp, results = tmp_path / "tmp", tmp_path / "results"
    assert run_grade(course, tmp, "batch", submissions, "-o", tmp_path / "whole").returncode == ExitCode.OK
    grade = tmp_path / "grade"
    grade.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from grader.cli.main import main; main()" "$@"\n')
    grade.chmod(0o755)
    for task in ("1", "2"):
        slurm = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "2"}
        done = subprocess.run(
            ["bash", PROJECT / "cluster" / "grade_array.sbatch", submissions, results, "--labs", "lab01"],
            env=environment(course, tmp) | slurm | {"GRADE": str(grade)},
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == ExitCode.OK, done.stderr
        assert 0 < len(records(results / f"part-{task}")) < 5
    parts = sorted(results.glob("part-*"))
    merged = run_grade(course, tmp, "merge", tmp_path / "merged", *parts)
    assert merged.returncode == ExitCode.OK, merged.stderr
    assert table(tmp_path / "merged") == table(tmp_path / "whole")
    lacking = run_grade(course, tmp, "merge", tmp_path / "lacking", parts[0])
    assert lacking.returncode == ExitCode.USAGE
    assert "2/2" in lacking.stderr

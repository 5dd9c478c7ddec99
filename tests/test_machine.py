"""A full or read-only disk and used-up descriptors: told as what they are, ended with 3, and nothing is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from batch_tools import ANSWERS, PROJECT, command, environment, finals, run_grade, write_class
from classroom.factory import graded
from toy_course import LAB_ID, write_course

from grader import files
from grader.batch.grading import grade_job
from grader.batch.intake.source import walk
from grader.capstones.layout import lay_out as lay_out_capstone
from grader.classroom.records import ResultsFolder
from grader.course import Course
from grader.errors import ExitCode
from grader.judge.faults import Context, classify
from grader.judge.seeds import write_secret
from grader.machine import MachineError, of_this_machine, out_of_resources, unwritable
from grader.report.model import Status
from grader.sandbox import launch, stage, tree
from grader.workspace import lay_out

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "No space is left on the disk: /x."),
        (errno.EDQUOT, "The disk quota is used up: /x."),
        (errno.EROFS, "The file system is read-only: /x."),
        (errno.EFBIG, "A file reached the largest size allowed: /x."),
        (errno.EIO, "The disk reports an input/output error: /x."),
        (errno.EMFILE, "This process has as many files open as it may"),
        (errno.ENFILE, "This machine has as many files open as it may"),
    ],
)
def test_out_of_resources_says_what_where_and_what_to_do(number: int, said: str) -> None:
    told = out_of_resources(OSError(number, os.strerror(number)), "/x")
    assert isinstance(told, MachineError)
    assert told.message.startswith(said)
    assert told.hint
    assert told.exit_code is ExitCode.INFRASTRUCTURE
    assert isinstance(unwritable("-o x", OSError(number, "-"), hint="h"), MachineError)


def test_refused_access_is_the_machines_only_where_nobody_named_the_place() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/y")
    assert out_of_resources(denied) is None
    assert of_this_machine(denied).message == "Permission is denied: /y."
    assert unwritable("-o y", denied, hint="h").exit_code is ExitCode.USAGE
    assert of_this_machine(FileNotFoundError(errno.ENOENT, "No such file", "/z")) is None


def test_place_of_a_failed_copy_is_the_copy() -> None:
    assert out_of_resources(OSError(errno.ENOSPC, "-", "/source", None, "/copy")).message.endswith(": /copy.")
    assert "TMPDIR" in out_of_resources(FULL).message


# What a submission is graded by must be all of it: a file left out for want of space would cost points.


def failing(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_descriptor(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(("name", "fails"), [("copy_bounded", failing), ("open_regular", no_descriptor)])
def test_stage_that_cannot_copy_ends_and_leaves_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fails: object
) -> None:
    course = write_course(tmp_path / "course")
    monkeypatch.setattr(stage, name, fails)
    with pytest.raises(MachineError, match=r"space|files open"):
        stage.stage(course.root / "solutions" / LAB_ID / "reference", course.lab(LAB_ID), course.starter_dir(LAB_ID))


def test_intake_without_descriptors_ends_and_leaves_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "double.py").write_text("x")
    for name in ("stat", "open"):
        with monkeypatch.context() as patched:
            patched.setattr(tree.os, name, refuse_below(getattr(os, name)))
            with pytest.raises(MachineError, match="files open"):
                walk(tmp_path)


def refuse_below(real: object) -> object:
    """The system's function, out of descriptors for whatever is named relative to an open folder."""

    def call(path: object, *words: object, dir_fd: int | None = None, **more: object) -> object:
        if dir_fd is not None:
            no_descriptor()
        return real(path, *words, dir_fd=dir_fd, **more)  # type: ignore[operator]

    return call


def test_worker_package_half_copied_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []

    def copy2(source: Path, target: Path) -> None:
        copied.append(target)
        if len(copied) == 3:
            failing()
        target.write_bytes(source.read_bytes())

    with monkeypatch.context() as patched:
        patched.setattr(launch.shutil, "copy2", copy2)
        with pytest.raises(MachineError, match="No space"):
            launch._worker_package(tmp_path / "worker", ())
    assert list(tmp_path.iterdir()) == []
    whole = launch._worker_package(tmp_path / "worker", ())
    assert len(list((whole / "grader_worker").glob("*.py"))) > 20


@pytest.mark.parametrize("hidden", [True, False])
def test_check_that_meets_a_full_disk_is_an_error_that_says_so(tmp_path: Path, hidden: bool) -> None:
    lab = write_course(tmp_path / "course").lab(LAB_ID)
    context = Context(lab.checks["long" if hidden else "small"], 1, {}, (), lambda text: None)
    for error in (FULL, out_of_resources(FULL)):
        outcome = classify(error, context)
        assert outcome.status is Status.ERROR
        assert outcome.message.startswith("This machine's fault, not yours: ")
        assert "No space is left on the disk" in outcome.message


def test_job_that_meets_a_full_disk_fails_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        cores = ()
        gpu = None
        source, lab = "ada", LAB_ID

    logged: list[str] = []
    monkeypatch.setattr("grader.batch.grading._request", failing)
    answer = grade_job(Spec(), None, lambda step: None, logged.append)  # type: ignore[arg-type]
    assert "No space is left on the disk" in answer.failure
    assert "Grader fault" not in answer.failure
    assert logged


# Files that a command writes: the old one or the new one, never half of one.


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every file can be made, and nothing can be written into it."""

    class Full:
        def __init__(self, file: object) -> None:
            self._file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()  # type: ignore[attr-defined]

        def write(self, content: object) -> None:
            failing()

    real_open, real_fdopen = open, os.fdopen
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", lambda *words, **more: Full(real_fdopen(*words, **more)))
        patched.setattr(
            "builtins.open",
            lambda path, mode="r", *words, **more: (
                Full(real_open(path, mode, *words, **more))
                if mode[0] in "wx"
                else real_open(path, mode, *words, **more)
            ),
        )
        yield


def test_secret_on_a_full_disk_leaves_no_empty_file(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(MachineError, match="No space"):
        write_secret(tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []


def test_init_on_a_full_disk_leaves_no_empty_starter(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(MachineError, match="No space"):
        lay_out(Course(PROJECT), tmp_path / "work")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_capstone_on_a_full_disk_leaves_nothing_so_that_it_can_be_tried_again(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(MachineError, match="No space"):
        lay_out_capstone(Course(PROJECT), "A", tmp_path / "capstone")
    assert list(tmp_path.iterdir()) == []


def test_replace_on_a_full_disk_keeps_the_old_file(tmp_path: Path, full_disk: None) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="No space"):
        files.replace_text(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_record_on_a_full_disk_is_a_machine_error(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(MachineError, match="No space"):
        ResultsFolder(tmp_path).write(graded())


# The commands


@pytest.mark.parametrize(
    "words",
    [
        ("gradebook", "RESULTS"),
        ("export", "csv", "RESULTS", "-o", "grades.csv"),
        ("export", "gradescope", "RESULTS", "-o", "uploads"),
        ("report", "RESULTS", "-o", "pages"),
        ("leaderboard", "RESULTS", "--html", "site"),
        ("leaderboard", "RESULTS", "--json", "board.json"),
        ("merge", "whole", "RESULTS"),
        ("export", "gradescope-zip", "lab02", "-o", "autograder.zip"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_command_at_the_limit_of_a_files_size_ends_with_3_and_leaves_no_half_file(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """RLIMIT_FSIZE is a full disk that any user can have."""
    results = tmp_path / "RESULTS"
    ResultsFolder(results).write(graded())
    (results / "batch.json").write_text(
        '{"schema_version":1,"submissions":"s","seed":{"source":"random","key_id":"00","key":"ab"},'
        '"time_limit_s":1,"patience":1,"conditions":[],"started_at":"2026-03-02T12:00:00Z"}'
    )
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; exec "$@"', "-", *command(*words)],
        env=environment(Course(PROJECT), tmp_path / "tmp"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == ExitCode.INFRASTRUCTURE, done.stderr
    assert "A file reached the largest size allowed" in done.stderr
    assert "internal error" not in done.stderr
    assert {path for path in tmp_path.rglob("*") if path.is_file()} <= before | {
        results / ".lock",
        tmp_path / "whole" / ".lock",
    }


@pytest.mark.parametrize(("unbuffered", "place"), [("", "stdout."), ("1", "the place that is written to")])
def test_command_whose_stdout_is_full_ends_with_3(unbuffered: str, place: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "grader", "list"],
            cwd=PROJECT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == ExitCode.INFRASTRUCTURE
    assert done.stderr.startswith(f"error: No space is left on the disk: {place}")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 220 KiB: a worker's files alone are more."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=220k", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small file system takes root, outside of a container that forbids it")
    try:
        yield folder
    finally:
        # Lazily: whoever looks into every folder (an indexer, a backup) may be in this one.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_batch_on_a_full_disk_loses_no_points_and_goes_on_with_resume(small_disk: Path, tmp_path: Path) -> None:
    course = write_course(tmp_path / "course")
    submissions = write_class(tmp_path / "class", {name: ANSWERS[name] for name in ("ada", "bob", "fay")})
    words = ("batch", submissions, "-o", small_disk / "results", "--jobs", "2")
    done = run_grade(course, tmp_path / "tmp", *words)
    assert done.returncode == ExitCode.INFRASTRUCTURE, done.stderr
    assert "No space is left on the disk" in done.stderr
    assert "OSError" not in done.stderr
    assert "Free some space" in done.stderr
    assert "--resume" in done.stderr
    kept = [record for record in ResultsFolder(small_disk / "results").records() if record.report is not None]
    assert not [check for record in kept for check in record.report.checks if check.status is not Status.ERROR]
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    done = run_grade(course, tmp_path / "tmp", *words, "--resume")
    assert done.returncode == ExitCode.OK, done.stderr
    assert finals(small_disk / "results") == {"ada": "100", "bob": "0", "fay": "100"}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = run_grade(course, tmp_path / "tmp", *words, "--resume")
    assert done.returncode == ExitCode.INFRASTRUCTURE
    assert f"The file system is read-only: {small_disk / 'results'}." in done.stderr


def test_batch_out_of_descriptors_says_so_and_ends_with_3(tmp_path: Path) -> None:
    course = write_course(tmp_path / "course")
    submissions = write_class(tmp_path / "class", {"ada": ANSWERS["ada"]})
    words = command("batch", submissions, "-o", tmp_path / "results", "--jobs", "1")
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 12; exec "$@"', "-", *words],
        env=environment(course, tmp_path / "tmp"),
        cwd=PROJECT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == ExitCode.INFRASTRUCTURE, done.stderr
    assert "as many files open as it may" in done.stderr
    assert "ulimit -n" in done.stderr
    assert "OSError" not in done.stderr
    done = run_grade(course, tmp_path / "tmp", "batch", submissions, "-o", tmp_path / "results", "--resume")
    assert done.returncode == ExitCode.OK, done.stderr
    assert finals(tmp_path / "results") == {"ada": "100"}

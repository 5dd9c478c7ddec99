"""Runs lab02's checks in this process on a submission's folder, without a sandbox: quick, and open to a debugger."""

from __future__ import annotations

import itertools
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grader.course import Course
from grader.judge.recorder import Judge, Verdict
from grader.judge.seeds import Seeds
from grader.modules import load_module
from grader.report.model import Status
from grader.sandbox.failures import SubmissionRaised

ROOT = Path(__file__).resolve().parents[2]
LAB_ID = "lab02_online_softmax"
MODULE = "online_softmax"
COURSE = Course(ROOT)
LAB = COURSE.lab(LAB_ID)


class _Stub:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._waiting: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._waiting = self._waiting or self._stream.next_blocks()
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop(0).copy()


@dataclass(frozen=True)
class Measured:
    value: Any
    peak_bytes: int


class InProcess:
    """What a test needs of `Submission`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _function(self, function: str, module: str) -> Callable[..., Any]:
        for name in (MODULE, "tolerance"):
            sys.modules.pop(name, None)
        sys.path.insert(0, str(self._folder))
        try:
            return getattr(_load(self._folder / f"{module}.py", module), function)
        finally:
            sys.path.remove(str(self._folder))

    def call(
        self, function: str, /, *args: Any, module: str = MODULE, forbid_warnings: bool = False, **kwargs: Any
    ) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = _run_submitted(self._function(function, module), args, kwargs)
        if forbid_warnings and caught:
            raise SubmissionRaised(caught[0].category.__name__, str(caught[0].message))
        return value

    def measured_call(self, function: str, /, *args: Any, module: str = MODULE, **kwargs: Any) -> Measured:
        target = self._function(function, module)
        tracemalloc.start()
        try:
            value = _run_submitted(target, args, kwargs)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        return Measured(value, peak)

    def host(self, stream: Any, methods: tuple[str, ...]) -> _Stub:
        assert methods == ("next_blocks",)
        return _Stub(stream)

    def read_file(self, name: str) -> bytes | None:
        path = self._folder / name
        return path.read_bytes() if path.exists() else None


def _run_submitted(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise SubmissionRaised(type(error).__name__, str(error)) from error


def _load(path: Path, name: str) -> ModuleType:
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return load_module(path, name)
    finally:
        sys.dont_write_bytecode = before


@dataclass(frozen=True)
class Outcome:
    """How one case of a check ended; `error` is an exception of the judge's own."""

    check_id: str
    status: Status
    message: str
    diagnosis: str


def run_checks(folder: Path, only: str = "", secret: bytes = b"lab02") -> list[Outcome]:
    """The outcome of every case of every check (or of the one check `only`) on a submission's folder."""
    outcomes = []
    for file in ("test_public", "test_hidden"):
        module = _load(COURSE.assignment_dir(LAB_ID) / f"{file}.py", f"lab02_{file}")
        for name, test in list(vars(module).items()):
            marks = getattr(test, "pytestmark", [])
            check_id = next((mark.args[0] for mark in marks if mark.name == "check"), "")
            if name.startswith("test_") and check_id and only in ("", check_id):
                outcomes += [_run(folder, check_id, test, name, case, secret) for case in _cases(marks)]
    return outcomes


def _cases(marks: list[pytest.Mark]) -> list[dict[str, Any]]:
    axes = []
    for mark in marks:
        if mark.name == "parametrize":
            names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
            axes.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in mark.args[1]])
    return [dict(pair for part in parts for pair in part.items()) for parts in itertools.product(*axes)]


def _run(
    folder: Path, check_id: str, test: Callable[..., None], name: str, case: dict[str, Any], secret: bytes
) -> Outcome:
    judge = Judge(
        check_id=check_id,
        lab=LAB,
        profile=None,  # type: ignore[arg-type]  # no check of lab02 looks at hardware
        device="cpu",
        thresholds=LAB.checks[check_id].thresholds,
        seeds=Seeds(secret, "secret"),
        test=f"{name}{sorted(case.items())}",
    )
    try:
        test(submission=InProcess(folder), judge=judge, **case)
    except Verdict as verdict:
        found = verdict.diagnosis.id if verdict.diagnosis else ""
        return Outcome(check_id, verdict.status, verdict.message, found)
    except SubmissionRaised as raised:
        return Outcome(check_id, Status.FAIL, raised.message, "")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the judge's fault
        return Outcome(check_id, Status.ERROR, repr(error), "")
    return Outcome(check_id, Status.PASS, "", "")

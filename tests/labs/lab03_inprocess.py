"""Runs lab03's checks in this process on a submission's folder, without a sandbox: quick, and open to a debugger."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grader.course import Course
from grader.judge.recorder import Judge, Verdict
from grader.judge.seeds import Seeds
from grader.modules import load_module
from grader.report.model import Status
from grader.sandbox.failures import SubmissionRaised
from grader.sandbox.hosting import HostRefusal

ROOT = Path(__file__).resolve().parents[2]
LAB_ID = "lab03_fa1_io"
MODULES = ("fa1", "io_model", "machine")
COURSE = Course(ROOT)
LAB = COURSE.lab(LAB_ID)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _method(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _copied(method(*map(_copied, args), **{key: _copied(value) for key, value in kwargs.items()}))
        except HostRefusal as refusal:
            raise RuntimeError(str(refusal)) from None

    return call


class InProcess:
    """What a test needs of `Submission`. Modules are loaded once an instance, as a worker loads them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def _imports(self) -> Iterator[None]:
        before = {name: sys.modules.pop(name, None) for name in MODULES}
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))
        sys.dont_write_bytecode, bytecode = True, sys.dont_write_bytecode
        try:
            yield
        finally:
            sys.path.remove(str(self._folder))
            sys.dont_write_bytecode = bytecode
            self._modules = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
            sys.modules.update({name: module for name, module in before.items() if module is not None})

    def call(self, function: str, /, *args: Any, module: str = "fa1", **kwargs: Any) -> Any:
        with self._imports():
            importlib.invalidate_caches()
            found = getattr(importlib.import_module(module), function)
            try:
                return found(*args, **kwargs)
            except Exception as error:
                raise SubmissionRaised(type(error).__name__, str(error)) from error

    def host(self, target: Any, methods: tuple[str, ...], attributes: tuple[str, ...] = ()) -> SimpleNamespace:
        offered = {name: _method(getattr(target, name)) for name in methods}
        return SimpleNamespace(**offered, **{name: getattr(target, name) for name in attributes})

    def read_file(self, name: str) -> bytes | None:
        path = self._folder / name
        return path.read_bytes() if path.exists() else None


@dataclass(frozen=True)
class Outcome:
    """How one case of a check ended; `error` is an exception of the judge's own."""

    check_id: str
    status: Status
    message: str
    diagnosis: str


def run_checks(folder: Path, only: str = "", secret: bytes = b"lab03") -> list[Outcome]:
    """The outcome of every case of every check (or of the one check `only`) on a submission's folder."""
    outcomes = []
    submission = InProcess(folder)
    for file in ("test_public", "test_hidden"):
        module = load_module(COURSE.assignment_dir(LAB_ID) / f"{file}.py", f"lab03_{file}")
        for name, test in list(vars(module).items()):
            marks = getattr(test, "pytestmark", [])
            check_id = next((mark.args[0] for mark in marks if mark.name == "check"), "")
            if name.startswith("test_") and check_id and only in ("", check_id):
                outcomes += [_run(submission, check_id, test, name, case, secret) for case in _cases(marks)]
    return outcomes


def new_judge(check_id: str, test: str, secret: bytes = b"lab03") -> Judge:
    return Judge(
        check_id=check_id,
        lab=LAB,
        profile=None,  # type: ignore[arg-type]  # no check of lab03 looks at hardware
        device="cpu",
        thresholds=LAB.checks[check_id].thresholds,
        seeds=Seeds(secret, "secret"),
        test=test,
    )


def _cases(marks: list[pytest.Mark]) -> list[dict[str, Any]]:
    axes = []
    for mark in marks:
        if mark.name == "parametrize":
            names = (mark.args[0],) if isinstance(mark.args[0], str) else mark.args[0]
            axes.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in mark.args[1]])
    return [dict(pair for part in parts for pair in part.items()) for parts in itertools.product(*axes)]


def _run(
    submission: InProcess, check_id: str, test: Callable[..., None], name: str, case: dict[str, Any], secret: bytes
) -> Outcome:
    judge = new_judge(check_id, f"{name}{sorted(case.items())}", secret)
    try:
        test(submission=submission, judge=judge, **case)
    except Verdict as verdict:
        found = verdict.diagnosis.id if verdict.diagnosis else ""
        return Outcome(check_id, verdict.status, verdict.message, found)
    except SubmissionRaised as raised:
        return Outcome(check_id, Status.FAIL, raised.message, "")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the judge's fault
        return Outcome(check_id, Status.ERROR, repr(error), "")
    return Outcome(check_id, Status.PASS, "", "")

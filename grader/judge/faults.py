"""Turns whatever a test raised into an outcome: the student's fault, the machine's, or the grader's own."""

from __future__ import annotations

import builtins
import hashlib
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import pytest

from grader.course import CheckSpec
from grader.errors import GraderError
from grader.judge.outcomes import TestOutcome
from grader.judge.recorder import Verdict
from grader.report.model import Status
from grader.sandbox.failures import ContractViolated, ImportFailed, SubmissionRaised, WorkerFailure

PACKAGE_DIR = Path(__file__).resolve().parent.parent
SANDBOX_DIR = PACKAGE_DIR / "sandbox"
LONGEST_MESSAGE = 2000
"""Characters. A message ends in a report that a person reads; text from a submission could be of any length."""

_PLACE = re.compile(r"^(?P<file>[\w./\-]+\.py):(?P<line>\d{1,6})")
_LIBRARY_ERRORS = frozenset(
    {"CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError", "AcceleratorError"}
)


class Overrun(BaseException):
    """A test used up its overall budget. Not an `Exception`, so that no handler on the way takes it for a failure."""

    def __init__(self, budget_s: float) -> None:
        super().__init__(f"{budget_s:g} s")
        self.budget_s = budget_s


def classify(
    error: BaseException,
    spec: CheckSpec,
    *,
    source_lines: Mapping[str, int],
    log: Callable[[str], None],
) -> TestOutcome:
    """The outcome that `error` means.

    Args:
        source_lines: submitted file → number of its lines; a place in any other file isn't shown for a hidden check.
        log: takes the traceback of a grader fault, for the instructor.
    """
    if isinstance(error, Verdict):
        return TestOutcome(
            error.status, error.message, error.fraction, diagnosis=error.diagnosis, error_map=error.error_map
        )
    if isinstance(error, WorkerFailure):
        message = worker_message(error, hidden=spec.hidden, source_lines=source_lines)
        return TestOutcome(error.status, _capped(message), phase=error.phase)
    if isinstance(error, pytest.skip.Exception):
        return TestOutcome(Status.SKIPPED, str(error.msg or "can't run here"))
    if isinstance(error, Overrun):
        return _overrun(error)
    if isinstance(error, (AssertionError, pytest.fail.Exception)) and not _raised_in(error, PACKAGE_DIR):
        return TestOutcome(Status.FAIL, _assertion(error, spec))
    return _grader_fault(error, log)


def worker_message(error: WorkerFailure, *, hidden: bool, source_lines: Mapping[str, int]) -> str:
    """What a student reads when the worker failed.

    While a hidden check runs, the submission has hidden inputs in its hands, and any text that it chooses could carry
    them out. So of its exceptions only the type, if it is a well-known one, and the place in its own source are told.
    """
    if not hidden:
        return error.message
    if isinstance(error, SubmissionRaised):
        known = error.type_name if _is_known(error.type_name) else "an exception of its own"
        place = _safe_place(error.where, source_lines)
        if known == "TypeError" and not place:
            return "The call was refused (TypeError): compare the function's parameters with the handout."
        told = f"Your code raised {known}{f' at {place}' if place else ''}."
        return f"{told} A hidden check doesn't repeat the exception's text."
    if isinstance(error, ImportFailed):
        return error.message
    if isinstance(error, ContractViolated) and error.from_worker:
        return "The call broke the contract of its function: type, dtype, shape, device, or an input was changed."
    return error.message


def _is_known(type_name: str) -> bool:
    known = getattr(builtins, type_name, None)
    return (isinstance(known, type) and issubclass(known, BaseException)) or type_name in _LIBRARY_ERRORS


def _safe_place(where: str, source_lines: Mapping[str, int]) -> str:
    match = _PLACE.match(where or "")
    if match is None or not 1 <= int(match["line"]) <= source_lines.get(match["file"], 0):
        return ""
    return f"{match['file']}:{match['line']}"


def _overrun(error: Overrun) -> TestOutcome:
    if _passes_through(error.__traceback__, SANDBOX_DIR):
        return TestOutcome(
            Status.TIMEOUT,
            f"Stopped after {error.budget_s:g} s: each call kept its own limit, all of them together took too long.",
            phase="call",
        )
    return TestOutcome(
        Status.ERROR,
        f"Grader fault, not yours: the comparison itself took longer than {error.budget_s:g} s.",
        phase="judge",
    )


def _assertion(error: BaseException, spec: CheckSpec) -> str:
    if spec.hidden:
        return f"This hidden {spec.kind.value} check did not hold."
    said = str(error).strip()
    # Python writes no message for a bare assert, pytest's rewriting writes the expression.
    return (
        _capped(said)
        if said and not said.startswith("assert ")
        else f"This {spec.kind.value} check did not hold{_test_line(error)}."
    )


def _test_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if Path(frame.filename).name.startswith("test_") and frame.line:
            return f": `{frame.line}` ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def _grader_fault(error: BaseException, log: Callable[[str], None]) -> TestOutcome:
    text = "".join(traceback.format_exception(error))
    fault_id = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    log(f"fault {fault_id}\n{text}")
    # Only errors written for a reader are shown: others may hold expected values in their text.
    told = str(error) if isinstance(error, GraderError) else f"{type(error).__name__} in the judge."
    return TestOutcome(
        Status.ERROR, _capped(f"Grader fault, not yours: {told} Report fault {fault_id}."), phase="judge"
    )


def _raised_in(error: BaseException, folder: Path) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).resolve().is_relative_to(folder)


def _passes_through(trace: TracebackType | None, folder: Path) -> bool:
    return any(Path(frame.filename).resolve().is_relative_to(folder) for frame in traceback.extract_tb(trace))


def _capped(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[:LONGEST_MESSAGE]}… ({len(text) - LONGEST_MESSAGE} more characters)"

"""Turns whatever a test raised into an outcome: the student's fault, the machine's, or the grader's own."""

from __future__ import annotations

import builtins
import hashlib
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import pytest

from grader.course import CheckSpec
from grader.errors import GraderError
from grader.judge.outcomes import TestOutcome
from grader.judge.plan import PUBLIC_FILE, RESTORE
from grader.judge.recorder import Verdict
from grader.machine import MachineError, of_this_machine
from grader.report.model import Diagnosis, Status
from grader.sandbox.failures import (
    Crashed,
    ImportFailed,
    NotInterpretable,
    OutOfBounds,
    OutOfMemory,
    SubmissionRaised,
    TimedOut,
    WorkerFailure,
)

PACKAGE_DIR = Path(__file__).resolve().parent.parent
SANDBOX_DIR = PACKAGE_DIR / "sandbox"
LONGEST_MESSAGE = 2000
"""Characters. A message ends in a report that a person reads; text from a submission could be of any length."""

_NO_TEXT = "A hidden check doesn't repeat what it said; where a public check fails too, that one does."
_CONTRACT = (
    "The call broke the contract of its function: a type, dtype, shape or device, a changed input, or a write out of "
    "bounds."
)
OUTSIDE = Diagnosis(id="access-outside", text="Memory outside of every tensor is accessed.")
_PLACE = re.compile(r"^(?P<file>[\w./\-]+\.py):(?P<line>\d{1,6})")
_LIBRARY_ERRORS = frozenset(
    {"CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError", "AcceleratorError"}
)


class Overrun(BaseException):
    """A test used up its overall budget. Not an `Exception`, so that no handler on the way takes it for a failure."""

    def __init__(self, budget_s: float) -> None:
        super().__init__(f"{budget_s:g} s")
        self.budget_s = budget_s


@dataclass(frozen=True)
class Context:
    """What a message about a check may rest on.

    Attributes:
        source_lines: submitted file → number of its lines; a place in any other file isn't shown for a hidden check.
        missing_files: files that the student must write and didn't hand in.
        log: takes the traceback of a grader fault, for the instructor.
    """

    spec: CheckSpec
    memory_mib: int
    source_lines: Mapping[str, int]
    missing_files: tuple[str, ...]
    log: Callable[[str], None]


def classify(error: BaseException, context: Context) -> TestOutcome:
    """The outcome that `error`, raised by a test or its fixtures, means."""
    spec = context.spec
    if isinstance(error, Verdict):
        return TestOutcome(
            error.status, error.message, error.fraction, diagnosis=error.diagnosis, error_map=error.error_map
        )
    if isinstance(error, WorkerFailure):
        message = _discreet(error, context) if spec.hidden else error.message
        diagnosis = OUTSIDE if isinstance(error, OutOfBounds) else None
        undecided = isinstance(error, NotInterpretable)
        return TestOutcome(error.status, _capped(message), diagnosis=diagnosis, phase=error.phase, undecided=undecided)
    if isinstance(error, pytest.skip.Exception):
        return TestOutcome(Status.SKIPPED, str(error.msg or "can't run here"))
    if isinstance(error, Overrun):
        return _overrun(error)
    if isinstance(error, (AssertionError, pytest.fail.Exception)) and not _raised_in(error, PACKAGE_DIR):
        return TestOutcome(Status.FAIL, _assertion(error, spec))
    return _grader_fault(error, context)


def _discreet(error: WorkerFailure, context: Context) -> str:
    """What a student reads when the worker failed in a hidden check.

    The submission then has hidden inputs in its hands, and any text that it chooses (of an exception, a printed line,
    a forged reply) could carry them out. So only well-known types of exception, places in its own source and the
    judge's own words are told. What the public checks say in full is the same failure, more often than not.
    """
    if isinstance(error, TimedOut):
        return error.message  # the judge's own words
    if isinstance(error, SubmissionRaised):
        known = error.type_name if _is_known(error.type_name) else "an exception of its own"
        place = _safe_place(error.where, context.source_lines)
        if known == "NotImplementedError" and place:
            return f"Not written yet: {place} raised NotImplementedError."
        if known == "TypeError" and not place:
            return "The call was refused (TypeError): compare the function's parameters with the handout."
        return f"Your code raised {known}{f' at {place}' if place else ''}. {_NO_TEXT}"
    if isinstance(error, ImportFailed):
        if context.missing_files:
            return f"Missing: {', '.join(context.missing_files)}."
        return f"A file can't be imported, or lacks the function that this check calls. {_NO_TEXT}"
    if isinstance(error, OutOfBounds):
        place = _safe_place(str(error.fault.get("where")), context.source_lines)
        return f"A kernel accesses memory outside of its tensors{f' at {place}' if place else ''}. {_NO_TEXT}"
    if isinstance(error, NotInterpretable):
        return "Triton's interpreter can't run a kernel of this check; a GPU would."
    if isinstance(error, OutOfMemory):
        return f"Memory ran out: the limit is {context.memory_mib} MiB."
    if isinstance(error, Crashed):
        return f"The process ended in the middle of a call: a crash, an exit, a closed connection. {_NO_TEXT}"
    return f"{_CONTRACT} {_NO_TEXT}"


def _is_known(type_name: str) -> bool:
    known = getattr(builtins, type_name, None)
    return (isinstance(known, type) and issubclass(known, BaseException)) or type_name in _LIBRARY_ERRORS


def _safe_place(where: str, source_lines: Mapping[str, int]) -> str:
    match = _PLACE.match(where)
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


def _grader_fault(error: BaseException, context: Context) -> TestOutcome:
    text = "".join(traceback.format_exception(error))
    fault_id = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:6]
    context.log(f"fault {fault_id}\n{text}")
    # Only errors written for a reader are shown: others may hold expected values in their text.
    machine = of_this_machine(error) if isinstance(error, OSError) else error
    if isinstance(machine, MachineError):
        return TestOutcome(Status.ERROR, f"This machine's fault, not yours: {machine}", phase="judge")
    shown = isinstance(error, GraderError) and not context.spec.hidden
    told = str(error) if shown else f"{type(error).__name__} in the judge."
    place = "" if context.spec.hidden or isinstance(error, GraderError) else _in_test_file(error)
    if place:
        told = f"{type(error).__name__} at {place}. If that file isn't as it was handed out: {RESTORE}"
    message = f"Grader fault, not yours: {told} Report fault {fault_id}."
    return TestOutcome(Status.ERROR, _capped(message), phase="judge")


def _in_test_file(error: BaseException) -> str:
    """The line of the lab's own tests that raised, or lacks what it asks for; empty when it was deeper."""
    if isinstance(error, pytest.FixtureLookupError):
        return f"{PUBLIC_FILE} (it asks for {error.argname!r})"
    frames = traceback.extract_tb(error.__traceback__)
    at = frames[-1] if frames else None
    return f"{PUBLIC_FILE}:{at.lineno}" if at is not None and Path(at.filename).name == PUBLIC_FILE else ""


def _raised_in(error: BaseException, folder: Path) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).resolve().is_relative_to(folder)


def _passes_through(trace: TracebackType | None, folder: Path) -> bool:
    return any(Path(frame.filename).resolve().is_relative_to(folder) for frame in traceback.extract_tb(trace))


def _capped(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[:LONGEST_MESSAGE]}… ({len(text) - LONGEST_MESSAGE} more characters)"

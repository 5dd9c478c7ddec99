"""How a conversation with a worker can end other than in a result; each way has its status in the report."""

from __future__ import annotations

from typing import Any, Literal

from grader.report.model import Status

Phase = Literal["import", "compile", "call"]


class WorkerFailure(Exception):
    """A submission didn't give a result.

    Attributes:
        status: what the check gets.
        phase: what the worker was doing.
        message: one or two sentences for the student.
    """

    status: Status = Status.FAIL

    def __init__(self, message: str, *, phase: Phase = "call") -> None:
        super().__init__(message)
        self.message = message
        self.phase: Phase = phase


class SubmissionRaised(WorkerFailure):
    """The submission's code raised an exception.

    Attributes:
        type_name: class of the exception.
        text: its text, as the submission wrote it.
        where: innermost place in the submission's files, e.g. ``fa2_forward.py:34 in flash_attention_forward``.
        frames: up to six such places, outermost first.
    """

    def __init__(
        self, type_name: str, text: str, where: str = "", frames: tuple[str, ...] = (), *, phase: Phase = "call"
    ) -> None:
        self.type_name, self.text, self.where, self.frames = type_name, text, where, frames
        said = f"{type_name}: {text}" if text else type_name
        super().__init__(f"{where}: {said}" if where else said, phase=phase)


class OutOfBounds(WorkerFailure):
    """A kernel was about to load or store outside of every tensor that it was given.

    Attributes:
        fault: what is known of the access: kernel, where, action, tensor, side, distance, index, shape.
    """

    status = Status.CONTRACT

    def __init__(self, message: str, fault: dict[str, Any]) -> None:
        super().__init__(message)
        self.fault = fault


class NotCompilable(WorkerFailure):
    """A kernel doesn't compile; the message is Triton's reason, at the submission's line."""

    def __init__(self, message: str) -> None:
        super().__init__(message, phase="compile")


class NotInterpretable(WorkerFailure):
    """A kernel compiles, but Triton's interpreter can't run it: a GPU would, so it costs nothing here."""

    status = Status.SKIPPED


class ImportFailed(WorkerFailure):
    """A file or function is missing, or a module can't be imported."""

    def __init__(self, message: str) -> None:
        super().__init__(message, phase="import")


class Crashed(WorkerFailure):
    """The worker's process ended: a signal, `os._exit`, a closed connection."""

    status = Status.CRASH


class TimedOut(WorkerFailure):
    """The worker didn't answer in time; the message names the limit."""

    status = Status.TIMEOUT


class OutOfMemory(WorkerFailure):
    """The worker used more memory than it may; the message names the limit."""

    status = Status.OOM


class ContractViolated(WorkerFailure):
    """A wrong type or layout, a changed input, a write out of bounds, or bytes that break the protocol."""

    status = Status.CONTRACT

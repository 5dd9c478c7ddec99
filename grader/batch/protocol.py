"""What the warm judge and its starter say to each other: requests by packet, answers as lines of JSON on a pipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from grader.batch.jobs import Answer, JobSpec, Step
from grader.report.model import Frozen


class Run(Frozen):
    """Grade this; the answer goes into the pipe that comes with the packet."""

    kind: Literal["run"] = "run"
    number: int
    spec: JobSpec


class Kill(Frozen):
    """Send a signal to the process of a job, if it still runs."""

    kind: Literal["kill"] = "kill"
    number: int
    signal: int


class Ended(Frozen):
    """The last line of every pipe, written by the server: how the grading process ended.

    Attributes:
        code: exit code, or minus the signal.
    """

    code: int
    cpu_s: float


_REQUEST: TypeAdapter[Run | Kill] = TypeAdapter(Annotated[Run | Kill, Field(discriminator="kind")])
_LINES: dict[str, type[Step] | type[Answer] | type[Ended]] = {"S": Step, "A": Answer, "E": Ended}
_LETTERS = {model: letter for letter, model in _LINES.items()}


def parse_request(packet: bytes) -> Run | Kill:
    return _REQUEST.validate_json(packet)


def line(message: Step | Answer | Ended) -> bytes:
    """One line: a letter for the kind, then JSON, which holds no newline."""
    return f"{_LETTERS[type(message)]}{message.model_dump_json()}\n".encode()


def parse_line(text: bytes) -> Step | Answer | Ended:
    return _LINES[chr(text[0])].model_validate_json(text[1:])

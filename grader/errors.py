"""Errors that a person reads, and the exit codes that a script reads."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What `grade` answers to the shell."""

    OK = 0
    """Every gradable point was earned."""
    POINTS_LOST = 1
    """The submission was graded and lost points."""
    USAGE = 2
    """The command, a course file or a path is wrong: nothing was graded."""
    INFRASTRUCTURE = 3
    """The grader or the machine failed: the result says nothing about the submission."""


class GraderError(Exception):
    """A failure with a message for its reader: where, what was found, what was expected, what to do next.

    The command line prints the message alone, never a traceback.

    Args:
        message: one or two sentences, naming the place and the value found.
        hint: the next step, an imperative sentence; empty when the message already says it.
    """

    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class UsageError(GraderError):
    """The person at the keyboard asked for something that isn't there or can't be."""

    exit_code = ExitCode.USAGE


class CourseError(GraderError):
    """A course file (lab.toml, course.toml, a hardware profile, a test file) is wrong."""

    exit_code = ExitCode.USAGE


class InfrastructureError(GraderError):
    """The machine or the grader failed; no point may be lost to it."""

    exit_code = ExitCode.INFRASTRUCTURE

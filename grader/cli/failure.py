"""The one place where failures become a message on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from types import FrameType

from grader.cli.console import say
from grader.errors import ExitCode, GraderError
from grader.machine import of_this_machine

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
PIPE_CLOSED = 128 + 13
"""As a shell names an end by SIGPIPE, which Windows lacks."""


def guarded(action: Callable[[], int]) -> int:
    """Run `action` and answer its exit code; no failure leaves a traceback on the screen."""
    asked_to_end = _end_in_order_on_sigterm()
    try:
        code = action()
        sys.stdout.flush()
        return code
    except GraderError as error:
        _explain(error.message, error.hint)
        return int(error.exit_code)
    except KeyboardInterrupt as stopped:
        # A command that keeps something says so in the exception.
        say(f"stopped: {stopped}" if stopped.args else "stopped: nothing of this run was kept")
        return TERMINATED if asked_to_end() else INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone.
        _give_up_stdout()
        return PIPE_CLOSED
    except OSError as error:
        fault = of_this_machine(error, _give_up_stdout())
        if fault is None:
            return _internal(error)
        _explain(fault.message, fault.hint)
        return int(fault.exit_code)
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, it is ours and must be told as such
        return _internal(error)


def _give_up_stdout() -> str:
    """Its name where stdout can't be written any more: flushed once more at exit, it must lead somewhere then."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return "stdout"
    return ""


def _explain(message: str, hint: str) -> None:
    from grader.report.text import clean

    say(f"error: {clean(message)}")
    if hint:
        say(f"       {clean(hint)}")


def _internal(error: Exception) -> int:
    from grader.report.text import one_line

    say(f"internal error: {type(error).__name__}: {one_line(str(error))}")
    say("       This is a fault of the grader or of this machine, not yours; no points are lost to it.")
    text = "".join(traceback.format_exception(error))
    try:
        handle, path = tempfile.mkstemp(prefix="grade-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as unsaved:
        say(f"       The traceback could not be saved ({unsaved.strerror}); it follows.\n{text}")
    else:
        say(f"       The traceback is in {path}: send it to whoever runs the course.")
    return int(ExitCode.INFRASTRUCTURE)


def _end_in_order_on_sigterm() -> Callable[[], bool]:
    """Turn SIGTERM into the same orderly end as Ctrl-C, so that workers and temporary folders go too."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    # Handlers belong to the main thread; a caller in another one (a test, a batch) keeps its own.
    try:
        signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        return lambda: False
    return lambda: bool(received)

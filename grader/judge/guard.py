"""Stops a test that outlives its overall budget, in whatever it is doing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from grader.course import CheckSpec, Limits
from grader.judge.faults import Overrun

CALLS = 20
"""A check may use this many times the limit of one call before it is stopped as a whole."""


def budget_s(spec: CheckSpec, limits: Limits) -> float:
    """Seconds that one test may take in all: a start, a compilation and many calls at their limit."""
    return limits.import_s + limits.compile_s + CALLS * (spec.timeout_s or limits.call_s)


@contextmanager
def guarded(seconds: float) -> Iterator[None]:
    """Raise `Overrun` in the body after `seconds` of wall time.

    It rests on SIGALRM, which only the main thread may set; elsewhere, and on Windows, the limits of the single calls
    are all that holds.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Overrun(seconds)

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)

"""Calls whose answer must be a Triton kernel's: no library's, no shadow of a kernel whose result is thrown away."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from grader.sandbox.failures import ContractViolated, WorkerFailure
from grader.sandbox.outcomes import Traced
from grader.sandbox.wire import Tensor


class KernelCalling(Protocol):
    """The part of the submission that is used here."""

    def watched_call(self, function: str, /, *args: Any, **kwargs: Any) -> Traced: ...
    def noop_call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


def call_kernel(submission: KernelCalling, function: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the submission twice: once watched, once with every kernel launch doing nothing.

    The second call must give another answer, unless the first is all zeros, as rows that see no key are.

    Returns:
        what the first call returned.

    Raises:
        ContractViolated: no kernel was launched, a library did the work, or the launches change nothing.
        WorkerFailure: the first call failed.
    """
    watched = submission.watched_call(function, *args, **kwargs)
    if watched.traffic.library_ops:
        names = ", ".join(watched.traffic.library_ops)
        raise ContractViolated(f"{function} calls {names}; the answer must come from your Triton kernel.")
    if not watched.traffic.launches:
        raise ContractViolated(f"{function} launches no Triton kernel.")
    try:
        idle = submission.noop_call(function, *args, **kwargs)
    except WorkerFailure:
        return watched.value  # A launcher that stumbles over what its idle kernel left did depend on it.
    if _same_answer(watched.value, idle):
        raise ContractViolated(f"{function} gives the same answer when every kernel launch does nothing.")
    return watched.value


def _same_answer(value: Any, idle: Any) -> bool:
    """Whether the first tensor of both results has the same bytes, and isn't all zeros."""
    first, second = _first_tensor(value), _first_tensor(idle)
    if first is None or second is None or first.data.dtype != second.data.dtype:
        return False
    return first.data.tobytes() == second.data.tobytes() and bool(np.any(first.data.astype(np.float64) != 0))


def _first_tensor(value: Any) -> Tensor | None:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return next((part for part in parts if isinstance(part, Tensor)), None)

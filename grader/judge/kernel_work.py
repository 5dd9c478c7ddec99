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
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


def call_kernel(submission: KernelCalling, function: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the submission twice: once watched, once with every kernel launch doing nothing.

    In the watched call the inputs hold their values during launches only. The second call must give another answer,
    unless the first is all zeros, as rows that see no key are. Where something else than a kernel computed with an
    input, a plain call tells whether that went into the answer.

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
    plain = watched.value
    if watched.traffic.input_ops:
        plain = submission.call(function, *args, **kwargs)
    if _same_answer(plain, idle):
        raise ContractViolated(f"{function} gives the same answer when every kernel launch does nothing.")
    if watched.traffic.input_ops and not _near(watched.value, plain):
        names = ", ".join(watched.traffic.input_ops)
        raise ContractViolated(
            f"{function} computes with its inputs outside of a kernel ({names}); the answer must come from your Triton "
            "kernel. Copies, padding and casts of an input are fine."
        )
    return watched.value


def _same_answer(value: Any, idle: Any) -> bool:
    """Whether the first tensor of both results has the same bytes, and isn't all zeros."""
    first, second = _first_tensor(value), _first_tensor(idle)
    if first is None or second is None or first.data.dtype != second.data.dtype:
        return False
    return first.data.tobytes() == second.data.tobytes() and bool(np.any(first.data.astype(np.float64) != 0))


def _near(value: Any, other: Any) -> bool:
    """Whether the first tensors are the same but for rounding: kernels with atomics add up in any order."""
    first, second = _first_tensor(value), _first_tensor(other)
    if first is None or second is None or first.data.shape != second.data.shape:
        return False
    a, b = first.data.astype(np.float64), second.data.astype(np.float64)
    size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return bool(np.allclose(a, b, rtol=0.05, atol=0.05 * size, equal_nan=True))


def _first_tensor(value: Any) -> Tensor | None:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return next((part for part in parts if isinstance(part, Tensor)), None)

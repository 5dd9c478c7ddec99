"""Calls whose answer must be a Triton kernel's: no library's, no shadow of a kernel whose result is thrown away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated, WorkerFailure
from grader.sandbox.outcomes import Traced
from grader.sandbox.wire import Tensor

Judged = Callable[[Any], dict[str, Tensor]]


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


class KernelCalling(Protocol):
    """The part of the submission that is used here."""

    def watched_call(self, function: str, /, *args: Any, **kwargs: Any) -> Traced: ...
    def noop_call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


class TracedCalling(KernelCalling, Protocol):
    """And of one whose bytes are counted."""

    def traced_call(self, function: str, /, *args: Any, **kwargs: Any) -> Traced: ...


PASSES = 8
"""Operations of a launcher's own arithmetic over each number that it is given or returns: Delta takes three over two
tensors of seven, a scale one over one of them."""
SCRATCH_PASSES = 8
"""And over each number of partial results, which merging them takes."""
SCRATCH_PART = 4
"""Partial results beyond so many times what a call is given count for no more."""
SPARE = 1 << 12
"""For calls so small that this says nothing."""
_UNUSED = Diagnosis(id="kernel-unused", text="The output doesn't come from a Triton kernel.")


def call_kernel(submission: KernelCalling, function: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the submission twice: once watched, once with every kernel launch doing nothing.

    In the watched call the inputs hold their values during launches only. The second call must give another answer,
    unless the first is all zeros, as rows that see no key are. Where something else than a kernel computed with an
    input, or with what a kernel wrote, a plain call tells whether that went into the answer.

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
    beside = work_beside(watched, (*args, *kwargs.values()))
    if beside:
        raise ContractViolated(f"{function} {beside}")
    try:
        idle = submission.noop_call(function, *args, **kwargs)
    except WorkerFailure:
        return watched.value  # A launcher that stumbles over what its idle kernel left did depend on it.
    plain, finite = watched.value, _finite(watched.value)
    if watched.traffic.input_ops or not finite:
        plain = submission.call(function, *args, **kwargs)
    if same_answer(plain, idle):
        raise ContractViolated(f"{function} gives the same answer when every kernel launch does nothing.")
    if watched.traffic.input_ops and not _near(watched.value, plain):
        names = ", ".join(watched.traffic.input_ops)
        raise ContractViolated(
            f"{function} computes with its inputs outside of a kernel ({names}); the answer must come from your Triton "
            "kernel. Copies, padding and casts of an input are fine."
        )
    if not finite and _finite(plain):
        raise ContractViolated(
            f"{function} reads what its kernels wrote by another way than torch's operations (NumPy, a pointer); the "
            "answer must come from your Triton kernel."
        )
    return watched.value


def judge_kernel_work(
    judge: Judging, submission: TracedCalling, function: str, tensors: Sequence[Tensor], judged: Judged, **kwargs: Any
) -> None:
    """Fail, naming what does the work instead, unless a call's tensors come from Triton kernels.

    The call is traced, then repeated with every kernel launch doing nothing: each result must change. Then it's
    repeated with the inputs holding other values outside of launches: no result may change.

    Args:
        judged: holds the traced call's value to the right answer and gives its tensors by name.
        kwargs: of the call; `module` among them where it isn't the submission's first file.
    """
    traced = submission.traced_call(function, *tensors, **kwargs)
    if traced.traffic.library_ops:
        names = ", ".join(traced.traffic.library_ops)
        judge.fail(
            f"{function} calls {names}; scores, softmax and output must come from your Triton kernel.",
            diagnosis=Diagnosis(id="library-call", text=f"A library does work that the kernel should do: {names}."),
        )
    if not traced.traffic.launches:
        judge.fail(f"{function} launches no Triton kernel.", diagnosis=_UNUSED)
    beside = work_beside(traced, (*tensors, *kwargs.values()))
    if beside:
        judge.fail(f"{function} {beside}", diagnosis=_UNUSED)
    results = judged(traced.value)
    idle = submission.noop_call(function, *tensors, **kwargs)
    for (name, result), value in zip(results.items(), idle, strict=True):
        if np.array_equal(np.asarray(value.data, np.float64), np.asarray(result.data, np.float64)):
            judge.fail(f"{name} is the same when every kernel launch does nothing.", diagnosis=_UNUSED)
    hidden = submission.watched_call(function, *tensors, **kwargs)
    for (name, result), value in zip(results.items(), hidden.value, strict=True):
        if not np.allclose(np.asarray(value.data, np.float64), np.asarray(result.data, np.float64), 1e-2, 1e-2):
            seen = f" ({', '.join(hidden.traffic.input_ops)})" if hidden.traffic.input_ops else ""
            judge.fail(f"{name} changes with what the inputs hold while no kernel runs{seen}.", diagnosis=_UNUSED)


def work_beside(traced: Traced, given: Sequence[Any]) -> str:
    """Whether a launcher does more arithmetic in torch than casts, scales and merging partial results take.

    Kernels that only copy the inputs leave the work to whatever reads the copies, and every elementwise operation of
    torch is allowed by itself. Attention by those goes over each pair of a query and a key, head_dim times.

    Returns:
        what to say after the function's name; empty where it's as it should be.
    """
    result = traced.value if isinstance(traced.value, (tuple, list)) else [traced.value]
    size = sum(value.data.size for value in (*given, *result) if isinstance(value, Tensor))
    scratch = min(traced.traffic.scratch_bytes // 4, SCRATCH_PART * size)
    allowed = PASSES * size + SCRATCH_PASSES * scratch + SPARE
    done = traced.traffic.torch_elements
    if done <= allowed:
        return ""
    return (
        f"does arithmetic on {done} numbers outside of its kernels, for {size} that it is given and returns; scores, "
        "softmax and output must come from your Triton kernel."
    )


def same_answer(value: Any, idle: Any) -> bool:
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


def _finite(value: Any) -> bool:
    """Whether all numbers of the first tensor are."""
    first = _first_tensor(value)
    return first is None or bool(np.isfinite(first.data.astype(np.float64)).all())


def _first_tensor(value: Any) -> Tensor | None:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return next((part for part in parts if isinstance(part, Tensor)), None)

"""What lab 07's tests call: draw a problem, run the submission's backward on it, judge the three gradients.

problem = judging.problem(judge.rng(), q_len=113, k_len=203, causal=True, upstream="ones")
judging.judge_gradients(judge, problem, judging.run_backward(submission, problem))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, Protocol

import numpy as np

from grader.judge import attention, layouts
from grader.judge.backward.diagnosis import diagnose
from grader.judge.backward.steps import Backward
from grader.judge.compare import Breach, absolute_error, misplaced
from grader.judge.gradients import GradientBounds, Gradients, gradient_bounds, output_and_lse
from grader.judge.oracle import AttentionCase
from grader.judge.precision import Array, numpy_dtype, round_to
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated
from grader.sandbox.wire import Tensor

FORWARD, BACKWARD, DIFFERENTIABLE = "attention_forward", "attention_backward", "flash_attention"
Upstream = Literal["normal", "ones", "large", "cancelling"]
LARGE, CANCELLING = 64.0, 16.0
EXPANDED: layouts.Strides = (0, 0, 0, 0)


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, eq=False)
class Problem:
    """One backward: the forward's case, dO, and how O and dO lie in memory.

    Attributes:
        grad_o: (batch, q_heads, q_len, head_dim), values of the working dtype.
        o, lse: what the forward stores for the backward.
        grad_layout, o_layout: names of `layouts.LAYOUTS`; ``expanded`` is one number with strides 0.
    """

    case: AttentionCase
    grad_o: Array
    o: Array
    lse: Array
    grad_layout: str = "contiguous"
    o_layout: str = "contiguous"

    def arguments(self, device: str) -> tuple[Tensor, ...]:
        """grad_o, q, k, v, o, lse."""
        q, k, v = attention.to_tensors(self.case, device)
        grad_o = _tensor(self.grad_o, self.case.dtype, self.grad_layout, device)
        o = _tensor(self.o, self.case.dtype, self.o_layout, device)
        return grad_o, q, k, v, o, Tensor(self.lse.astype(np.float32), device=device)

    def options(self) -> dict[str, Any]:
        scale = {} if self.case.scale is None else {"scale": self.case.scale}
        return {"causal": self.case.causal, **scale}


def _tensor(values: Array, dtype: str, layout: str, device: str) -> Tensor:
    data = np.ascontiguousarray(values.astype(numpy_dtype(dtype)))
    if layout == "expanded":
        return Tensor(data, device=device, strides=EXPANDED)
    strides, offset = layouts.describe(values.shape, layout)
    return Tensor(data, device=device, strides=strides, offset=offset)


def problem(
    rng: np.random.Generator,
    *,
    upstream: Upstream = "normal",
    grad_layout: str = "contiguous",
    o_layout: str = "contiguous",
    **options: Any,
) -> Problem:
    """Fresh inputs of one backward.

    Args:
        upstream: dO standard normal, all ones (as the gradient of a sum is: expanded, strides 0), 64 times as large, or
            near 16 and -16 in turns of heads with equal queries, so that large parts of dV cancel in a group's sum.
        options: see `attention.case`.
    """
    case = attention.case(rng, **options)
    if upstream == "ones":
        return given(case, np.ones(case.q.shape), "expanded", o_layout)
    values = rng.standard_normal(case.q.shape) * (LARGE if upstream == "large" else 1.0)
    if upstream == "cancelling":
        case = replace(case, q=np.repeat(case.q[:, ::2], 2, axis=1))
        values += np.where(np.arange(case.q_heads) % 2, -CANCELLING, CANCELLING)[:, None, None]
    return given(case, round_to(values, case.dtype), grad_layout, o_layout)


def given(case: AttentionCase, grad_o: Array, grad_layout: str = "contiguous", o_layout: str = "contiguous") -> Problem:
    """A problem of a case and dO, with the O and LSE that a right forward stores."""
    o, lse = output_and_lse(case)
    return Problem(case, grad_o, o, lse, grad_layout, o_layout)


def run_backward(submission: Calling, asked: Problem) -> Gradients:
    """Call the submission's `attention_backward` and check that the answer is three gradients.

    Raises:
        ContractViolated: something else came back. WorkerFailure: the call failed.
    """
    result = submission.call(BACKWARD, *asked.arguments(submission.device), **asked.options())
    return check_gradients(result, asked.case, submission.device)


def check_gradients(result: object, case: AttentionCase, device: str, function: str = BACKWARD) -> Gradients:
    """`result` as (dq, dk, dv).

    Raises:
        ContractViolated: naming the part, what was found and what is expected.
    """
    if not (isinstance(result, (tuple, list)) and len(result) == 3):
        found = f"{len(result)} values" if isinstance(result, (tuple, list)) else type(result).__name__
        raise ContractViolated(f"{function} returned {found}; expected the three tensors (dq, dk, dv).")
    values = []
    for name, value, like in zip(("dq", "dk", "dv"), result, (case.q, case.k, case.v), strict=True):
        if not isinstance(value, Tensor):
            raise ContractViolated(f"{function}: {name} is a {type(value).__name__}, expected a tensor.")
        if value.dtype != case.dtype or tuple(value.shape) != like.shape or value.device[:4] != device[:4]:
            raise ContractViolated(
                f"{function}: {name} is {value.dtype} {tuple(value.shape)} on {value.device}, expected {case.dtype} "
                f"{like.shape} on {device}."
            )
        values.append(np.asarray(value.data, np.float64))
    return Gradients(*values)


def judge_gradients(
    judge: Judging, asked: Problem, found: Gradients, *, label: str = "", bounds: GradientBounds | None = None
) -> None:
    """Hold the gradients to the bounds of the problem; say how close they came, and on failure where and why.

    Raises:
        what `judge.fail` raises: the answer is wrong.
    """
    held = gradient_bounds(asked.case, asked.grad_o) if bounds is None else bounds
    prefix = f"{label}: " if label else ""
    for name, values in found.named().items():
        judge.measure(f"{prefix}{name}_error_over_allowed", held.ratio(name, values))
    breaches = held.breaches(found)
    if breaches:
        known = diagnose(asked.case, asked.grad_o, held, found, _misread(asked))
        judge.fail(prefix + explain(held, found, breaches), diagnosis=known)


def _misread(asked: Problem) -> list[Backward]:
    """The problem with dO, or O, read at the strides of q's layout or as contiguous, where that's another layout."""
    names = dict.fromkeys((asked.case.layouts[0], "contiguous"))

    def reread(values: Array, own: str, name: str) -> Array:
        other = layouts.LAYOUTS[name]
        return layouts.reread(values, own, other.strides(values.shape), layouts.LAYOUTS[own].offset)

    found = []
    for name in names:
        if asked.grad_layout not in (name, "expanded"):
            grad_o = reread(asked.grad_o, asked.grad_layout, name)
            found.append(Backward(asked.case, grad_o, asked.o, asked.lse))
        if asked.o_layout != name:
            found.append(Backward(asked.case, asked.grad_o, reread(asked.o, asked.o_layout, name), asked.lse))
    return found


def explain(bounds: GradientBounds, found: Gradients, breaches: list[Breach]) -> str:
    """The message of wrong gradients: which rules they break, and where."""
    first: dict[str, Breach] = {}
    for breach in breaches:
        first.setdefault(breach.tensor, breach)
    sentences = [f"{breach}." for breach in first.values()]
    right = [name for name in found.named() if name not in first]
    if right:
        verb = "are" if len(right) > 1 else "is"
        sentences.append(f"{' and '.join(right)} {verb} right.")
    for name in first:
        expected, values = bounds.exact.named()[name], found.named()[name]
        wrong = (absolute_error(values, expected) > bounds.bounds[name].allowed.max) | misplaced(values, expected)
        place = _place(wrong)
        if place:
            sentences.append(f"{name} is wrong {place}.")
    return " ".join(sentences)


def _place(wrong: Array) -> str:
    """Where a (batch, heads, rows, columns) mask is true, if that's a part worth naming; no values of inputs in it."""
    if not wrong.any() or wrong.all():
        return ""
    batches, heads = (np.flatnonzero(wrong.any(axis=axes)) for axes in ((1, 2, 3), (0, 2, 3)))
    rows, columns = (np.flatnonzero(wrong.any(axis=axes)) for axes in ((0, 1, 3), (0, 1, 2)))
    parts = []
    for what, hit, total in (
        ("batch entries", batches, wrong.shape[0]),
        ("heads", heads, wrong.shape[1]),
        ("rows", rows, wrong.shape[2]),
        ("columns", columns, wrong.shape[3]),
    ):
        if hit.size < total and hit.size == hit[-1] - hit[0] + 1:
            parts.append(f"in {what} {hit[0]} to {hit[-1]} of {total} only")
    return ", ".join(parts)

"""What a lab's test calls: draw a case, run the submission's forward on it, judge what came back.

case = attention.case(judge.rng(), family="far-below", q_len=113, k_len=203, head_dim=128, dtype="float16")
o, lse = attention.run_forward(submission, case)
attention.judge_forward(judge, case, o, lse)
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np

from grader.judge import diagnosis as diagnoses
from grader.judge import error_maps, families, layouts
from grader.judge.compare import Breach, absolute_error, misplaced
from grader.judge.oracle import AttentionCase, Result, RowView, Window, forward_view
from grader.judge.precision import Array, numpy_dtype
from grader.judge.selftest import assert_inputs_kill
from grader.judge.tolerance import ForwardBounds, forward_bounds, share
from grader.report.model import Diagnosis, ErrorMap
from grader.sandbox.failures import ContractViolated
from grader.sandbox.wire import Record, Tensor

__all__ = [
    "AttentionCase",
    "assert_inputs_kill",
    "bounds_of",
    "case",
    "check_forward",
    "exact",
    "judge_empty",
    "judge_forward",
    "run_forward",
    "to_tensors",
]

FUNCTION = "flash_attention_forward"
WHOLE_SCORES = 1 << 26
"""Up to this many scores the whole output is compared; above it, rows are sampled."""


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def rng(self) -> np.random.Generator: ...
    def measure(self, name: str, value: object) -> None: ...
    def fail(
        self, message: str, *, diagnosis: Diagnosis | None = None, error_map: ErrorMap | None = None
    ) -> NoReturn: ...


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...


def case(
    rng: np.random.Generator,
    *,
    family: str = "normal",
    batch: int = 1,
    q_heads: int = 2,
    kv_heads: int | None = None,
    q_len: int = 128,
    k_len: int | None = None,
    head_dim: int = 64,
    dtype: str = "float16",
    causal: bool = False,
    scale: float | None = None,
    window: Window | None = None,
    layout: str | tuple[str, str, str] = "contiguous",
) -> AttentionCase:
    """Fresh inputs for one call.

    Args:
        rng: the judge's stream (`judge.rng()`).
        family: a name of `families.FAMILIES`.
        kv_heads, k_len: as `q_heads` and `q_len` when None.
        layout: one name of `layouts.LAYOUTS` for q, k, v, or a name each, or ``mixed``. A broadcast layout makes the
            values equal along its axis.

    Raises:
        CourseError: an unknown family, layout or dtype, or sizes that don't fit.
    """
    shape = families.AttentionShape(
        batch, q_heads, q_heads if kv_heads is None else kv_heads, q_len, q_len if k_len is None else k_len, head_dim
    )
    names = layouts.resolve(layout)
    drawn = families.draw(family, rng, shape, dtype)
    q, k, v = (
        layouts.share_broadcast(values, name) for values, name in zip((drawn.q, drawn.k, drawn.v), names, strict=True)
    )
    return AttentionCase(q, k, v, dtype, causal, scale, window, names, family)


def to_tensors(case: AttentionCase, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in the case's dtype and layouts."""
    target = numpy_dtype(case.dtype)

    def one(values: Array, layout: str) -> Tensor:
        strides, offset = layouts.describe(values.shape, layout)
        return Tensor(np.ascontiguousarray(values.astype(target)), device=device, strides=strides, offset=offset)

    q, k, v = (one(values, name) for values, name in zip((case.q, case.k, case.v), case.layouts, strict=True))
    return q, k, v


def run_forward(submission: Calling, case: AttentionCase, **extra: Any) -> tuple[Tensor, Tensor]:
    """Call the submission's `flash_attention_forward` and check what kind of thing comes back.

    `causal` is always passed; `scale` and `window` only where the case sets them, so that defaults are exercised too.

    Args:
        extra: passed to the call (`timeout_s`, or further arguments of the function).

    Returns:
        O in the dtype and shape of q; LSE float32 (batch, q_heads, q_len).

    Raises:
        ContractViolated: something else came back. WorkerFailure: the call failed.
    """
    options: dict[str, Any] = {"causal": case.causal}
    if case.scale is not None:
        options["scale"] = case.scale
    if case.window is not None:
        options["window"] = case.window
    result = submission.call(FUNCTION, *to_tensors(case, submission.device), **options, **extra)
    return check_forward(result, case, submission.device)


def check_forward(result: object, case: AttentionCase, device: str, function: str = FUNCTION) -> tuple[Tensor, Tensor]:
    """`result` as (O, LSE) of a forward call.

    Raises:
        ContractViolated: naming the part, what was found and what is expected.
    """
    shape = (case.batch, case.q_heads, case.q_len, int(case.v.shape[3]))
    return check_pair(result, case.dtype, shape, device, function)


def check_pair(result: object, dtype: str, shape: tuple[int, ...], device: str, function: str) -> tuple[Tensor, Tensor]:
    """`result` as O of that dtype and shape (…, head_dim), and a float32 LSE of the rows' shape.

    Raises:
        ContractViolated: naming the part, what was found and what is expected.
    """
    if not (isinstance(result, (tuple, list, Record)) and len(result) == 2):
        found = f"{len(result)} values" if isinstance(result, (tuple, list, Record)) else type(result).__name__
        raise ContractViolated(f"{function} returned {found}; expected the two tensors (o, lse).")
    o, lse = result
    check_tensor(o, f"{function}: o", dtype, shape, device)
    check_tensor(lse, f"{function}: lse", "float32", shape[:-1], device)
    return o, lse


def check_tensor(value: object, name: str, dtype: str, shape: tuple[int, ...], device: str) -> None:
    """Raises ContractViolated unless `value` is a tensor of that dtype, shape and device."""
    if not isinstance(value, Tensor):
        raise ContractViolated(f"{name} is a {type(value).__name__}, expected a tensor.")
    if value.dtype != dtype:
        raise ContractViolated(f"{name} has dtype {value.dtype}, expected {dtype}.")
    if tuple(value.shape) != shape:
        raise ContractViolated(f"{name} has shape {tuple(value.shape)}, expected {shape}.")
    if value.device.split(":")[0] != device.split(":")[0]:
        raise ContractViolated(f"{name} is on {value.device}, expected {device}.")


def bounds_of(case: AttentionCase, view: RowView | None = None) -> ForwardBounds:
    """The oracle and the bounds of a case, on all rows or on a view's."""
    chosen = RowView.whole(case) if view is None else view
    return forward_bounds(chosen, forward_view(chosen))


def choose_view(case: AttentionCase, rng: np.random.Generator) -> RowView:
    """All rows where that is cheap, else a random row of every 64-row tile of random slices, within the same budget."""
    per_slice = case.q_len * case.k_len
    if case.batch * case.q_heads * per_slice <= WHOLE_SCORES:
        return RowView.whole(case)
    rows = -(-case.q_len // 64) + 2
    return RowView.sample(case, rng, slices=max(1, WHOLE_SCORES // (rows * case.k_len)))


def judge_forward(
    judge: Judging,
    case: AttentionCase,
    o: Tensor | Array,
    lse: Tensor | Array | None,
    *,
    view: RowView | None = None,
    label: str = "",
) -> None:
    """Hold (O, LSE) to the bounds of the case; report how close it came; on failure say where and, if known, why.

    Args:
        o: (batch, q_heads, q_len, head_dim). lse: (batch, q_heads, q_len), or None where a lab has none.
        view: the rows to compare; chosen by size when None.
        label: which of several calls this was, put before the message and the measures.

    Raises:
        what `judge.fail` raises: the answer is wrong.
    """
    chosen = choose_view(case, judge.rng()) if view is None else view
    bounds = bounds_of(case, chosen)
    got_o = chosen.take(_values(o))
    got_lse = None if lse is None else chosen.take(_values(lse))
    prefix = f"{label}: " if label else ""
    judge.measure(f"{prefix}o_max_error", float(absolute_error(got_o, bounds.o).max()))
    judge.measure(f"{prefix}o_error_over_allowed", bounds.o_bounds.ratio(got_o, bounds.o))
    if got_lse is not None:
        lse_error = float(absolute_error(got_lse, bounds.lse).max())
        judge.measure(f"{prefix}lse_max_error", lse_error)
        judge.measure(f"{prefix}lse_error_over_allowed", share(lse_error, bounds.lse_allowed))
    breaches = bounds.breaches(got_o, got_lse)
    if not breaches:
        return
    found = diagnoses.diagnose(bounds, got_o, got_lse)
    o_wrong = any(breach.tensor == "O" for breach in breaches)
    error_map = error_maps.o_map(bounds, got_o) if o_wrong or got_lse is None else error_maps.lse_map(bounds, got_lse)
    message = explain(bounds, (got_o, got_lse), breaches, known=found is not None)
    judge.fail(prefix + message, diagnosis=found, error_map=error_map)


def judge_empty(judge: Judging, case: AttentionCase, o: Tensor, lse: Tensor) -> None:
    """Hold (O, LSE) of a case without keys, rows or batch entries to O = 0 and LSE = -inf, wherever there are rows.

    Raises:
        what `judge.fail` raises: there is something else.
    """
    if case.k_len and o.data.size:
        raise ValueError(f"{case}: expected a case in which no row sees a key.")
    if np.asarray(o.data, np.float64).any() or not np.isneginf(np.asarray(lse.data, np.float64)).all():
        judge.fail("Without any key O must be 0 and the LSE -inf, as in rows that a mask hides.")


def _values(tensor: Tensor | Array) -> Array:
    return tensor.data if isinstance(tensor, Tensor) else tensor


def explain(
    bounds: ForwardBounds, answer: tuple[Array, Array | None], breaches: list[Breach], *, known: bool = False
) -> str:
    """The message of a wrong answer: which rules it breaks, and where.

    Args:
        known: a diagnosis stands beside it, so where to look isn't guessed.
    """
    o, lse = answer
    view = bounds.view
    first: dict[str, Breach] = {}
    for breach in breaches:  # a tensor's rules come in the order in which they are easiest to understand
        first.setdefault(breach.tensor, breach)
    sentences = [f"{breach}." for breach in first.values()]
    if "O" in first:
        sentences.append(error_maps.nonfinite_facts(o, bounds.o))
        sentences += error_maps.pattern(view, error_maps.excess(bounds, o) > 1.0)
        if lse is not None and "LSE" not in first and not known:
            sentences.append("The LSE is right, so scores, mask and row sum are: look at what goes into O.")
    elif lse is not None:
        wrong = (absolute_error(lse, bounds.lse) > bounds.lse_allowed) | misplaced(lse, bounds.lse)
        sentences.append("O is right.")
        sentences += error_maps.pattern(view, wrong[..., None])
    return " ".join(sentence for sentence in sentences if sentence)


def exact(case: AttentionCase) -> Result:
    """The oracle's (O, LSE) over all rows, (batch, q_heads, q_len, head_dim) and (batch, q_heads, q_len)."""
    o, lse = forward_view(RowView.whole(case))
    shape = (case.batch, case.q_heads, case.q_len)
    return o.reshape(*shape, -1), lse.reshape(shape)

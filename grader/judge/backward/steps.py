"""Attention's backward as steps that can be exchanged one at a time: right kernels of many kinds, and mistaken ones.

With P the weights, dO the gradient of the output, Delta = rowsum(dO * O) (FlashAttention-2, Algorithm 2):
dV = Pᵀ dO, dP = dO Vᵀ, dS = P * (dP - Delta), dQ = scale · dS K, dK = scale · dSᵀ Q; dK and dV add up over a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.judge.gradients import Gradients
from grader.judge.oracle import AttentionCase, RowView
from grader.judge.precision import Array, round_to


def right_weights(scores: Array, lse: Array) -> Array:
    """exp(scores - LSE), 0 in rows without a key. scores (q_len, k_len), -inf where hidden; lse (q_len, 1)."""
    return np.asarray(np.exp(scores - np.where(np.isneginf(lse), 0.0, lse).astype(scores.dtype)))


def right_delta(grad_o: Array, o: Array) -> Array:
    """rowsum(dO * O), (q_len, 1)."""
    return np.asarray((grad_o * o).sum(axis=1, keepdims=True))


def right_score_gradient(weights: Array, grad_weights: Array, delta: Array) -> Array:
    return np.asarray(weights * (grad_weights - delta))


def of_weights(weights: Array, grad_scores: Array) -> Array:
    """What dV is a product of: P, and not dS."""
    return weights


def own_group(case: AttentionCase, kv_head: int) -> Sequence[int]:
    """Query heads whose gradients a KV head collects."""
    return range(kv_head * case.group, (kv_head + 1) * case.group)


def grouped_head(case: AttentionCase, head: int) -> int:
    """KV head that a query head reads."""
    return head // case.group


def softmax_scale(case: AttentionCase) -> float:
    return case.softmax_scale


def same(values: Array) -> Array:
    return values


@dataclass(frozen=True)
class Steps:
    """One way to compute the gradients; the defaults are right.

    Attributes:
        rounds: whether P and dS are rounded to the working dtype before their products.
        block: rows of the inner dimension that are added up at a time. backwards: from the end.
        accumulator: dtype that sums are rounded to after every block; empty for the computing one.
        operand: what the operands of every product go through. share: dtype that a query head's part of dK and dV is
            rounded to before the group's sum; empty for the computing one.
        low: dtype that the intermediates named in `lowered` (scores, grad_weights, delta) are rounded to.
        dv_operand: P or dS, see `of_weights`.
        visible, weights, delta, score_gradient: see the functions above.
        score_scale: factor of the scores. dq_scale, dk_scale: factors of the finished sums.
        kv_head, members: how query heads and KV heads belong together.
        exp_error: relative error of the exponential, uniform in ± this; needs `rng`.
    """

    rounds: bool = True
    block: int = 64
    backwards: bool = False
    accumulator: str = ""
    operand: Callable[[Array], Array] = same
    share: str = ""
    low: str = ""
    lowered: tuple[str, ...] = ()
    dv_operand: Callable[[Array, Array], Array] = of_weights
    visible: Callable[[RowView], Array] = RowView.visible
    weights: Callable[[Array, Array], Array] = right_weights
    delta: Callable[[Array, Array], Array] = right_delta
    score_gradient: Callable[[Array, Array, Array], Array] = right_score_gradient
    score_scale: Callable[[AttentionCase], float] = softmax_scale
    dq_scale: Callable[[AttentionCase], float] = softmax_scale
    dk_scale: Callable[[AttentionCase], float] = softmax_scale
    kv_head: Callable[[AttentionCase, int], int] = grouped_head
    members: Callable[[AttentionCase, int], Sequence[int]] = own_group
    exp_error: float = 0.0

    def kept(self, name: str, values: Array) -> Array:
        """An intermediate as it is kept."""
        return _rounded(values, self.low if name in self.lowered else "")


def _rounded(values: Array, dtype: str) -> Array:
    return round_to(values, dtype).astype(values.dtype) if dtype else values


def slice_view(case: AttentionCase, batch: int, head: int) -> RowView:
    """Every row of one (batch, query head)."""
    return RowView(case, np.array([batch]), np.array([head]), np.arange(case.q_len)[None])


@dataclass(frozen=True, eq=False)
class Backward:
    """What a backward kernel is given. All arrays hold values of the working dtype (LSE: float32), in any precision.

    Attributes:
        grad_o, o: (batch, q_heads, q_len, head_dim). lse: (batch, q_heads, q_len).
        strides: of grad_o in elements; None when it's contiguous.
    """

    case: AttentionCase
    grad_o: Array
    o: Array
    lse: Array
    strides: tuple[int, ...] | None = None


def compute(given: Backward, steps: Steps, rng: np.random.Generator | None = None) -> Gradients:
    """Gradients by `steps`, computed in float32 and rounded to the working dtype; in float64 where that's the dtype."""
    case = given.case
    work = np.float64 if case.dtype == "float64" else np.float32
    found = Gradients(*(np.zeros(values.shape, dtype=work) for values in (case.q, case.k, case.v)))
    with np.errstate(all="ignore"):  # a mistaken step may divide by zero or overflow: that's what it gives
        for batch in range(case.batch):
            for head in range(case.q_heads):
                _add_slice(given, steps, found, (batch, head), rng)
    return Gradients(*(round_to(values, case.dtype).astype(np.float64) for values in (found.dq, found.dk, found.dv)))


def _add_slice(
    given: Backward, steps: Steps, found: Gradients, where: tuple[int, int], rng: np.random.Generator | None
) -> None:
    case, (batch, head) = given.case, where
    work: Any = found.dq.dtype
    kv = steps.kv_head(case, head)
    q, grad_o, o = (values[batch, head].astype(work) for values in (case.q, given.grad_o, given.o))
    k, v = (values[batch, kv].astype(work) for values in (case.k, case.v))
    cut = steps.operand
    scores = steps.kept("scores", (cut(q) @ cut(k).T) * work.type(steps.score_scale(case)))
    scores = np.where(steps.visible(slice_view(case, batch, head))[0], scores, work.type(-np.inf))
    weights = steps.weights(scores, given.lse[batch, head].astype(work)[:, None])
    if rng is not None and steps.exp_error:
        weights = (weights * (1.0 + rng.uniform(-steps.exp_error, steps.exp_error, weights.shape))).astype(work)
    grad_weights = steps.kept("grad_weights", cut(grad_o) @ cut(v).T)
    delta = steps.kept("delta", steps.delta(grad_o, o))
    grad_scores = steps.score_gradient(weights, grad_weights, delta).astype(work)
    if steps.rounds:
        weights, grad_scores = round_to(weights.astype(work), case.dtype), round_to(grad_scores, case.dtype)
    found.dq[batch, head] = _added(steps, cut(grad_scores), cut(k)) * work.type(steps.dq_scale(case))
    for owner in range(case.kv_heads):
        if head in steps.members(case, owner):
            of_dv = steps.dv_operand(weights, grad_scores)
            dk = _added(steps, cut(grad_scores.T), cut(q)) * work.type(steps.dk_scale(case))
            found.dk[batch, owner] += _rounded(dk, steps.share)
            found.dv[batch, owner] += _rounded(_added(steps, cut(of_dv.T), cut(grad_o)), steps.share)


def _added(steps: Steps, left: Array, right: Array) -> Array:
    """left @ right, a block of the inner dimension after the other."""
    total = np.zeros((left.shape[0], right.shape[1]), dtype=left.dtype)
    starts = range(0, left.shape[1], steps.block)
    for start in reversed(starts) if steps.backwards else starts:
        total = total + left[:, start : start + steps.block] @ right[start : start + steps.block]
        total = _rounded(total, steps.accumulator)
    return total

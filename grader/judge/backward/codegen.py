"""Holds what a backward would launch on a card to the gates of machine code, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from grader.judge.backward.judging import BACKWARD, Problem, check_gradients, given, judge_gradients
from grader.judge.codegen import LABEL, Final, Judging, Launch, device_of, judge_codegen, masks, visible_keys
from grader.judge.gradients import Gradients, gradient_bounds
from grader.judge.oracle import AttentionCase
from grader.judge.precision import Array, round_to
from grader.judge.tolerance import TILINGS
from grader.profiles import HardwareProfile
from grader.sandbox.submission import Submission


def judge_backward_codegen(
    judge: Judging, submission: Submission, case: AttentionCase, profiles: Sequence[HardwareProfile]
) -> None:
    """A half-precision backward's launches for each card: held to its gates, run, and their gradients judged."""
    asked = given(case, round_to(judge.rng().standard_normal(case.q.shape), case.dtype))
    judge_codegen(judge, submission, backward_launch(judge, asked), profiles)


def backward_launch(judge: Judging, asked: Problem) -> Launch:
    """`attention_backward` on a problem; the finished elements of its gradients are judged."""
    case, bounds = asked.case, gradient_bounds(asked.case, asked.grad_o, TILINGS[:1])

    def check(value: Any) -> Gradients:
        return check_gradients(value, case, device_of(value))

    def compare(value: Any, final: Final) -> int | None:
        check(value)
        finished = masks(value, final)
        if not any(mask.any() for mask in finished):
            return None
        exact = bounds.exact.named().values()
        parts = zip(finished, value, exact, strict=True)
        whole = Gradients(*(np.where(mask, np.asarray(part.data, np.float64), right) for mask, part, right in parts))
        judge_gradients(judge, asked, whole, label=LABEL, bounds=bounds)
        return _flops(case, finished)

    return Launch(BACKWARD, asked.arguments("cpu"), check, compare, asked.options(), results=("dQ", "dK", "dV"))


def _flops(case: AttentionCase, finished: Sequence[Array]) -> int:
    """Least FLOPs of products for the finished rows: S, dP and dQ for dQ's; S, dP, dV and dK for those of dK and dV."""
    queries, *keys = (mask.all(axis=-1) for mask in finished)
    seen = visible_keys(case)
    rows = np.arange(case.q_len) + case.k_len - case.q_len
    seeing = (rows[:, None] >= np.arange(case.k_len)).sum(axis=0) if case.causal else np.full(case.k_len, case.q_len)
    group = case.q_heads // case.kv_heads
    of_keys = group * int(((keys[0] & keys[1]) * seeing).sum())
    return 2 * case.head_dim * max(3 * int((queries * seen).sum()), 4 * of_keys)

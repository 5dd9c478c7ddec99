"""Judges what `attention_cost` and `visible_pairs` count (lab01)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.roofline.mistakes import BYTES, FLOPS, PAIRS, Count, Mistake, explain, same
from grader.judge.roofline.model import EXACT, Case, Shape, exact_pairs
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised
from grader.worker.wire import Record

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

DEFAULTED = Diagnosis(
    id="unknown-name-accepted", text="A name that isn't defined gets a default's cost: a typo would go unnoticed."
)
CALLS = "graded_calls"
"""The provided module that turns plain numbers into the classes of the student's folder."""


def number(judge: Judge, value: object, what: str) -> float:
    """A finite number; ends the check with `contract` when it's something else."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        judge.contract(f"{what} is a {type(value).__name__}, expected a number.")
    try:
        found = float(plain)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        judge.contract(f"{what} is {found}, expected a finite number.")
    return found


def listed(judge: Judge, value: object, length: int, what: str) -> list[Any]:
    """A list of that many results, as `graded_calls` gives it."""
    if not isinstance(value, list) or len(value) != length:
        judge.contract(f"{what}: {length} calls gave no list of {length} results.")
    return value


def run_costs(submission: Submission, judge: Judge, cases: Sequence[Case]) -> list[tuple[float, float]]:
    """(flops, bytes) of each case as the submission counts them."""
    results = listed(
        judge,
        submission.call("costs", [case.wire() for case in cases], module=CALLS),
        len(cases),
        "attention_cost",
    )
    counts = []
    for result in results:
        if not isinstance(result, Record) or list(result.as_dict()) != ["flops", "bytes"]:
            kind = type(result).__name__
            judge.contract(f"attention_cost returned {kind}, expected a Cost(flops, bytes) of course_types.")
        flops = number(judge, result.flops, "the flops of attention_cost")
        counts.append((flops, number(judge, result.bytes, "the bytes of attention_cost")))
    return counts


def judge_unknown_names(submission: Submission, judge: Judge) -> None:
    """Names that the lab doesn't define must raise ValueError, not get somebody else's cost."""
    known = Case(Shape(2, 4, 2, 64, 96, 64))
    unknown = (replace(known, dtype="int4"), replace(known, algorithm="fast"), replace(known, direction="sideways"))
    for case, what in zip(unknown, ("dtype", "algorithm", "direction"), strict=True):
        try:
            submission.call("costs", [case.wire()], module=CALLS)
        except SubmissionRaised as error:
            if error.type_name != "ValueError":
                judge.fail(f"attention_cost raised {error.type_name} for an unknown {what}; expected ValueError.")
            continue
        judge.fail(f"attention_cost has an answer for an unknown {what}; expected ValueError.", diagnosis=DEFAULTED)


def judge_flops(judge: Judge, cases: Sequence[Case], counts: Sequence[tuple[float, float]], what: str) -> None:
    """Hold the FLOPs of every case to the exact count."""
    _judge(judge, cases, [flops for flops, _ in counts], EXACT.flops, FLOPS, f"{what}: the FLOPs")


def judge_bytes(judge: Judge, cases: Sequence[Case], counts: Sequence[tuple[float, float]], what: str) -> None:
    """Hold the bytes of every case to the exact count."""
    _judge(judge, cases, [moved for _, moved in counts], EXACT.bytes, BYTES, f"{what}: the bytes")


def judge_pairs(submission: Submission, judge: Judge, lengths: Sequence[tuple[int, int, bool]], what: str) -> None:
    """Hold `visible_pairs` to the exact count."""
    calls = [list(item) for item in lengths]
    results = listed(judge, submission.call("pairs", calls, module=CALLS), len(lengths), "visible_pairs")
    got = [number(judge, result, "a result of visible_pairs") for result in results]
    cases = [Case(Shape(1, 1, 1, q, k, 1), causal=causal) for q, k, causal in lengths]

    def right(case: Case) -> float:
        return exact_pairs(case.shape.q_len, case.shape.k_len, case.causal)

    _judge(judge, cases, got, right, PAIRS, f"{what}: the visible pairs")


def _judge(
    judge: Judge, cases: Sequence[Case], got: Sequence[float], right: Count, known: Sequence[Mistake], what: str
) -> None:
    wrong = [case for case, count in zip(cases, got, strict=True) if not same(count, right(case))]
    judge.measure("wrong_counts", len(wrong))
    if not wrong:
        return
    mistake = explain(known, cases, got, right)
    shown = "" if judge.hidden else f" First: {_describe(wrong[0])}."
    judge.fail(
        f"{what} are wrong in {len(wrong)} of {len(cases)} cases.{shown}",
        diagnosis=mistake.diagnosis if mistake else None,
    )


def _describe(case: Case) -> str:
    shape = ", ".join(f"{name} {size}" for name, size in vars(case.shape).items())
    return f"{case.algorithm}, {case.dtype}, causal {case.causal}, {case.direction}, {shape}"

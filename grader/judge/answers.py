"""Numbers that a submission works out, held to the truth; and which known mistake explains all of the wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from grader.report.model import Diagnosis

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

CaseT = TypeVar("CaseT")
ROUNDING = 1e-9
"""Relative difference of two floats that came by different orders of the same arithmetic."""


@dataclass(frozen=True)
class Mistake(Generic[CaseT]):
    """A known mistake: what it is called, what the student reads, what it would have answered."""

    id: str
    text: str
    answer: Callable[[CaseT], object]


def whole_number(judge: Judge, value: object, what: str) -> int:
    """`value` as an int; ends the check with `contract` when it's none."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        judge.contract(f"{what}: returned a {type(value).__name__}, expected an int.")
    return int(value)


def real_number(judge: Judge, value: object, what: str) -> float:
    """`value` as a float; ends the check with `contract` when it's no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        judge.contract(f"{what}: returned a {type(value).__name__}, expected a number.")
    return as_float(value)


def as_float(value: Any) -> float:
    """A number as a float; infinite where it's an int beyond a float's range."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def same(got: Any, want: Any) -> bool:
    """Whether two answers agree: floats to rounding, everything else exactly."""
    if isinstance(want, float) or isinstance(got, float):
        return bool(abs(as_float(got) - as_float(want)) <= ROUNDING * max(abs(want), 1.0))
    if isinstance(want, tuple) and isinstance(got, tuple):
        return len(got) == len(want) and all(same(g, w) for g, w in zip(got, want, strict=True))
    return bool(got == want)


def judge_answers(
    judge: Judge,
    what: str,
    cases: Sequence[CaseT],
    got: Sequence[object],
    want: Sequence[object],
    mistakes: Sequence[Mistake[CaseT]],
) -> None:
    """Hold every answer to the truth; a mistake is named when it gives each of the answers, and not the right ones."""
    wrong = [place for place, (g, w) in enumerate(zip(got, want, strict=True)) if not same(g, w)]
    judge.measure(f"{what}: cases", len(cases))
    judge.measure(f"{what}: wrong", len(wrong))
    if wrong:
        judge.fail(
            f"{what} is wrong in {len(wrong)} of {len(cases)} cases.", diagnosis=explain(cases, got, want, mistakes)
        )


def explain(
    cases: Sequence[CaseT], got: Sequence[object], want: Sequence[object], mistakes: Sequence[Mistake[CaseT]]
) -> Diagnosis | None:
    """The first mistake whose answers are those given, in every case."""
    for mistake in mistakes:
        answers = [mistake.answer(case) for case in cases]
        if all(same(g, a) for g, a in zip(got, answers, strict=True)) and not all(
            same(w, a) for w, a in zip(want, answers, strict=True)
        ):
            return Diagnosis(id=mistake.id, text=mistake.text)
    return None

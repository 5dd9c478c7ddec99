"""Runs a submission's function on a hosted machine and holds what happened there to what should have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from grader.judge.tiles import forms, moves, outputs
from grader.judge.tiles.machine import REFUSALS, Case, Machine
from grader.judge.tiles.replay import replay
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

MAX_CALLS = 6_000
"""Calls of the machine in one run: twice what the largest run needs that allocates its tiles in every step, and some
seconds of round trips on a busy machine."""


def draw(
    rng: np.random.Generator,
    n: int,
    d: int,
    m: int,
    *,
    dtype: str = "float16",
    causal: bool = False,
    slope: float = 1.0,
) -> Case:
    """A head of standard normal Q, K and V whose scores rise along the keys, so that every block moves the maximum.

    Args:
        slope: how far the scores rise from the first key to the last; negative lets them fall.
    """
    q, k, v = (rng.standard_normal((n, d)) for _ in range(3))
    q[:, 0] = np.abs(q[:, 0]) + 0.5
    k[:, 0] += np.linspace(-slope, slope, n) * np.sqrt(d) / 2
    # V far from zero on average: an O of zeros, or a mean over too few keys, is off by much.
    return Case(q.astype(dtype), k.astype(dtype), (v + 1.0).astype(dtype), m=m, causal=causal)


def run(
    submission: Submission,
    judge: Judge,
    case: Case,
    function: str,
    *,
    fresh: np.random.Generator | None = None,
) -> Machine:
    """One run on a hosted machine; ends the check when the machine refused something."""
    machine = Machine(case, function, max_calls=MAX_CALLS, fresh=fresh)
    raised = None
    try:
        submission.call(function, machine.view(submission.host))
    except SubmissionRaised as error:
        raised = error
    if machine.refusal is not None:
        refusal_id, text = machine.refusal
        # Where the refusal was caught, nothing says at which line it was met.
        place = raised.where if raised is not None and raised.text == text else ""
        told = f"{function}: the machine refused a call"
        if not judge.hidden:
            told = f"{place or function}: the machine refused a call ({text})"
        judge.fail(f"{told}.", diagnosis=Diagnosis(id=refusal_id, text=REFUSALS[refusal_id]))
    if raised is not None:
        raise raised
    judge.measure(f"{function}_calls", machine.calls)
    return machine


def judge_moves(judge: Judge, machine: Machine, what: str) -> None:
    """Hold the bytes that crossed to the closed form, tensor by tensor, from above and from below."""
    setting = machine.case.setting
    want = forms.moves(machine.function, setting)
    judge.measure(f"{machine.function}: moved_bytes", sum(machine.moved.values()))
    judge.measure(f"{machine.function}: bound_bytes", sum(want.values()))
    off = moves.differences(want, machine.moved)
    if not off:
        return
    all_met = machine.function == forms.STANDARD or bool((replay(machine).met | ~machine.case.visible).all())
    diagnosis = moves.explain(machine.function, setting, machine.moved, all_met=all_met)
    if judge.hidden:
        told = ", ".join(f"{'more' if got > right else 'fewer'} {way}s of {name}" for way, name, got, right in off)
        judge.fail(f"{what}: {told} than the closed form has.", diagnosis=diagnosis)
    told = ", ".join(f"{way} {name}: {got} bytes, closed form {right}" for way, name, got, right in off)
    judge.fail(f"{what}: {told}.", diagnosis=diagnosis)


def judge_run(
    submission: Submission, judge: Judge, case: Case, function: str, what: str, *, count: bool = True
) -> Machine:
    """A run whose output is right and, when `count` is set, whose bytes are those of the closed form.

    A count says nothing without a right output: moving bytes and not using them is no algorithm.
    """
    machine = run(submission, judge, case, function)
    if count:
        judge_moves(judge, machine, what)
    outputs.judge_output(judge, machine, what)
    return machine


NEVER_MET = Diagnosis(
    id="never-in-sram-together",
    text="Pairs of blocks were worked on that were never in SRAM together: tiles live on in Python's memory.",
)
STALE = Diagnosis(
    id="stale-values",
    text="What was stored doesn't come from what was loaded last: values of an earlier load were kept and used.",
)


def judge_residency(judge: Judge, machine: Machine, what: str) -> None:
    """Every visible pair of row and key has been in SRAM at once, Q's row with K's and V's rows."""
    met = replay(machine).met
    unmet = int((machine.case.visible & ~met).sum())
    if unmet:
        share = unmet / int(machine.case.visible.sum())
        judge.fail(
            f"{what}: {share:.0%} of the pairs of query and key were never in SRAM at the same time, yet they count.",
            diagnosis=NEVER_MET,
        )


def judge_freshness(judge: Judge, machine: Machine, what: str) -> None:
    """Every store holds what the values loaded for it give; the machine changed them at every load."""
    found = replay(machine)
    judge.measure(f"{machine.function}_store_error", found.error)
    allowed = judge.thresholds["store_error"]
    if found.unfounded or not found.used.all():
        judge.fail(
            f"{what}: O or a statistic was stored for rows whose Q tile hadn't met any keys, or pairs of blocks met "
            "and no store followed. Store by the rows of the Q tile, after its keys.",
            diagnosis=NEVER_MET if not found.met.all() else None,
        )
    if found.error > allowed or found.statistics_error > allowed:
        part = "O" if found.error > allowed else "a statistic"
        judge.fail(f"{what}: {part} was stored that doesn't follow from the tiles loaded for it.", diagnosis=STALE)


def reload_slope(totals: list[int], case_sizes: list[int], once: int) -> float:
    """Slope of log(total - once) over log(M), least squares."""
    term = np.array(totals, np.float64) - once
    if (term <= 0).any():
        return float("nan")
    return float(np.polyfit(np.log(np.array(case_sizes, np.float64)), np.log(term), 1)[0])

"""Judges the machine's side of lab01: ridge points, attainable rates, what bounds a cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.judge.roofline.costs import CALLS, listed, number
from grader.judge.roofline.mistakes import same
from grader.judge.roofline.model import Gpu
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

Work = tuple[int, int, str]
"""FLOPs, bytes, dtype."""

GIB_PER_GB = 2**30 / 1e9
DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True)
class Slip:
    """A known mistake about a card: `value` is what it makes of one question."""

    id: str
    text: str
    value: Callable[[Gpu, Work], float | str]


def _intensity(work: Work) -> float:
    return work[0] / work[1]


def _gib(card: Gpu) -> Gpu:
    return Gpu(card.name, card.bandwidth_gbs * GIB_PER_GB, card.peak_tflops)


def _one_peak(card: Gpu, dtype: str) -> Gpu:
    return Gpu(card.name, card.bandwidth_gbs, dict.fromkeys(card.peak_tflops, card.peak_tflops[dtype]))


def _fastest(card: Gpu) -> str:
    return max(card.peak_tflops, key=lambda dtype: card.peak_tflops[dtype])


RIDGES: tuple[Slip, ...] = (
    Slip("ridge-inverted", "Your ridge point is byte/FLOP: it's peak over bandwidth.", lambda c, w: 1 / c.ridge(w[2])),
    Slip(
        "gib-for-gb",
        "Your bandwidth takes a GB for 2^30 bytes; bandwidths are given in units of 10^9.",
        lambda c, w: _gib(c).ridge(w[2]),
    ),
    Slip(
        "unit-slip",
        "Your ridge point divides TFLOP/s by GB/s as they stand: it's off by a factor of 1000.",
        lambda c, w: c.ridge(w[2]) / 1000,
    ),
    Slip(
        "peak-of-one-dtype",
        "Your ridge point doesn't depend on the dtype: every dtype has a peak of its own.",
        lambda c, w: _one_peak(c, DEFAULT_DTYPE).ridge(w[2]),
    ),
    Slip(
        "peak-of-one-dtype",
        "Your ridge point takes the card's largest peak for every dtype.",
        lambda c, w: _one_peak(c, _fastest(c)).ridge(w[2]),
    ),
    Slip(
        "ridge-in-elements",
        "Your ridge point counts elements, not bytes: the dtype's width belongs to a cost, not to the card.",
        lambda c, w: c.ridge(w[2]) * {"float32": 4, "float8": 1}.get(w[2], 2),
    ),
)

RATES: tuple[Slip, ...] = (
    Slip(
        "attainable-without-min",
        "Your attainable rate is intensity times bandwidth, above the peak as well: the roof is the lower of the two.",
        lambda c, w: _intensity(w) * c.bandwidth_gbs / 1e3,
    ),
    Slip(
        "attainable-is-peak",
        "Your attainable rate is the peak whatever the intensity.",
        lambda c, w: c.peak_tflops[w[2]],
    ),
    Slip(
        "attainable-maximum",
        "Your attainable rate is the higher of the two roofs; the roofline is the lower.",
        lambda c, w: max(c.peak_tflops[w[2]], _intensity(w) * c.bandwidth_gbs / 1e3),
    ),
    Slip(
        "gib-for-gb",
        "Your bandwidth takes a GB for 2^30 bytes; bandwidths are given in units of 10^9.",
        lambda c, w: _gib(c).attainable(_intensity(w), w[2]),
    ),
    Slip(
        "intensity-inverted",
        "Your intensity is byte/FLOP; it's FLOP/byte.",
        lambda c, w: c.attainable(1 / _intensity(w), w[2]),
    ),
    Slip(
        "peak-of-one-dtype",
        "Your attainable rate has one peak for every dtype.",
        lambda c, w: _one_peak(c, DEFAULT_DTYPE).attainable(_intensity(w), w[2]),
    ),
    Slip(
        "times-added",
        "Your attainable rate comes from the sum of the two times; the roofline lets them overlap.",
        lambda c, w: 1 / (1 / c.peak_tflops[w[2]] + 1 / (_intensity(w) * c.bandwidth_gbs / 1e3)),
    ),
)

BOUNDS: tuple[Slip, ...] = (
    Slip(
        "bound-wrong-side",
        "Your bound names the wrong side: below the ridge point it's memory that limits.",
        lambda c, w: {"memory": "compute", "compute": "memory"}[c.bound(_intensity(w), w[2])],
    ),
    Slip(
        "bound-ridge-inverted",
        "Your bound compares the intensity with an inverted ridge point.",
        lambda c, w: "memory" if _intensity(w) < 1 / c.ridge(w[2]) else "compute",
    ),
    Slip(
        "bound-at-the-ridge",
        "At the ridge point itself your bound says memory; there, arithmetic runs at its peak.",
        lambda c, w: "memory" if _intensity(w) <= c.ridge(w[2]) else "compute",
    ),
    Slip(
        "peak-of-one-dtype",
        "Your bound has one ridge point for every dtype.",
        lambda c, w: _one_peak(c, DEFAULT_DTYPE).bound(_intensity(w), w[2]),
    ),
    Slip(
        "gib-for-gb",
        "Your bound takes a GB for 2^30 bytes; bandwidths are given in units of 10^9.",
        lambda c, w: _gib(c).bound(_intensity(w), w[2]),
    ),
)


def right_ridge(card: Gpu, work: Work) -> float:
    return card.ridge(work[2])


def right_rate(card: Gpu, work: Work) -> float:
    return card.attainable(_intensity(work), work[2])


def right_bound(card: Gpu, work: Work) -> str:
    return card.bound(_intensity(work), work[2])


def judge_ridges(submission: Submission, judge: Judge, card: Gpu, dtypes: Sequence[str]) -> None:
    """Hold `ridge_point` to peak over bandwidth for each dtype, and for the default."""
    asked: list[str | None] = [*dtypes, None]
    results = listed(judge, submission.call("ridges", card.wire(), asked, module=CALLS), len(asked), "ridge_point")
    got = [number(judge, result, "a result of ridge_point") for result in results]
    works = [(0, 1, dtype or DEFAULT_DTYPE) for dtype in asked]
    _judge(judge, card, works, got, right_ridge, RIDGES, "ridge_point")


def judge_missing_dtype(submission: Submission, judge: Judge, card: Gpu, dtype: str) -> None:
    """A dtype that the card has no unit for must raise ValueError, not borrow another's peak."""
    questions: tuple[tuple[str, list[object]], ...] = (
        ("ridges", [dtype]),
        ("attainable", [[10**9, 10**6, dtype]]),
        ("bounds", [[10**9, 10**6, dtype]]),
    )
    names = {"ridges": "ridge_point", "attainable": "attainable_tflops", "bounds": "bound"}
    for function, asked in questions:
        try:
            submission.call(function, card.wire(), asked, module=CALLS)
        except SubmissionRaised as error:
            if error.type_name != "ValueError":
                judge.fail(
                    f"{names[function]} raised {error.type_name} for a dtype that the GPU has no unit for; "
                    "expected ValueError."
                )
            continue
        judge.fail(
            f"{names[function]} answers for a dtype that the GPU has no unit for; expected ValueError.",
            diagnosis=Diagnosis(
                id="missing-unit-ignored",
                text="A peak is taken from another dtype where the GPU has no unit for this one.",
            ),
        )


def run_rates(submission: Submission, judge: Judge, card: Gpu, works: Sequence[Work]) -> list[float]:
    """`attainable_tflops` of each."""
    asked = [list(work) for work in works]
    results = submission.call("attainable", card.wire(), asked, module=CALLS)
    return [
        number(judge, result, "a result of attainable_tflops")
        for result in listed(judge, results, len(works), "attainable_tflops")
    ]


def judge_rates(submission: Submission, judge: Judge, card: Gpu, works: Sequence[Work]) -> None:
    """Hold `attainable_tflops` to the roofline."""
    got = run_rates(submission, judge, card, works)
    _judge(judge, card, works, got, right_rate, RATES, "attainable_tflops")


def judge_bounds(submission: Submission, judge: Judge, card: Gpu, works: Sequence[Work]) -> None:
    """Hold `bound` to the comparison with the ridge point."""
    asked = [list(work) for work in works]
    results = listed(judge, submission.call("bounds", card.wire(), asked, module=CALLS), len(works), "bound")
    for result in results:
        if not isinstance(result, str) or result not in ("memory", "compute"):
            shown = repr(result[:40]) if isinstance(result, str) else f"a {type(result).__name__}"
            judge.contract(f"bound returned {shown}, expected 'memory' or 'compute'.")
    _judge(judge, card, works, results, right_bound, BOUNDS, "bound")


def equal(a: float | str, b: float | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return same(a, b)


def explain(
    slips: Sequence[Slip],
    card: Gpu,
    works: Sequence[Work],
    got: Sequence[float | str],
    right: Callable[[Gpu, Work], float | str],
) -> Slip | None:
    """The first slip that gives `got` for every question, some of which it gets wrong."""
    for slip in slips:
        values = [slip.value(card, work) for work in works]
        if all(map(equal, values, got)) and not all(map(equal, values, (right(card, work) for work in works))):
            return slip
    return None


def _judge(
    judge: Judge,
    card: Gpu,
    works: Sequence[Work],
    got: Sequence[float | str],
    right: Callable[[Gpu, Work], float | str],
    slips: Sequence[Slip],
    function: str,
) -> None:
    wrong = [work for work, value in zip(works, got, strict=True) if not equal(value, right(card, work))]
    judge.measure("wrong_answers", len(wrong))
    if not wrong:
        return
    slip = explain(slips, card, works, got, right)
    shown = "" if judge.hidden else f" First: dtype {wrong[0][2]} on {card.name}."
    judge.fail(
        f"{function} is wrong in {len(wrong)} of {len(works)} cases.{shown}",
        diagnosis=Diagnosis(id=slip.id, text=slip.text) if slip else None,
    )

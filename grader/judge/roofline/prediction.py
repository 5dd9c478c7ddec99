"""Holds a prediction of lab01 to a measurement: the course's own SDPA call, in a worker without the submission."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grader.course import Lab
from grader.judge.roofline.costs import number, run_costs
from grader.judge.roofline.machine import run_rates
from grader.judge.roofline.model import EXACT, Case, Gpu, Shape
from grader.report.model import Diagnosis
from grader.sandbox.failures import WorkerFailure
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission

if TYPE_CHECKING:
    from grader.judge.recorder import Judge

TIMING = "sdpa_timing"
MEMORY_MIB = 8192
"""Host memory of the worker that times: torch with a CUDA context takes 3 to 4 GB."""
TIMEOUT_S = 180.0

LARGE = Case(Shape(4, 16, 16, 4096, 4096, 128))
"""Bound by arithmetic on every card of the course; 268 MB of operands."""
DECODE = Case(Shape(16, 32, 8, 1, 16384, 128))
"""Bound by memory: 1.07 GB of K and V, far more than any L2 cache holds."""

ABOVE = Diagnosis(
    id="prediction-above-measured",
    text="Your roofline predicts more time than the kernel takes: a bound that can be beaten isn't one.",
)
FAR_BELOW = Diagnosis(
    id="prediction-far-below",
    text="Your roofline predicts less than a quarter of the time of a well-tuned kernel that arithmetic limits.",
)


def measure_sdpa(starter: Path, lab: Lab, beside: Submission, judge: Judge, cases: list[Case]) -> list[float]:
    """Median milliseconds of torch's SDPA at each shape.

    Args:
        starter: the lab's pristine folder; nothing of a student is in the worker that times.
        beside: the submission that is judged, for the isolation level.
    """
    limits = lab.limits.model_copy(update={"memory_mib": MEMORY_MIB})
    roomy = lab.model_copy(update={"limits": limits})
    times = []
    with stage(starter, roomy, starter) as staged, Submission(staged, roomy, beside.isolation, "cuda") as course:
        for place, case in enumerate(cases):
            try:
                told = course.call("time_sdpa", *case.shape.sizes(), module=TIMING, timeout_s=TIMEOUT_S)
            except WorkerFailure as failure:
                # No submission is in that worker: torch is missing, or the GPU has no room.
                judge.skip(f"the course's own SDPA call doesn't run here: {failure.message}")
            median = number(judge, told["median_ms"], "the measured time")
            judge.measure(f"measured_ms_{place}", median)
            judge.measure(f"iqr_ms_{place}", number(judge, told["iqr_ms"], "the spread of the measured time"))
            times.append(median)
    return times


def predict_ms(submission: Submission, judge: Judge, card: Gpu, cases: list[Case]) -> list[float]:
    """Milliseconds that the submission's cost and roofline give for each case."""
    counts = run_costs(submission, judge, cases)
    if any(min(count) <= 0 for count in counts):
        judge.fail("attention_cost counts nothing for a shape that isn't empty.")
    works = [(int(flops), int(moved), case.dtype) for (flops, moved), case in zip(counts, cases, strict=True)]
    rates = run_rates(submission, judge, card, works)
    if min(rates) <= 0:
        judge.fail("attainable_tflops is 0 for a cost that isn't.")
    return [flops / (rate * 1e12) * 1e3 for (flops, _, _), rate in zip(works, rates, strict=True)]


def judge_prediction(judge: Judge, card: Gpu, predicted_ms: list[float], measured_ms: list[float]) -> None:
    """Predicted <= measured at both shapes, and within `within` times at the large one (the first)."""
    for place, value in enumerate(predicted_ms):
        judge.measure(f"predicted_ms_{place}", value)
    right_ms = [card.time_us(EXACT.flops(c), EXACT.bytes(c), c.dtype) / 1e3 for c in (LARGE, DECODE)]
    if any(right > measured for right, measured in zip(right_ms, measured_ms, strict=True)):
        judge.skip(f"this card is faster than the profile {card.name} says, so no prediction from it can be judged")
    within = judge.thresholds["within"]
    if measured_ms[0] > within * right_ms[0]:
        judge.noisy(f"SDPA took more than {within:g} times the roofline's time: the GPU is throttled, or shared.")
    if any(predicted > measured for predicted, measured in zip(predicted_ms, measured_ms, strict=True)):
        judge.fail("The predicted time is longer than the measured one.", diagnosis=ABOVE)
    if measured_ms[0] > within * predicted_ms[0]:
        judge.fail(f"The predicted time is less than 1/{within:g} of the measured one.", diagnosis=FAR_BELOW)

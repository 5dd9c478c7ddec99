"""Times lab08's decode step: against the card's bandwidth, and paged against contiguous caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from grader.judge import speed
from grader.judge.decode.attending import FUNCTION, MODULE
from grader.judge.speed.decode import DecodeShape, decode
from grader.judge.speed.model import Interval, Rules, Workload

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission


def judge_bandwidth(
    judge: Judge, submission: Submission, shapes: Sequence[DecodeShape], rules: Rules | None = None
) -> None:
    """Award the fraction of the roofline, which is the bandwidth at these intensities, over all shapes.

    Where the profile has a measured copy bandwidth, the report also says which part of that was reached.

    Raises:
        what `judge` raises: too slow, inconclusive, pending, or in need of a review. WorkerFailure: a call failed.
    """
    races = speed.alone(judge, submission, [_workload(judge, shape) for shape in shapes], rules=rules)
    measured = judge.profile.measured
    if measured is not None:
        for shape, race in zip(shapes, races, strict=True):
            rate = shape.least_bytes / race.ours.seconds.value / 1e9
            judge.measure(f"{race.label}: part of the measured copy bandwidth", round(rate / measured.copy_gbs, 4))
    speed.settle(judge, races, "of a decode step's bytes over its time")


def judge_paging(judge: Judge, submission: Submission, shape: DecodeShape, rules: Rules | None = None) -> None:
    """Award the time over a contiguous cache over the time over pages anywhere, one race after the other.

    Raises:
        what `judge` raises: too slow, inconclusive, pending, or in need of a review. WorkerFailure: a call failed.
    """
    workloads = [_workload(judge, each) for each in (replace(shape, page_size=shape.context), shape)]
    contiguous, paged = speed.alone(judge, submission, workloads, rules=rules)
    ratio = quotient(contiguous.ours.seconds, paged.ours.seconds)
    speed.award(judge, (contiguous, paged), {"ratio": ratio}, "paged against contiguous caches")


def quotient(above: Interval, below: Interval) -> Interval:
    """One interval over another; its ends are the farthest that theirs allow."""
    return Interval(above.value / below.value, above.low / below.high, above.high / below.low)


def _workload(judge: Judge, shape: DecodeShape) -> Workload:
    paged = shape.page_size < shape.context
    table = shape.table(judge.rng() if paged else None)
    label = "paged" if paged else "contiguous"
    return decode(shape, table, function=FUNCTION, module=MODULE, label=label)

"""What a lab's speed check calls: race the submission against a named baseline, and award what the races show.

races = speed.against(judge, submission, workloads, baseline="sdpa_flash")
speed.settle(judge, races, "against SDPA flash")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grader.baselines import Absent, Operation, find, open_baseline
from grader.errors import CourseError
from grader.judge.speed.bands import Metric, bands_of, judge_speed
from grader.judge.speed.model import Contestant, Interval, Race, Rules, Workload
from grader.judge.speed.race import WrongOutput, race

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

OURS = "yours"
SUSPECT = (
    "Needs review: a time was measured that the grader can't reconcile with what it sees from outside. "
    "The points are held, and a person looks at the evidence."
)
"""All that a student reads; the evidence is in the report's measures."""


def against(
    judge: Judge,
    submission: Submission,
    workloads: Sequence[Workload],
    *,
    baseline: str,
    operation: Operation = "forward",
    rules: Rules | None = None,
) -> list[Race]:
    """Race the submission against a baseline at each workload, and put what was seen into the report.

    Raises:
        what `judge` raises: the baseline can't run here (`skip`), a timed call's output is wrong (`fail`), or the
        numbers can't be true (`suspect`). WorkerFailure: the submission failed. InfrastructureError: the baseline did.
    """
    dtypes = sorted({workload.dtype for workload in workloads})
    candidates = [find(baseline, operation, submission.device, dtype=dtype, sm=judge.profile.sm) for dtype in dtypes]
    found = next((each for each in candidates if isinstance(each, Absent)), candidates[0])
    if isinstance(found, Absent):
        judge.skip(f"the baseline {found.name} can't run here: {found.reason}")
    with open_baseline(found, submission.isolation, submission.device) as peer:
        theirs = Contestant(
            baseline,
            peer,
            function=found.function(operation),
            module=found.module,
            trusted=True,
        )
        return _raced(judge, Contestant(OURS, submission), theirs, workloads, rules)


def alone(
    judge: Judge, submission: Submission, workloads: Sequence[Workload], *, rules: Rules | None = None
) -> list[Race]:
    """Time the submission by itself, for a fraction of the roofline; otherwise as `against`."""
    return _raced(judge, Contestant(OURS, submission), None, workloads, rules)


def _raced(
    judge: Judge, ours: Contestant, theirs: Contestant | None, workloads: Sequence[Workload], rules: Rules | None
) -> list[Race]:
    bands = bands_of(judge)
    wanted: Metric = "ratio" if theirs is not None else "fraction"
    edges = (bands.least, bands.full) if bands.metric == wanted else ()
    try:
        races = race(ours, theirs, workloads, profile=judge.profile, rng=judge.rng(), rules=rules, edges=edges)
    except WrongOutput as error:
        judge.fail(str(error))
    for workload, ran in zip(workloads, races, strict=True):
        record(judge, ran)
        # Where the shape lies on the roofline, for the student's page.
        judge.measure(f"{ran.label}: tflops", round(workload.flops / ran.ours.seconds.value / 1e12, 6))
        judge.measure(f"{ran.label}: intensity", round(workload.flops / workload.bytes, 3))
    if any(ran.verdict == "suspect" for ran in races):
        judge.suspect(SUSPECT)
    return races


def record(judge: Judge, ran: Race) -> None:
    """Put a race into the report's measures: times with spread and count, interval, cross-check, the GPU's state."""
    prefix = f"{ran.label}: "
    for timing in (ran.ours, ran.theirs):
        if timing is None:
            continue
        judge.measure(f"{prefix}{timing.name} median_ms", round(timing.seconds.value * 1e3, 5))
        judge.measure(f"{prefix}{timing.name} iqr_ms", round(timing.iqr_s * 1e3, 5))
        judge.measure(f"{prefix}{timing.name} windows x calls", f"{timing.windows} x {timing.calls}")
        if timing.outside is not None:
            judge.measure(f"{prefix}{timing.name} outside_ms", round(timing.outside.value * 1e3, 5))
        if timing.launches is not None and timing.operations is not None:
            judge.measure(f"{prefix}launches", timing.launches)
            judge.measure(f"{prefix}device operations", timing.operations)
        for number, text in enumerate(timing.tuned, start=1):
            judge.measure(f"{prefix}tuned {number}", text)
    if ran.theirs is not None:
        judge.measure(f"{prefix}ratio", [round(value, 4) for value in (ran.ratio, ran.low, ran.high)])
    if ran.fraction is not None:
        fraction = ran.fraction
        judge.measure(f"{prefix}roofline", [round(value, 4) for value in (fraction.value, fraction.low, fraction.high)])
    judge.measure(f"{prefix}verdict", ran.verdict if ran.attempts == 1 else f"{ran.verdict}, {ran.attempts} attempts")
    if ran.reason:
        judge.measure(f"{prefix}evidence", ran.reason)
    for name, value in ran.environment.items():
        judge.measure(f"{prefix}{name}", value)


def settle(judge: Judge, races: Sequence[Race], said: str) -> None:
    """Award what the races earn together: the geometric mean over their shapes.

    Raises:
        what `award` raises. CourseError: nothing was measured that the check is held to.
    """
    award(judge, races, estimates_of(races), said, f", {_shapes(len(races))}")


def award(judge: Judge, races: Sequence[Race], estimates: dict[Metric, Interval], said: str, over: str = "") -> None:
    """Award estimates that were made of these races; `over` follows `said` where they decide.

    A race that stayed noisy decides nothing by itself: its check earns the band that the lower end clears, and is
    otherwise inconclusive. One whose times couldn't be checked earns nothing, and accuses nobody.

    Raises:
        what `judge_speed` raises, and `judge.noisy`.
    """
    for ran in races:
        if ran.verdict == "unclear":
            judge.noisy(
                f"{ran.label}: this machine answers too unevenly to check the times from outside, in "
                f"{ran.attempts} attempts. Nothing is decided; grade again on a quiet machine."
            )
    bands = bands_of(judge)
    noisy = [ran for ran in races if ran.verdict == "noisy"]
    if noisy and bands.metric in estimates:
        found = estimates[bands.metric]
        earned = bands.earned(found.low)
        if earned < 1.0:
            for metric, estimate in estimates.items():
                judge.measure(metric, [estimate.value, estimate.low, estimate.high])
            judge.noisy(
                f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f}), {said}: the times spread too much at "
                f"{noisy[0].label}, after {noisy[0].attempts} attempts. Grade again on a quiet machine.",
                fraction=earned,
            )
    judge_speed(judge, estimates, said + over)


def estimates_of(races: Sequence[Race]) -> dict[Metric, Interval]:
    """Ratio and fraction over all races, those that every race has; the ends are the means of the ends."""
    if not races:
        raise CourseError("a speed check without a race")
    found: dict[Metric, Interval] = {}
    if all(ran.theirs is not None for ran in races):
        found["ratio"] = geometric([Interval(ran.ratio, ran.low, ran.high) for ran in races])
    fractions = [ran.fraction for ran in races if ran.fraction is not None]
    if len(fractions) == len(races):
        found["fraction"] = geometric(fractions)
    return found


def geometric(intervals: Sequence[Interval]) -> Interval:
    """Geometric mean, end by end: wider than the mean's own interval, never narrower."""
    ends = ([i.value for i in intervals], [i.low for i in intervals], [i.high for i in intervals])
    value, low, high = (math.exp(math.fsum(map(math.log, part)) / len(part)) for part in ends)
    return Interval(value, low, high)


def _shapes(count: int) -> str:
    return "1 shape" if count == 1 else f"{count} shapes"

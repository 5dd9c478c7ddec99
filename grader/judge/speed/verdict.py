"""From measured numbers to a verdict: pure functions, no clock and no worker.

Every interval is of a median, by order statistics: whatever the distribution, the median lies between the r-th smallest
and the r-th largest of n independent values with a probability that the binomial distribution gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grader.judge.speed.model import Interval, Rules, Timing, Verdict


@dataclass(frozen=True)
class WindowTimes:
    """One window's times: `calls` made, seconds by the worker's clock and by the judge's."""

    round: int
    calls: int
    claimed_s: float
    outside_s: float

    @property
    def call_s(self) -> float:
        return self.claimed_s / self.calls


@dataclass(frozen=True)
class Heat:
    """One contestant's windows in one attempt.

    Attributes:
        single, double: windows of n and of 2n calls.
        trusted: see `Contestant`.
    """

    name: str
    single: tuple[WindowTimes, ...]
    double: tuple[WindowTimes, ...]
    trusted: bool = False


@dataclass(frozen=True)
class Attempt:
    """What one attempt at a race measured; `theirs` is None where nobody is raced against."""

    ours: Heat
    theirs: Heat | None


@dataclass(frozen=True)
class Alone:
    """The baseline's claimed seconds a call, one a window, while nothing of the submission ran: before the rounds, and
    after them, when the card is as warm as it was in the race."""

    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finding:
    """What speaks against numbers.

    Attributes:
        kind: ``claim``: below the view from outside. ``blur``: that view is too wide to tell. ``floor``: below what
            physics allows. ``slowed``: the baseline beside the submission. ``spread``, ``disturbed``: noise.
        grave: the numbers can't be true.
    """

    kind: Literal["claim", "blur", "floor", "slowed", "spread", "disturbed"]
    grave: bool
    text: str


def median_rank(count: int, confidence: float) -> int:
    """Rank r (from 1) such that the r-th smallest and r-th largest of `count` values hold the median at `confidence`.

    1 where even the extremes don't reach it.
    """
    rank, tail = 1, 0.0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2.0**count
        if 1.0 - 2.0 * tail < confidence:
            break
        rank = below + 1
    return rank


def median_interval(values: Sequence[float], confidence: float) -> Interval:
    """Median of `values` and its interval.

    Raises:
        ValueError: there are none.
    """
    if not values:
        raise ValueError("no values to take a median of")
    ordered = sorted(values)
    rank = median_rank(len(ordered), confidence)
    return Interval(float(np.median(ordered)), ordered[rank - 1], ordered[-rank])


def widened(interval: Interval, part: float) -> Interval:
    """The interval with each end moved out by that part of it."""
    return Interval(interval.value, interval.low * (1.0 - part), interval.high * (1.0 + part))


def round_ratios(ours: Heat, theirs: Heat) -> list[float]:
    """Theirs over ours of every round, each from the sum of a round's windows of n calls."""
    our_times, their_times = _by_round(ours.single), _by_round(theirs.single)
    return [their_times[number] / time for number, time in our_times.items() if number in their_times]


def _by_round(windows: Sequence[WindowTimes]) -> dict[int, float]:
    """Round → mean claimed seconds a call."""
    found: dict[int, list[float]] = {}
    for window in windows:
        found.setdefault(window.round, []).append(window.call_s)
    return {number: float(np.mean(times)) for number, times in found.items()}


def outside_view(heat: Heat, confidence: float) -> Interval | None:
    """(T_2n - T_n) / n by the judge's clock, seconds a call, T_n from the same round; None without double windows."""
    return _difference(heat, lambda window: window.outside_s, confidence)


def _difference(heat: Heat, clock: Callable[[WindowTimes], float], confidence: float) -> Interval | None:
    """Seconds that a call takes in the second half of a window of 2n."""
    singles: dict[int, list[WindowTimes]] = {}
    for window in heat.single:
        singles.setdefault(window.round, []).append(window)
    values = []
    for window in heat.double:
        same = singles.get(window.round, ())
        if same and window.calls > same[0].calls:
            half = float(np.mean([clock(one) for one in same]))
            values.append((clock(window) - half) / (window.calls - same[0].calls))
    return median_interval(values, confidence) if values else None


def timing(heats: Sequence[Heat], rules: Rules) -> Timing:
    """One contestant's times over the attempts that are kept."""
    times = [window.call_s for heat in heats for window in heat.single]
    low, high = np.percentile(times, [25, 75])
    views = [view for heat in heats if (view := outside_view(heat, CROSS_CONFIDENCE)) is not None]
    return Timing(
        heats[-1].name,
        widened(median_interval(times, rules.confidence), rules.placement),
        float(high - low),
        len(times),
        heats[-1].single[-1].calls,
        views[-1] if views else None,
    )


CROSS_CONFIDENCE = 0.95
"""Of the view from outside within one attempt: with ten windows the extremes but one."""
ENOUGH = 8
"""Windows of 2n calls from which one attempt may accuse; the protocol has ten."""
LASTING = 3
"""Attempts that all say the same."""


def findings(attempt: Attempt, rules: Rules, floor_s: float) -> list[Finding]:
    """What speaks against the numbers of one attempt, gravest first.

    Args:
        floor_s: no call can take less on this device; 0 where that isn't known.
    """
    found = _of_contestant(attempt.ours, rules, floor_s)
    if attempt.theirs is not None:
        found += _of_contestant(attempt.theirs, rules, floor_s)
        ratios = median_interval(round_ratios(attempt.ours, attempt.theirs), rules.confidence)
        found += _spread("the ratio", ratios, rules)
    else:
        own = median_interval([window.call_s for window in attempt.ours.single], rules.confidence)
        found += _spread("the time", own, rules)
    return sorted(found, key=lambda finding: not finding.grave)


def _of_contestant(heat: Heat, rules: Rules, floor_s: float) -> list[Finding]:
    """Claims against the view from outside and against physics. A baseline can only be disturbed, not dishonest."""
    claim = float(np.median([window.call_s for window in heat.single]))
    claims = f"{heat.name}: {claim * 1e3:.4f} ms a call by its own clock"
    found = []
    if claim < floor_s:
        needed = f"memory and arithmetic alone need {floor_s * 1e3:.4f} ms"
        found.append(Finding("disturbed" if heat.trusted else "floor", not heat.trusted, f"{claims}; {needed}"))
    view = outside_view(heat, CROSS_CONFIDENCE)
    if view is None:
        return found
    seen = f"{view.value * 1e3:.4f} ms ({view.low * 1e3:.4f} to {view.high * 1e3:.4f}) from outside"
    if not heat.trusted and view.high - view.low > 2.0 * rules.blur * max(claim, view.value):
        # Of a machine that answers this late nothing can be said: no honest claim is doubted, no false one believed.
        found.append(Finding("blur", False, f"{claims}, {seen}: too wide to tell"))
    elif claim < rules.claim_floor * view.value and not _explained(heat, view, rules):
        # Below the lower end too: no noise of ours. Between the two, or with too few windows: look again.
        sure = len(heat.double) >= ENOUGH and claim < rules.claim_floor * view.low
        kind: Literal["claim", "disturbed"] = "disturbed" if heat.trusted else "claim"
        found.append(Finding(kind, sure and not heat.trusted, f"{claims}, {seen}"))
    return found


def _explained(heat: Heat, view: Interval, rules: Rules) -> bool:
    """Whether the worker's own clock, too, says that the second half of a longer window is slower.

    It is where more memory is touched than fits a cache, or than the process had from the system.
    """
    inside = _difference(heat, lambda window: window.claimed_s, CROSS_CONFIDENCE)
    return inside is not None and rules.claim_floor <= inside.value / view.value <= 1.0 / rules.claim_floor


def slowed(attempts: Sequence[Attempt], alone: Alone, rules: Rules) -> list[Finding]:
    """Whether the baseline ran slower beside the submission's process than alone, cold and warm.

    What is compared is what the ratio is made of, the rounds: slowing one of a round's two windows moves the ratio of
    every round, and of the windows' own median nothing.
    """
    phases = [median_interval(times, rules.confidence) for times in (alone.before, alone.after) if times]
    times = [time for one in attempts if one.theirs is not None for time in _by_round(one.theirs.single).values()]
    if not phases or not times:
        return []
    slowest = max(phases, key=lambda phase: phase.value)
    beside = median_interval(times, rules.confidence)
    text = f"the baseline: {beside.value * 1e3:.4f} ms a call beside the submission, {slowest.value * 1e3:.4f} ms alone"
    allowed = rules.slowed * slowest.value
    return [Finding("slowed", beside.low > allowed, text)] if beside.value > allowed else []


def _spread(what: str, interval: Interval, rules: Rules) -> list[Finding]:
    half = (interval.high - interval.low) / 2.0
    if half <= rules.max_spread * interval.value:
        return []
    text = f"the interval of {what} reaches {half / interval.value:.1%} of its median to either side"
    return [Finding("spread", False, text)]


def kept(attempts: Sequence[Attempt], rules: Rules, floor_s: float) -> list[Attempt]:
    """The attempts whose numbers count: those without a finding, all together; else the last alone."""
    clean = [attempt for attempt in attempts if not findings(attempt, rules, floor_s)]
    return clean or [attempts[-1]]


def straddles(interval: Interval, edges: Sequence[float]) -> bool:
    """Whether an edge lies inside the interval, so that more rounds might tell."""
    return any(interval.low < edge <= interval.high for edge in edges)


def ratio_of(attempts: Sequence[Attempt], rules: Rules) -> Interval | None:
    """Theirs over ours over all rounds of the attempts; None without a second contestant."""
    ratios = [
        ratio
        for attempt in attempts
        if attempt.theirs is not None
        for ratio in round_ratios(attempt.ours, attempt.theirs)
    ]
    return widened(median_interval(ratios, rules.confidence), rules.placement) if ratios else None


def fraction_of(ours: Timing, floor_s: float) -> Interval | None:
    """Roofline time over ours, in 0 to 1; None where the roofline isn't known."""
    if floor_s <= 0.0:
        return None
    seconds = ours.seconds
    return Interval(floor_s / seconds.value, floor_s / seconds.high, floor_s / seconds.low)


def passing(finding: Finding) -> bool:
    """Whether another attempt may show that it was chance."""
    return not finding.grave or finding.kind == "claim"


def conclude(attempts: Sequence[Attempt], alone: Alone, rules: Rules, floor_s: float) -> tuple[Verdict, str]:
    """The verdict over all attempts and its evidence.

    One grave finding makes numbers suspect; a claim below the view from outside only if it stays there in every
    attempt that the rules allow: chance doesn't repeat itself.
    """
    every = [findings(attempt, rules, floor_s) for attempt in attempts]
    beside = slowed(kept(attempts, rules, floor_s), alone, rules)
    grave = [finding for found in (*every, beside) for finding in found if finding.grave and not passing(finding)]
    if grave:
        return "suspect", grave[0].text
    # Of each attempt what speaks most against it.
    claims = [finding for found in every for finding in found[:1] if finding.kind == "claim"]
    lasting = len(claims) == len(every) >= min(LASTING, 1 + rules.retries)
    if lasting and (len(every) >= LASTING or any(finding.grave for finding in claims)):
        return "suspect", claims[-1].text + (f", in each of {len(every)} attempts" if len(every) > 1 else "")
    clean = any(not found for found in every)
    said = "; ".join(finding.text for finding in every[-1])
    if not clean and any(finding.kind in ("blur", "claim") for finding in every[-1]):
        return "unclear", said
    if beside:
        return "noisy", beside[0].text
    return ("ok", "") if clean else ("noisy", said)


def only_slowed(attempts: Sequence[Attempt], alone: Alone, rules: Rules, floor_s: float) -> bool:
    """Whether nothing but a baseline slower than alone makes the numbers suspect.

    The phases alone lie seconds away from the race, and another job of the machine may have run in the one and not in
    the other: by itself that's a reason to look again, not evidence.
    """
    with_it, without = (conclude(attempts, compared, rules, floor_s)[0] for compared in (alone, Alone()))
    return with_it == "suspect" and without != "suspect"

"""What a measured speed earns: two bands, where their numbers come from, and how an interval is held to them.

A speed check is held to one of two metrics, both the larger the better:

- ``ratio``: a named baseline's time over the submission's, at the same shape in the same race;
- ``fraction``: the part of the hardware profile's roofline that the submission reaches.

Its numbers are ``full_<metric>`` (all points) and ``pass_<metric>`` (half of them). Numbers in the hardware profile of
the card were measured there: the reference's own ratio or fraction times `FULL_OF_REFERENCE` and `PASS_OF_REFERENCE`
(`grade profile thresholds`). Where a profile has none, lab.toml's hold. Those say what part of the roofline a good
kernel reaches on any card, nobody has measured them on this one, so they are provisional: missing one is pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from grader.errors import CourseError
from grader.judge.speed.model import Interval

if TYPE_CHECKING:
    from grader.course import Lab
    from grader.profiles import HardwareProfile

Metric = Literal["ratio", "fraction"]
METRICS: tuple[Metric, ...] = ("ratio", "fraction")

FULL_OF_REFERENCE = 0.8
"""Full marks at this part of what the reference reaches on the card."""
PASS_OF_REFERENCE = 0.5
PASS_POINTS = 0.5
"""Part of the points that the lower band earns."""

BAND_NAMES = frozenset(f"{band}_{metric}" for band in ("full", "pass") for metric in METRICS)
_NAMES: dict[Metric, str] = {"ratio": "times the baseline's speed", "fraction": "of the roofline"}


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    check_id: str
    lab: Lab
    profile: HardwareProfile
    thresholds: dict[str, float]

    def measure(self, name: str, value: object) -> None: ...
    def award(self, fraction: float, message: str) -> None: ...
    def noisy(self, message: str, *, fraction: float = 0.0) -> NoReturn: ...
    def pending(self, message: str, *, fraction: float = 0.0) -> NoReturn: ...
    def fail(self, message: str) -> NoReturn: ...


@dataclass(frozen=True)
class Bands:
    """What a check asks for.

    Attributes:
        full, least: values of the metric that earn all points and the lower band.
        provisional: nobody has measured these numbers on this card.
    """

    metric: Metric
    full: float
    least: float
    provisional: bool

    def earned(self, value: float) -> float:
        """Part of the points, 0 to 1, for a value of the metric."""
        if value >= self.full:
            return 1.0
        return PASS_POINTS if value >= self.least else 0.0


def from_reference(value: float, metric: Metric) -> dict[str, float]:
    """A card's numbers from what the reference reached on it, by the one written rule; to three digits, rounded down.

    Raises:
        ValueError: `value` isn't positive and finite.
    """
    if not 0.0 < value < float("inf"):
        raise ValueError(f"expected a positive {metric} of the reference, found {value!r}")
    parts = {"full": FULL_OF_REFERENCE, "pass": PASS_OF_REFERENCE}
    return {f"{band}_{metric}": int(part * value * 1000) / 1000 for band, part in parts.items()}


def bands_from(where: str, thresholds: Mapping[str, float], metric: Metric, *, provisional: bool) -> Bands | None:
    """The bands of one metric; None where `thresholds` doesn't speak of it.

    Raises:
        CourseError: only one of the two numbers is there, or the lower band lies above the upper.
    """
    full, least = thresholds.get(f"full_{metric}"), thresholds.get(f"pass_{metric}")
    if full is None and least is None:
        return None
    if full is None or least is None or not 0 < least <= full:
        raise CourseError(
            f"{where}: full_{metric} is {full} and pass_{metric} is {least}; expected both, 0 < pass <= full.",
            hint="Mend the thresholds of this check.",
        )
    return Bands(metric, full, least, provisional)


def measured_names(lab_id: str, check_id: str, profile: HardwareProfile) -> frozenset[str]:
    """Band numbers of a check that somebody measured on this card."""
    return BAND_NAMES & profile.thresholds.get(lab_id, {}).get(check_id, {}).keys()


def is_provisional(lab_id: str, check_id: str, name: str, profile: HardwareProfile) -> bool:
    """Whether a number of a check is a band's that nobody measured on this card."""
    return profile.vendor != "cpu" and name in BAND_NAMES - measured_names(lab_id, check_id, profile)


def bands_of(judge: Judging) -> Bands:
    """What the check at hand is held to.

    The card's own numbers decide, a ratio before a fraction; else lab.toml's, where a fraction of the roofline says
    more about an unknown card than a ratio to a baseline that may be better or worse tuned for it.

    Raises:
        CourseError: the check has no bands, or broken ones.
    """
    own = judge.profile.thresholds.get(judge.lab.id, {}).get(judge.check_id, {})
    places: tuple[tuple[str, Mapping[str, float], tuple[Metric, ...], bool], ...] = (
        (f"hardware_profiles/{judge.profile.name}.toml", own, METRICS, False),
        ("lab.toml", judge.lab.checks[judge.check_id].thresholds, METRICS[::-1], True),
    )
    for file, thresholds, metrics, provisional in places:
        for metric in metrics:
            where = f"{file}, {judge.lab.short_id}, {judge.check_id}"
            found = bands_from(where, thresholds, metric, provisional=provisional)
            if found is not None:
                return found
    raise CourseError(
        f"{judge.lab.id}, check {judge.check_id}: no bands to hold a speed to.",
        hint="Give it full_fraction and pass_fraction in lab.toml.",
    )


def judge_speed(judge: Judging, estimates: Mapping[Metric, Interval], said: str) -> None:
    """Award what an interval earns: the points of the band that its lower end clears.

    Args:
        estimates: what was measured, by metric; all of them go into the report.
        said: what was timed, for the message, e.g. "against SDPA flash, 3 shapes".

    Raises:
        what `judge` raises: too slow, inconclusive (`noisy`), or short of a provisional number (`pending`).
        CourseError: the check is held to a metric that wasn't measured.
    """
    for metric, estimate in estimates.items():
        judge.measure(metric, [estimate.value, estimate.low, estimate.high])
    bands = bands_of(judge)
    if bands.metric not in estimates:
        raise CourseError(f"{judge.lab.id}, check {judge.check_id}: held to a {bands.metric}, which isn't measured.")
    found = estimates[bands.metric]
    earned, possible = bands.earned(found.low), bands.earned(found.high)
    if earned == 1.0:
        return
    message = (
        f"{found.value:.3f} {_NAMES[bands.metric]} ({found.low:.3f} to {found.high:.3f}), {said}; all points from "
        f"{bands.full:g}, half of them from {bands.least:g}."
    )
    if bands.provisional:
        judge.pending(f"{message} Pending, not lost: nobody has measured this card's thresholds yet.", fraction=earned)
    if possible > earned:
        judge.noisy(f"{message} The interval straddles a band, which decides nothing.", fraction=earned)
    if earned == 0.0:
        judge.fail(message)
    judge.award(earned, message)

"""The `[grading]` section of `course.toml`: deadlines, late work, attempts, and what can't be graded is worth.

Points are exact decimals here and in everything that follows from them: no grade depends on how a float rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import ROUND_CEILING, Decimal
from functools import cached_property
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

LAB_NAME = r"^lab\d\d(_[a-z0-9_]+)?$"
LabName = Annotated[str, Field(pattern=LAB_NAME)]
"""``lab06`` or the full id."""


def _exact(value: object) -> object:
    """A TOML number as the decimal that was written, not as the nearest binary fraction."""
    return Decimal(str(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Exact = Annotated[Decimal, BeforeValidator(_exact)]


def _date_and_time(value: object) -> object:
    if not isinstance(value, datetime):
        raise ValueError("expected a date and a time without quotes, e.g. 2026-03-02T23:59:00")
    return value


Moment = Annotated[datetime, BeforeValidator(_date_and_time)]
"""With an offset, or local to the course's time zone."""


class Section(BaseModel):
    """A table of a TOML file that an instructor writes: every key is known, every type exact."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LatePolicy(Section):
    """What late work loses.

    For every interval begun after deadline and grace, `rate` of the points is lost, down to `floor` of them. Work that
    arrives within the grace is on time.

    Attributes:
        grace_minutes: how much later than the deadline still counts as on time.
        rate: fraction of the earned points lost an interval; 0.1 is a tenth.
        interval_hours: length of an interval.
        floor: the fraction that late work keeps at least.
        refuse_after_hours: work later than this after the deadline isn't counted at all; never when left out.
    """

    grace_minutes: Annotated[Exact, Field(ge=0)] = Decimal(0)
    rate: Annotated[Exact, Field(ge=0, le=1)] = Decimal(0)
    interval_hours: Annotated[Exact, Field(gt=0)] = Decimal(24)
    floor: Annotated[Exact, Field(ge=0, le=1)] = Decimal(0)
    refuse_after_hours: Annotated[Exact, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _grace_before_refusal(self) -> Self:
        if self.refuse_after_hours is not None and self.refuse_after_hours * 60 < self.grace_minutes:
            raise ValueError(
                f"refuse_after_hours ({self.refuse_after_hours:f}) ends before grace_minutes ({self.grace_minutes:f})"
            )
        return self

    def multiplier(self, late_by: timedelta) -> Decimal | None:
        """The fraction of the points that work keeps which came `late_by` after its deadline; None: not counted."""
        late_s = _seconds(late_by)
        if late_s <= self.grace_minutes * 60:
            return Decimal(1)
        if self.refuse_after_hours is not None and late_s > self.refuse_after_hours * 3600:
            return None
        after_grace = late_s - self.grace_minutes * 60
        intervals = (after_grace / (self.interval_hours * 3600)).to_integral_value(ROUND_CEILING)
        return max(self.floor, Decimal(1) - self.rate * intervals)


def _seconds(span: timedelta) -> Decimal:
    return Decimal(span // timedelta(microseconds=1)) / 1_000_000


class Extension(Section):
    """A later deadline for one student, or one group's name, at one lab."""

    student: Annotated[str, Field(min_length=1)]
    lab: LabName
    until: Moment
    reason: str = ""


@dataclass(frozen=True)
class Lateness:
    """How late one submission came.

    Attributes:
        deadline: in UTC; None when the lab has none.
        late_by: time after the deadline, zero when on time or when nobody knows when it came.
        multiplier: the fraction of the points that it keeps; None when it came too late to count.
        known: False when there is a deadline but no time of receipt, so lateness can't be told.
    """

    deadline: datetime | None
    late_by: timedelta
    multiplier: Decimal | None
    known: bool = True


ON_TIME = Lateness(None, timedelta(0), Decimal(1))


class Grading(Section):
    """How records become grades.

    Attributes:
        time_zone: IANA name, of deadlines without an offset.
        deadlines: lab → when it's due.
        attempts: how many different submissions a lab counts; the first ones do. No limit when left out.
        keep: which of them decides.
        ungradable: what points are worth that couldn't be graded on this machine (`skipped` checks): `pending` until
            graded elsewhere, `excluded` (the rest is scaled up to the lab's total), or `zero`. Points held for review,
            lost to the grader's own error or waiting for a person's rubric are pending whatever this says.
        nothing_usable: what a lab is worth for which nothing gradable was handed in.
    """

    time_zone: str = "UTC"
    deadlines: dict[LabName, Moment] = Field(default_factory=dict)
    late: LatePolicy = Field(default_factory=LatePolicy)
    extensions: tuple[Extension, ...] = ()
    attempts: Annotated[int, Field(ge=1)] | None = None
    keep: Literal["best", "latest"] = "best"
    ungradable: Literal["pending", "excluded", "zero"] = "pending"
    nothing_usable: Literal["pending", "zero"] = "pending"

    @field_validator("extensions", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        _zone(name)
        return name

    @model_validator(mode="after")
    def _moments_exist(self) -> Self:
        for lab, moment in self.deadlines.items():
            self._in_utc(moment, f"deadlines.{lab}")
        seen: set[tuple[str, str]] = set()
        for extension in self.extensions:
            key = (extension.student, extension.lab[:5])
            if key in seen:
                raise ValueError(f"extensions: {extension.student!r} has two for {extension.lab[:5]}, expected one")
            seen.add(key)
            self._in_utc(extension.until, f"extensions of {extension.student!r}")
        numbers = [lab[:5] for lab in self.deadlines]
        twice = next((lab for lab in numbers if numbers.count(lab) > 1), None)
        if twice:
            raise ValueError(f"deadlines: {twice} is named twice, expected one deadline a lab")
        return self

    def _in_utc(self, moment: datetime, key: str) -> datetime:
        try:
            return self._as_utc(moment, key)
        except OverflowError as error:
            raise ValueError(f"{key}: {moment.isoformat()} is outside of the years 1 to 9999 in UTC") from error

    def _as_utc(self, moment: datetime, key: str) -> datetime:
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
        # When the clocks go back an hour comes twice; the second is in the student's favour.
        local = moment.replace(tzinfo=_zone(self.time_zone), fold=1)
        in_utc = local.astimezone(UTC)
        if in_utc.astimezone(local.tzinfo).replace(tzinfo=None) != moment:
            raise ValueError(f"{key}: {moment.isoformat()} doesn't exist in {self.time_zone}: the clocks go forward")
        return in_utc

    @cached_property
    def _deadlines(self) -> Mapping[str, datetime]:
        return {lab[:5]: self._in_utc(moment, lab) for lab, moment in self.deadlines.items()}

    @cached_property
    def _extensions(self) -> Mapping[tuple[str, str], datetime]:
        return {(item.student, item.lab[:5]): self._in_utc(item.until, item.lab) for item in self.extensions}

    def deadline(self, lab: str, *names: str) -> datetime | None:
        """When `lab` is due from the student or group of these names, in UTC; an extension never makes it earlier."""
        common = self._deadlines.get(lab[:5])
        if common is None:
            return None
        own = [self._extensions[name, lab[:5]] for name in names if (name, lab[:5]) in self._extensions]
        return max([common, *own])

    def lateness(self, lab: str, received_at: datetime | None, *names: str) -> Lateness:
        """How late a submission came of the student or group of these names.

        Where its time of receipt isn't known it counts as on time, and `known` says so.
        """
        deadline = self.deadline(lab, *names)
        if deadline is None:
            return ON_TIME
        if received_at is None:
            return Lateness(deadline, timedelta(0), Decimal(1), known=False)
        late_by = max(received_at - deadline, timedelta(0))
        return Lateness(deadline, late_by, self.late.multiplier(late_by))


def _zone(name: str) -> tzinfo:
    """The time zone called `name`.

    Raises:
        ValueError: there is none.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"no time zone is called {name!r} on this machine, expected an IANA name such as 'Europe/Berlin'"
        ) from error

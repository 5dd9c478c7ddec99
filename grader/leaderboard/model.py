"""The leaderboard as a document for everyone: versioned, and without a field that could name a student or a machine.

Its JSON Schema is published in `grader/leaderboard/leaderboard.schema.json`; a test holds the two equal.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from grader.report.model import Frozen

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
KeyedHash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+_-]{0,40}$")]
Words = Annotated[str, Field(max_length=120)]


class ShapeTime(Frozen):
    """One timed shape: median and interquartile range of a call over `windows`, and the ratio to the baseline."""

    label: Words
    median_ms: float | None = None
    iqr_ms: float | None = None
    windows: int | None = None
    ratio: float | None = None


class Metric(Frozen):
    """What a board is ordered by.

    Attributes:
        name: ``ratio_to_baseline`` (geometric mean over the timed shapes: the baseline's time over the entry's) or
            ``points``.
        direction: which end is better.
    """

    name: Literal["ratio_to_baseline", "points"]
    direction: Literal["higher_is_better"] = "higher_is_better"


class Entry(Frozen):
    """The best result of one student (or group) on one board.

    Attributes:
        name: a pseudonym that its owner chose, or ``student-`` and a keyed hash.
        submission: keyed hash of the graded files.
        submitted_at: when it was handed in; None where nobody knows. When it was graded isn't told: a class is graded
            in the order of its names, so those times would say who is who.
        verified: hidden checks ran on inputs from the instructor's secret.
    """

    rank: Annotated[int, Field(ge=1)]
    name: Annotated[str, Field(min_length=1, max_length=120)]
    pseudonym: bool
    submission: KeyedHash
    value: float
    points: float
    gradable_points: float
    ratio_to_baseline: float | None = None
    shapes: tuple[ShapeTime, ...] = ()
    submitted_at: AwareDatetime | None
    gpu: Words = ""
    driver: Version = ""
    torch: Version = ""
    triton: Version = ""
    grader_sha256: Sha256
    task_sha256: Sha256
    isolation: Literal["sealed", "uid"]
    verified: bool


class Board(Frozen):
    """The entries of one lab on one hardware profile, the best first."""

    lab: Annotated[str, Field(pattern=r"^lab\d\d_[a-z0-9_]+$")]
    title: Words
    profile: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    metric: Metric
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]


class Leaderboard(Frozen):
    """`time` is that of the newest result in it, so that the same results give the same bytes."""

    schema_version: Literal[1] = 1
    course: Words
    time: AwareDatetime | None
    boards: tuple[Board, ...]

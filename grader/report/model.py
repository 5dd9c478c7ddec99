"""The report: one frozen record of one grading run, from which every rendering and export is derived.

Nothing here renders, reads files or knows about pytest. The JSON Schema of `Report` is published in
`grader/report/report.schema.json` and a test holds the two equal.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, computed_field, model_validator

SCHEMA_VERSION = 1

Scalar = bool | int | float | str | None
Measured = dict[str, Scalar | list[Scalar]]
Cell = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["Infinity", "-Infinity", "NaN"]}]})]
"""A number that may be infinite, which JSON writes as text."""


class Kind(StrEnum):
    """What a check looks at."""

    CORRECTNESS = "correctness"
    NUMERICS = "numerics"
    TRAFFIC = "traffic"
    CODEGEN = "codegen"
    SPEED = "speed"
    ARTIFACT = "artifact"
    INTEGRITY = "integrity"


class Status(StrEnum):
    """How a check ended.

    `fail` is the submission's doing (a wrong answer, or an exception in its code); `error` is the grader's and
    costs the student nothing to appeal: a run with an `error` exits with code 3. `pending` missed a threshold that
    nobody has measured on that card: what it earned counts, the rest isn't at stake until somebody has.
    """

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    TIMEOUT = "timeout"
    OOM = "oom"
    CRASH = "crash"
    CONTRACT = "contract"
    SUSPECT = "suspect"
    NOISY = "noisy"
    PENDING = "pending"
    SKIPPED = "skipped"


UNGRADED = frozenset({Status.SKIPPED})
"""Statuses whose points were not at stake in this run."""

TO_READ = "not in the table"
"""Name of a check's measure: what whoever gives points by hand should look at."""

CARRY_POINTS = frozenset({Status.PASS, Status.FAIL, Status.NOISY, Status.PENDING})
"""Statuses that may come with points."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Diagnosis(Frozen):
    """A known mistake that explains the observed output.

    Attributes:
        id: stable kebab-case name, e.g. ``mask-top-left``; `wrong/` solutions name it.
        text: one sentence for the student, e.g. "Your output equals attention with the causal mask aligned top-left."
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    text: str


class ErrorMap(Frozen):
    """Where an output is wrong, by tile: the largest error in each tile over the allowed error.

    Attributes:
        title: which slice is shown, e.g. "O, batch 0, head 1".
        row_axis, col_axis: what rows and columns are, e.g. "query" and "head_dim".
        tile: (rows, columns) in elements covered by one cell.
        cells: error / allowed a tile, row-major; ``inf`` where a value is not finite and should be, or the reverse.
    """

    title: str
    row_axis: str
    col_axis: str
    tile: tuple[int, int]
    cells: list[list[Cell]]


class CheckResult(Frozen):
    """The outcome of one check."""

    id: str
    title: str
    kind: Kind
    hidden: bool
    status: Status
    points: Annotated[float, Field(ge=0)]
    max_points: Annotated[float, Field(gt=0)]
    message: str = ""
    diagnosis: Diagnosis | None = None
    measured: Measured = Field(default_factory=dict)
    error_map: ErrorMap | None = None
    phase: Literal["import", "compile", "call", "time", "judge"] | None = None
    duration_s: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> CheckResult:
        if self.points > self.max_points + 1e-9:
            raise ValueError(f"check {self.id}: {self.points} points of {self.max_points}")
        if self.status is Status.PASS and self.points < self.max_points:
            raise ValueError(f"check {self.id}: passed with {self.points} of {self.max_points} points")
        if self.status not in CARRY_POINTS and self.points:
            raise ValueError(f"check {self.id}: status {self.status} cannot carry points")
        if self.status is not Status.PASS and not self.message:
            raise ValueError(f"check {self.id}: status {self.status} needs a message")
        return self


class Tally(Frozen):
    """Points over a set of checks: `gradable` leaves out what could not run here, and what is pending."""

    points: float
    gradable: float
    total: float
    passed: int
    checks: int


def tally(checks: list[CheckResult]) -> Tally:
    """Add up points; skipped checks, and what a pending one didn't earn, count towards `total` only."""
    graded = [c for c in checks if c.status not in UNGRADED]
    return Tally(
        points=round(sum(c.points for c in graded), 6),
        gradable=round(sum(c.points if c.status is Status.PENDING else c.max_points for c in graded), 6),
        total=round(sum(c.max_points for c in checks), 6),
        passed=sum(c.status is Status.PASS for c in graded),
        checks=len(checks),
    )


class LabRef(Frozen):
    id: str
    number: int
    title: str


class SubmissionRef(Frozen):
    """What was graded. `path` is how the person named it, for display on their own screen."""

    path: str
    sha256: str
    files: dict[str, str] = Field(default_factory=dict, description="relative path → sha256 of each graded file")
    notes: list[str] = Field(default_factory=list, description="what of the folder was put right or left out, and why")


class IsolationRecord(Frozen):
    """Which boundary held, and which mechanism enforced each limit.

    Attributes:
        level: `sealed`, `uid` or `process`.
        reason: why not a stronger level, empty at `sealed`.
        limits: limit → what enforced it, e.g. ``{"memory": "cgroup v1", "network": "namespace"}``.
    """

    level: Literal["sealed", "uid", "process"]
    reason: str = ""
    limits: dict[str, str] = Field(default_factory=dict)


class ProfileRef(Frozen):
    name: str
    title: str
    chosen_by: Literal["option", "detected", "course"]
    sha256: str


class SeedRecord(Frozen):
    """Where the inputs came from: the instructor's secret (by key id) or a random key, named afterwards.

    Attributes:
        source: `secret` or `random`.
        key_id: first 16 hex digits of SHA-256 of the key.
        key: the key itself in hex, only when it was random.
    """

    source: Literal["secret", "random"]
    key_id: str
    key: str | None = None


class Threshold(Frozen):
    """A number that a check was held to, and who wrote it."""

    check: str
    name: str
    value: float
    source: str = Field(description="e.g. 'lab.toml', 'hardware_profiles/h200.toml', 'roofline (provisional)'")


class Hashes(Frozen):
    grader: str
    lab: str
    constraints: str


class Report(Frozen):
    """One grading run of one submission for one lab.

    `checks` are in the order of lab.toml. `public_only` says that hidden checks were left out on request or are not
    in this copy of the course; they then appear as skipped.
    """

    schema_version: Literal[1] = 1
    lab: LabRef
    submission: SubmissionRef
    device: Literal["cpu", "cuda"]
    device_name: str = ""
    profile: ProfileRef
    isolation: IsolationRecord
    seed: SeedRecord
    thresholds: list[Threshold] = Field(default_factory=list)
    hashes: Hashes
    versions: dict[str, str] = Field(default_factory=dict)
    selection: str = Field(default="", description="the -k expression, empty when all checks were asked for")
    public_only: bool = False
    started_at: str = Field(description="UTC, ISO 8601")
    duration_s: float
    checks: list[CheckResult]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def score(self) -> Tally:
        return tally(self.checks)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def public_score(self) -> Tally:
        return tally([c for c in self.checks if not c.hidden])

    @computed_field  # type: ignore[prop-decorator]
    @property
    def hidden_score(self) -> Tally:
        return tally([c for c in self.checks if c.hidden])

    @model_validator(mode="after")
    def _unique(self) -> Report:
        ids = [c.id for c in self.checks]
        if len(set(ids)) != len(ids):
            raise ValueError("a check id appears twice in the report")
        return self

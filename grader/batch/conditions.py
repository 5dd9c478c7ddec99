"""What every job of a batch is graded under, decided once before the first of them starts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from grader import provenance
from grader.course import Course, Lab
from grader.judge.seeds import Seeds
from grader.report.model import Frozen, SeedRecord
from grader.sandbox.levels import Level, choose_isolation
from grader.session import protected
from grader.target import choose_target


class Options(Frozen):
    """How a batch was asked for; the same for each of its jobs.

    Attributes:
        course: the course's folder.
        device, profile, isolation: as `grade run` takes them.
        public_only: leave the hidden checks out.
        hidden_at_process: run them also where only a plain subprocess holds a submission, which could read them.
        seed_key: key of the random inputs, in hex; stays in the judge.
        seed_source: whether the key is the instructor's secret or was drawn for this batch.
        time_limit_s: for all checks of one submission together.
        patience: calls of one function that may reach their limit before it isn't called any more.
        protect: what no worker may read besides the course: the submissions, the results.
    """

    course: str
    device: str = "auto"
    profile: str | None = None
    isolation: str = "auto"
    public_only: bool = False
    hidden_at_process: bool = False
    seed_key: str = Field(repr=False)
    seed_source: Literal["secret", "random"]
    time_limit_s: float = Field(gt=0)
    patience: int = Field(gt=0)
    protect: tuple[str, ...] = ()

    @property
    def seeds(self) -> Seeds:
        return Seeds(bytes.fromhex(self.seed_key), self.seed_source)


class Conditions(Frozen):
    """What one lab's submissions get on the machine that grades them.

    Attributes:
        runtime: the heaviest library of the lab's workers.
        device: where they run.
        profile, profile_sha256: the hardware profile that they are held to.
        level: the isolation that this machine gives.
        public_only: hidden checks are left out: as asked, or because `process` would lay them open.
        lab_sha256, grader_sha256, constraints_sha256: of what decides a grade.
        seed: which key the inputs come from; the key itself only when it was random.
    """

    lab: str
    runtime: Literal["numpy", "torch", "triton"]
    device: Literal["cpu", "cuda"]
    profile: str
    profile_sha256: str
    level: Level
    public_only: bool
    lab_sha256: str
    grader_sha256: str
    constraints_sha256: str
    seed: SeedRecord

    def job_key(self, content_sha256: str) -> str:
        """SHA-256 of all that decides the result of a submission with this content."""
        deciding = [
            content_sha256,
            self.lab,
            self.lab_sha256,
            self.grader_sha256,
            self.constraints_sha256,
            self.seed.key_id,
            self.profile,
            self.profile_sha256,
            self.device,
            self.level,
            self.public_only,
        ]
        return hashlib.sha256(json.dumps(deciding).encode()).hexdigest()


def look(options: Options, lab_id: str) -> Conditions:
    """The conditions of one lab on this machine.

    Raises:
        UsageError, CourseError: the lab, device or profile isn't there, or a file of the lab is wrong.
        InfrastructureError: the isolation asked for can't be had.
    """
    course = Course(Path(options.course))
    lab: Lab = course.lab(lab_id)
    target = choose_target(course, lab, options.device, options.profile)
    protect = protected(course, tuple(map(Path, options.protect)))
    level = choose_isolation(options.isolation, protect=protect).level
    hashes = provenance.look(course).hashes(course, lab.id)
    return Conditions(
        lab=lab.id,
        runtime=lab.runtime,
        device=target.device,
        profile=target.profile.name,
        profile_sha256=target.profile.sha256,
        level=level,
        public_only=options.public_only or (level == "process" and not options.hidden_at_process),
        lab_sha256=hashes.lab,
        grader_sha256=hashes.grader,
        constraints_sha256=hashes.constraints,
        seed=options.seeds.record(),
    )

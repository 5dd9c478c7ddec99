"""Grades one submission for one lab: stages it, chooses the boundary and the hardware, runs the checks, reports."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from grader import provenance
from grader.course import Course, Lab
from grader.errors import UsageError
from grader.judge.outcomes import held_back
from grader.judge.plan import Plan, Progress
from grader.judge.requirements import Machine, need_runtime
from grader.judge.seeds import SECRET_FILE_VARIABLE, Seeds
from grader.judge.selection import select
from grader.judge.side_by_side import judges, run_side_by_side
from grader.judge.speed.bands import is_provisional
from grader.profiles import HardwareProfile
from grader.provenance import Provenance
from grader.report.model import (
    CheckResult,
    IsolationRecord,
    Kind,
    LabRef,
    ProfileRef,
    Report,
    SubmissionRef,
    Threshold,
)
from grader.sandbox.levels import Isolation, choose_isolation
from grader.sandbox.stage import Staged, stage
from grader.sandbox.submission import Submission
from grader.target import Target, choose_target

LOG_VARIABLE = "GRADE_LOG"
"""Names a file that takes what only an instructor may read: tracebacks of grader faults, pytest's own output."""


@dataclass(frozen=True)
class GradeRequest:
    """What is to be graded and how.

    Attributes:
        submission: the folder with the lab's files.
        device: `auto`, `cpu` or `cuda`.
        profile: hardware profile; None for the detected GPU's or the course's.
        isolation: `auto`, `sealed`, `uid` or `process`.
        select: a `-k` expression over check ids and titles; empty for all.
        checks: the ids of the only checks to run, in place of `select`; None for all.
        seeds: key of the random inputs; None for $GRADE_SECRET, or a random one.
        protect: what no worker may read, besides the course: other submissions, results.
        time_limit_s: for all checks together; those that it doesn't reach end as `timeout`. None for no limit.
        provenance: what the report says of the grader and this machine; looked up when None. A batch looks once.
        log_output: log what pytest prints also when nothing went wrong with the run itself.
        busy: other submissions are graded on the same cores meanwhile.
        patience: calls of one function that may reach their limit before it isn't called any more; None for any number.
    """

    course: Course
    lab_id: str
    submission: Path
    device: str = "auto"
    profile: str | None = None
    isolation: str = "auto"
    public_only: bool = False
    select: str = ""
    checks: frozenset[str] | None = None
    seeds: Seeds | None = None
    protect: tuple[Path, ...] = ()
    time_limit_s: float | None = None
    patience: int | None = None
    log_output: bool = True
    busy: bool = False
    provenance: Provenance | None = None


def grade(request: GradeRequest, *, progress: Progress | None = None) -> Report:
    """Grade one submission. May be called again and again in one process.

    Raises:
        UsageError: the lab, the submission, the profile, the device or the selection isn't there.
        CourseError: a file of the course is wrong.
        InfrastructureError: the isolation asked for can't be had, or torch or triton where the lab needs them.
    """
    started_at, clock = datetime.now(UTC), time.monotonic()
    lab = request.course.lab(request.lab_id)
    need_runtime(lab)
    selected = _selected(lab, request)
    seeds = request.seeds or Seeds.from_environment()
    target = choose_target(request.course, lab, request.device, request.profile)
    isolation = choose_isolation(request.isolation, protect=protected(request.course, request.protect))
    thresholds = held_to(lab, target.profile)
    with stage(request.submission, lab, request.course.starter_dir(lab.id)) as staged:
        count = judges(target.device, busy=request.busy)
        submission = Submission(
            staged, lab, isolation, target.device, target.profile, patience=request.patience, busy=request.busy
        )
        plan = Plan(
            lab=lab,
            tests_dir=request.course.assignment_dir(lab.id),
            profile=target.profile,
            device=target.device,
            seeds=seeds,
            open_submission=lambda: submission,
            thresholds=_by_check(thresholds),
            machine=Machine.look(
                device=target.device, device_reason=target.reason, gpu_sm=target.gpu_sm, speed=target.speed
            ),
            selected=selected,
            public_only=request.public_only,
            source_lines=_source_lines(staged),
            missing_files=tuple(name for name in lab.files.edit if name not in staged.files),
            log=_logger(),
            log_output=request.log_output,
            time_limit_s=request.time_limit_s,
            **({"progress": progress} if progress is not None else {}),
        )
        with submission:
            # Several judges are forked from this process, which must have no threads then.
            if count == 1 and any(lab.checks[check_id].kind is not Kind.ARTIFACT for check_id in plan.expected):
                submission.warm()
            checks = held_back(lab, run_side_by_side(plan, count))
        return _report(
            request,
            lab=lab,
            staged=staged,
            target=target,
            isolation=isolation,
            plan=plan,
            thresholds=thresholds,
            checks=checks,
            started_at=started_at,
            duration_s=time.monotonic() - clock,
        )


def _selected(lab: Lab, request: GradeRequest) -> frozenset[str]:
    if request.checks is None:
        return select(lab, request.select)
    unknown = sorted(request.checks - set(lab.checks))
    if unknown:
        raise UsageError(f"{lab.short_id} has no check {unknown[0]!r}.", hint=f"Its checks: {', '.join(lab.checks)}.")
    return request.checks


def held_to(lab: Lab, profile: HardwareProfile) -> list[Threshold]:
    """Every number that the lab's checks are held to on this profile, and the file that it stands in."""
    thresholds = []
    for check_id, spec in lab.checks.items():
        own = profile.thresholds.get(lab.id, {}).get(check_id, {})
        for name, value in (spec.thresholds | own).items():
            thresholds.append(
                Threshold(check=check_id, name=name, value=value, source=_source(lab, check_id, name, profile))
            )
    return thresholds


def _source(lab: Lab, check_id: str, name: str, profile: HardwareProfile) -> str:
    """Where a number stands; a speed's that nobody measured on this card says so."""
    if name in profile.thresholds.get(lab.id, {}).get(check_id, {}):
        return f"hardware_profiles/{profile.name}.toml"
    if is_provisional(lab.id, check_id, name, profile):
        return f"{'roofline' if name.endswith('fraction') else 'lab.toml'} (provisional)"
    return "lab.toml"


def _by_check(thresholds: list[Threshold]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for threshold in thresholds:
        table.setdefault(threshold.check, {})[threshold.name] = threshold.value
    return table


def protected(course: Course, more: tuple[Path, ...] = ()) -> list[Path]:
    """What no worker may read, whatever the isolation level."""
    paths = [course.root / "assignments", course.root / "solutions", *more]
    secret = os.environ.get(SECRET_FILE_VARIABLE)
    if secret:
        paths.append(Path(secret))
    return [path for path in paths if path.exists()]


def _readable(path: Path) -> str:
    """The path as text that any file takes: bytes that aren't UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def _source_lines(staged: Staged) -> dict[str, int]:
    """Submitted Python file → number of its lines."""
    return {name: (staged.path / name).read_bytes().count(b"\n") + 1 for name in staged.files if name.endswith(".py")}


def _logger() -> Callable[[str], None]:
    file = os.environ.get(LOG_VARIABLE)

    def log(text: str) -> None:
        if file and text.strip():
            # A full disk costs lines of the log, never a grade.
            with contextlib.suppress(OSError), open(file, "a", encoding="utf-8", errors="replace") as stream:
                stream.write(text.rstrip() + "\n")

    return log


def _report(
    request: GradeRequest,
    *,
    lab: Lab,
    staged: Staged,
    target: Target,
    isolation: Isolation,
    plan: Plan,
    thresholds: list[Threshold],
    checks: list[CheckResult],
    started_at: datetime,
    duration_s: float,
) -> Report:
    made_by = request.provenance or provenance.look(request.course)
    hidden_here = plan.has_hidden_tests or not any(spec.hidden for spec in lab.checks.values())
    return Report(
        lab=LabRef(id=lab.id, number=lab.number, title=lab.title),
        submission=SubmissionRef(
            path=_readable(request.submission), sha256=staged.sha256, files=staged.files, notes=list(staged.notes)
        ),
        device=target.device,
        device_name=target.device_name,
        profile=ProfileRef(
            name=target.profile.name,
            title=target.profile.title,
            chosen_by=target.chosen_by,
            sha256=target.profile.sha256,
        ),
        isolation=IsolationRecord(level=isolation.level, reason=isolation.reason, limits=isolation.limits),
        seed=plan.seeds.record(),
        thresholds=thresholds,
        hashes=made_by.hashes(request.course, lab.id),
        versions=made_by.versions
        | ({"driver": target.gpu.driver} if target.gpu is not None and target.gpu.driver else {}),
        selection=request.select if request.checks is None else " or ".join(sorted(request.checks)),
        public_only=request.public_only or not hidden_here,
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=round(duration_s, 3),
        checks=checks,
    )

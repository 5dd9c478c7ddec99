"""Grades one job in this process: what a grading process does between its fork and its end."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

from grader.batch.jobs import Answer, JobSpec, Step
from grader.course import Course
from grader.errors import GraderError, InfrastructureError
from grader.machine import of_this_machine
from grader.provenance import Provenance
from grader.report import json as report_json
from grader.report.model import CheckResult, Report
from grader.report.text import one_line
from grader.session import GradeRequest, grade


def grade_job(spec: JobSpec, made_by: Provenance, tell: Callable[[Step], None], log: Callable[[str], None]) -> Answer:
    """Grade; whatever goes wrong becomes the answer's `failure`.

    Args:
        made_by: what the report says of the grader and this machine.
        tell: takes each check's start and end.
        log: takes the traceback of a fault of the grader's.
    """

    def progress(check_id: str, result: CheckResult | None) -> None:
        tell(Step(check=check_id, state="started" if result is None else "ended"))

    if spec.cores:
        os.sched_setaffinity(0, spec.cores)
    if spec.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.gpu
    try:
        report = grade(_request(spec, made_by), progress=progress)
        _hold_to(spec, report)
    except GraderError as error:
        return Answer(failure=str(error))
    except OSError as error:
        fault = of_this_machine(error)
        log(f"{spec.source}, {spec.lab}:\n{traceback.format_exc()}")
        return Answer(failure=str(fault) if fault is not None else _grader_fault(error))
    except Exception as error:  # noqa: BLE001 - one submission must not end the batch, whatever it met
        log(f"{spec.source}, {spec.lab}:\n{traceback.format_exc()}")
        return Answer(failure=_grader_fault(error))
    named = report.model_copy(update={"submission": report.submission.model_copy(update={"path": spec.source})})
    return Answer(report=report_json.dumps(named))


def _grader_fault(error: Exception) -> str:
    return f"Grader fault: {type(error).__name__}: {one_line(str(error))}."


def _request(spec: JobSpec, made_by: Provenance) -> GradeRequest:
    options = spec.options
    return GradeRequest(
        course=Course(Path(options.course)),
        lab_id=spec.lab,
        submission=Path(spec.folder),
        device=options.device,
        profile=options.profile,
        isolation=options.isolation,
        public_only=spec.conditions.public_only,
        seeds=options.seeds,
        protect=tuple(map(Path, options.protect)),
        time_limit_s=options.time_limit_s,
        patience=options.patience,
        log_output=False,
        busy=True,
        provenance=made_by,
    )


def _hold_to(spec: JobSpec, report: Report) -> None:
    """A result under other conditions than its key says would be taken for one that it isn't.

    Raises:
        InfrastructureError: they differ: the machine has changed, or isn't the one that planned the job.
    """
    want = spec.conditions
    pairs = {
        "device": (want.device, report.device),
        "profile": (want.profile_sha256, report.profile.sha256),
        "isolation": (want.level, report.isolation.level),
        "lab": (want.lab_sha256, report.hashes.lab),
        "grader": (want.grader_sha256, report.hashes.grader),
    }
    for name, (planned, found) in pairs.items():
        if planned != found:
            raise InfrastructureError(
                f"Planned with {name} {planned[:16]}, graded with {found[:16]}: the machine or the course changed.",
                hint="Run the batch with --resume.",
            )

"""Fills in what one machine couldn't grade from reports of the same submission that another one made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from grader.report import json as report_json
from grader.report.model import CheckResult, Kind, Report, Status

OPEN = frozenset({Status.SKIPPED, Status.ERROR})
"""Statuses that say nothing about the submission: another machine's result takes their place, never the reverse."""


@dataclass(frozen=True)
class Origin:
    """Where a check's result came from when it wasn't this report's own run.

    Attributes:
        report_sha256: of the other report's canonical JSON.
    """

    check: str
    device: str
    profile: str
    isolation: str
    started_at: str
    report_sha256: str


def same_work(report: Report, other: Report) -> bool:
    """Whether `other` graded the same files by the same checks: the hashes of submission and lab are equal."""
    return (report.lab.id, report.submission.sha256, report.hashes.lab) == (
        other.lab.id,
        other.submission.sha256,
        other.hashes.lab,
    )


def merged(report: Report, others: Iterable[Report]) -> tuple[Report, tuple[Origin, ...]]:
    """`report` with its open checks decided by `others`, newest first; the report itself where none can help.

    Only a check of the same points in a report of the same submission and lab counts.
    """
    sources = sorted((other for other in others if same_work(report, other)), key=_newest_first)
    checks: list[CheckResult] = []
    origins: list[Origin] = []
    thresholds = list(report.thresholds)
    for check in report.checks:
        found = _decided(check, sources) if _open(check) else None
        if found is None:
            checks.append(check)
            continue
        result, source = found
        checks.append(result)
        origins.append(_origin(check.id, source))
        own = [threshold for threshold in source.thresholds if threshold.check == check.id]
        thresholds = [threshold for threshold in thresholds if threshold.check != check.id] + own
    if not origins:
        return report, ()
    return report.model_copy(update={"checks": checks, "thresholds": thresholds}), tuple(origins)


def started(report: Report) -> datetime:
    """When the run began; the beginning of time where the report's text is no date."""
    try:
        moment = datetime.fromisoformat(report.started_at)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def report_sha256(report: Report) -> str:
    return hashlib.sha256(report_json.dumps(report).encode()).hexdigest()


def _newest_first(report: Report) -> tuple[float, str]:
    return -(started(report) - datetime.min.replace(tzinfo=UTC)).total_seconds(), report_sha256(report)


def _open(check: CheckResult) -> bool:
    """Whether another machine's result may take its place; a speed that is pending has earned something."""
    return check.status in OPEN or (check.status is Status.PENDING and check.kind is not Kind.SPEED)


def _decided(check: CheckResult, sources: Sequence[Report]) -> tuple[CheckResult, Report] | None:
    for source in sources:
        for result in source.checks:
            if result.id == check.id and not _open(result) and result.max_points == check.max_points:
                return result, source
    return None


def _origin(check: str, source: Report) -> Origin:
    return Origin(
        check=check,
        device=source.device_name or source.device,
        profile=source.profile.name,
        isolation=source.isolation.level,
        started_at=source.started_at,
        report_sha256=report_sha256(source),
    )

"""CTRF, the Common Test Report Format.

Schema: https://github.com/ctrf-io/ctrf, `schema/ctrf.schema.json`; times are whole milliseconds since 1970.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from grader.report.exports.canonical import dumps
from grader.report.exports.disclosure import FAILED, Disclosed, disclose
from grader.report.exports.named import Named
from grader.report.model import Report, Status

SPEC_VERSION = "0.0.0"
"""The version that the published examples carry; the schema asks for three numbers and defines none."""

_STATUSES = {Status.PASS: "passed", Status.SKIPPED: "skipped", Status.SUSPECT: "pending", Status.PENDING: "pending"}


def ctrf(reports: Sequence[Named]) -> str:
    """One document over all reports; each test's suite names student and lab."""
    tests = [_test(named, shown) for named in reports for shown in disclose(named.report)]
    counts = Counter(str(test["status"]) for test in tests)
    starts = [_started(named.report) for named in reports] or [datetime.fromtimestamp(0, UTC)]
    stops = [_milliseconds(_started(n.report)) + round(1000 * n.report.duration_s) for n in reports]
    first = reports[0].report if reports else None
    summary: dict[str, Any] = {"tests": len(tests), "suites": len(reports)}
    summary |= {status: counts[status] for status in ("passed", "failed", "skipped", "pending", "other")}
    summary |= {"start": _milliseconds(min(starts)), "stop": max(stops, default=0)}
    tool = {"name": "grade", "version": first.versions.get("grader", "") if first else ""}
    return dumps(
        {
            "reportFormat": "CTRF",
            "specVersion": SPEC_VERSION,
            "generatedBy": "grade export ctrf",
            "results": {"tool": tool, "summary": summary, "tests": tests},
        }
    )


def _test(named: Named, shown: Disclosed) -> dict[str, Any]:
    lab = named.report.lab.id
    status = _STATUSES.get(shown.status, "failed" if shown.status in FAILED else "other")
    return {
        "name": shown.name,
        "status": status,
        "rawStatus": str(shown.status),
        "duration": round(1000 * shown.duration_s),
        "suite": [part for part in (named.suite.removesuffix(f" / {lab}") if named.student else "", lab) if part],
        "message": shown.text,
        "type": str(shown.kind),
        "tags": ["hidden" if shown.hidden else "public"],
        "labels": {"check": shown.id, "points": round(shown.points, 6), "max_points": shown.max_points},
    }


def _started(report: Report) -> datetime:
    started = datetime.fromisoformat(report.started_at)
    return started if started.tzinfo else started.replace(tzinfo=UTC)


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)

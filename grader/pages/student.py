"""One page a student: scorecard, roofline, traffic against its bound, error maps.

Of hidden checks it tells category, diagnosis and speed; never a message, a shape or a count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grader.pages import drawings
from grader.pages.environment import render
from grader.profiles import HardwareProfile
from grader.report.exports.disclosure import FAILED, Disclosed, disclose
from grader.report.model import CheckResult, Report, Status
from grader.report.moved import moved
from grader.report.scorecard import summary
from grader.report.timings import timed_shapes
from grader.report.verdict import troubled

STYLES = ("base.css", "report.css")

_WORDS = {Status.SUSPECT: "review"}


@dataclass(frozen=True)
class Section:
    """One lab on a page.

    Attributes:
        report: None where nothing was graded; `notes` then say why.
        notes: lines of the gradebook: lateness, overrides, the final score.
    """

    lab: str
    title: str
    report: Report | None
    notes: tuple[str, ...] = ()


def student_page(
    heading: str,
    sections: Sequence[Section],
    profiles: Mapping[str, HardwareProfile],
    *,
    instructor: bool = False,
) -> str:
    """A self-contained page, the same bytes for the same reports.

    Args:
        profiles: name → profile, for the rooflines; a report whose profile isn't among them gets none.
        instructor: hidden checks in full.
    """
    shown = [
        _section(section, profiles, instructor=instructor)
        for section in sorted(sections, key=lambda section: section.lab)
    ]
    return render("report.html.j2", style=STYLES, heading=heading, sections=shown, instructor=instructor)


def _section(section: Section, profiles: Mapping[str, HardwareProfile], *, instructor: bool) -> dict[str, Any]:
    base = {"lab": section.lab[:5], "title": section.title, "notes": section.notes}
    report = section.report
    if report is None:
        return base | {"report": None}
    rows = disclose(report, instructor=instructor)
    visible = [check for check in report.checks if instructor or not check.hidden]
    first = next(iter(troubled(report)), None)
    counted = moved(visible)
    timed = timed_shapes(report, instructor=instructor)
    return base | {
        "report": report,
        "summary": summary(report),
        "groups": [
            (name, [_row(row) for row in rows if row.hidden is hidden])
            for name, hidden in (("Public checks", False), ("Hidden checks", True))
        ],
        "first": None if first is None else rows[report.checks.index(first)],
        "roofline": drawings.roofline(profiles.get(report.profile.name), timed, counted),
        "traffic": drawings.traffic(counted) if counted else None,
        "counted": counted,
        "timed": timed,
        "maps": [_map(check) for check in visible if check.error_map is not None],
    }


def _row(shown: Disclosed) -> dict[str, Any]:
    state = "pass" if shown.status is Status.PASS else "fail" if shown.status in FAILED else "open"
    return {"check": shown, "state": state, "word": _WORDS.get(shown.status, shown.status.value)}


def _map(check: CheckResult) -> dict[str, Any]:
    assert check.error_map is not None
    return {"name": check.title, "drawing": drawings.error_map(check.error_map)}

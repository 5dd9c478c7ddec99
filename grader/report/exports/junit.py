"""JUnit XML: a suite a report, a case a check.

There is no single standard; the elements and attributes are those on which the schemas of Jenkins (`junit-10.xsd` of
the xUnit plugin) and of Ant's reports (https://github.com/windyroad/JUnit-Schema) agree with pytest's own writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from grader.report.exports.disclosure import FAILED, Disclosed, disclose
from grader.report.exports.named import Named
from grader.report.model import Report, Status

_SKIPPED = frozenset({Status.SKIPPED, Status.SUSPECT, Status.PENDING})


def junit(reports: Sequence[Named]) -> str:
    """One document. Points stand in the properties of each case, since the format knows none."""
    root = ET.Element("testsuites", name="grade")
    for named in reports:
        _suite(root, named)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    root.set("time", f"{sum(named.report.duration_s for named in reports):.3f}")
    ET.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, named: Named) -> None:
    report = named.report
    checks = disclose(report)
    suite = ET.SubElement(
        root,
        "testsuite",
        name=named.suite,
        tests=str(len(checks)),
        failures=str(sum(_is_failure(shown) for shown in checks)),
        errors=str(sum(shown.status is Status.ERROR for shown in checks)),
        skipped=str(sum(shown.status in _SKIPPED for shown in checks)),
        time=f"{report.duration_s:.3f}",
        timestamp=_timestamp(report),
    )
    _properties(
        suite,
        {
            "points": f"{report.score.points:g}",
            "gradable_points": f"{report.score.gradable:g}",
            "total_points": f"{report.score.total:g}",
            "submission_sha256": report.submission.sha256,
            "isolation": report.isolation.level,
        },
    )
    for shown in checks:
        _case(suite, named, shown)


def _case(suite: ET.Element, named: Named, shown: Disclosed) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=named.report.lab.id, name=shown.name, time=f"{shown.duration_s:.3f}"
    )
    points = {"points": f"{shown.points:g}", "max_points": f"{shown.max_points:g}"}
    _properties(case, {"check": shown.id, "kind": str(shown.kind), "status": str(shown.status), **points})
    first_line = shown.text.partition("\n")[0]
    if shown.status is Status.ERROR:
        ET.SubElement(case, "error", type="error", message=first_line).text = shown.text
    elif shown.status in _SKIPPED:
        ET.SubElement(case, "skipped", message=first_line)
    elif _is_failure(shown):
        ET.SubElement(case, "failure", type=str(shown.status), message=first_line).text = shown.text


def _is_failure(shown: Disclosed) -> bool:
    # A timing too noisy to earn its whole band lost points, so it mustn't look like a pass.
    return shown.status in FAILED or (shown.status is Status.NOISY and shown.points < shown.max_points)


def _properties(parent: ET.Element, values: dict[str, str]) -> None:
    properties = ET.SubElement(parent, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=value)


def _timestamp(report: Report) -> str:
    """``2026-01-31T12:00:00``: the schemas know no time zone; reports are in UTC."""
    return report.started_at.partition("+")[0].removesuffix("Z")

"""The report as canonical JSON: sorted keys, ASCII only, the same bytes for the same report."""

from __future__ import annotations

import json

from pydantic import ValidationError

from grader.errors import UsageError
from grader.report.model import Report
from grader.report.places import first_fault

DERIVED = ("score", "public_score", "hidden_score")
"""Written for readers that don't add up themselves; recomputed, never believed, when a report is read back."""


def dumps(report: Report) -> str:
    """One report, ending in a newline. Infinite numbers are written as text ("Infinity"): JSON has none."""
    # By way of pydantic's own writer: only that one turns infinite numbers into text.
    table = json.loads(report.model_dump_json())
    return json.dumps(table, indent=2, sort_keys=True, allow_nan=False) + "\n"


def loads(text: str | bytes) -> Report:
    """Read a report back.

    Raises:
        UsageError: not JSON, not a report of this version, or its totals aren't those of its checks.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"Not a report: not valid JSON ({error}).") from error
    if not isinstance(table, dict):
        raise UsageError("Not a report: the file holds no JSON object.")
    claimed = {key: table.pop(key, None) for key in DERIVED}
    try:
        report = Report.model_validate_json(json.dumps(table))
    except ValidationError as error:
        raise UsageError(f"Not a report of this version: {first_fault(error, table, 'the object')}.") from error
    actual = report.model_dump(mode="json", include=set(DERIVED))
    for key, value in claimed.items():
        if value is not None and value != actual[key]:
            raise UsageError(f"The report's `{key}` isn't the sum of its checks: it was edited.")
    return report

"""Prints what `grader.doctor` found."""

from __future__ import annotations

import sys
from dataclasses import asdict

from rich.text import Text

from grader.cli.console import STDOUT, console
from grader.cli.listing import emit
from grader.doctor import State, examine
from grader.errors import ExitCode
from grader.report.scorecard import Paragraph
from grader.report.text import clean

_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red"}


def show_examination(*, json_target: str | None) -> int:
    """A line a finding, its fix below it; 3 when something keeps every lab from being graded."""
    findings = examine()
    if json_target is not None:
        emit([asdict(finding) for finding in findings], json_target)
    if json_target != STDOUT:
        out = console(sys.stdout)
        for finding in findings:
            detail = Text(f"{finding.name}: {clean(finding.detail)}")
            out.print(Paragraph(detail, indent=6, first=finding.state.value, style=_STYLES[finding.state]), end="")
            if finding.fix:
                out.print(Paragraph(Text(f"fix: {finding.fix}"), indent=6), end="")
    failed = any(finding.state is State.FAIL for finding in findings)
    return int(ExitCode.INFRASTRUCTURE if failed else ExitCode.OK)

"""A report and whose it is: what the exports of a whole class take."""

from __future__ import annotations

from dataclasses import dataclass

from grader.report.model import Report
from grader.report.text import one_line


@dataclass(frozen=True)
class Named:
    """One student's report; `student` is empty for a report on its own."""

    student: str
    report: Report

    @property
    def suite(self) -> str:
        """``ada / lab06_fa2_forward``, clean."""
        lab = self.report.lab.id
        return f"{one_line(self.student)} / {lab}" if self.student else lab

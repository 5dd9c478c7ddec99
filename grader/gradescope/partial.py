"""A `results.json` that is rewritten as checks end, so that a kill at any moment leaves what was graded by then."""

from __future__ import annotations

import time
from pathlib import Path

from grader.course import Lab
from grader.files import replace_text
from grader.report.exports.canonical import dumps
from grader.report.exports.disclosure import disclose_checks
from grader.report.exports.gradescope import results, row
from grader.report.model import CheckResult, Status, tally

NOT_REACHED = "grading ended before this check did"


class PartialResults:
    """The progress callback of a grading run at Gradescope.

    Checks without a result carry no score: they are pending, not lost.
    """

    def __init__(self, lab: Lab, target: Path, notes: tuple[str, ...] = ()) -> None:
        self._lab = lab
        self._target = target
        self._notes = notes
        self._began = time.monotonic()
        self.ended: dict[str, CheckResult] = {}

    def __call__(self, check_id: str, done: CheckResult | None) -> None:
        if done is not None:
            self.ended[check_id] = done
            self.write()

    def write(self, why: str = "") -> None:
        """Put the state of things into the file, whole or not at all.

        Args:
            why: what ended the grading early, for the student; empty while it goes on.
        """
        checks = [self.ended.get(check_id) or self._waiting(check_id) for check_id in self._lab.checks]
        said = f"Grading ended early: {len(self.ended)} of {len(checks)} checks have a result; the rest is pending."
        document = results(
            [row(shown) for shown in disclose_checks(checks)],
            score=tally(list(self.ended.values())).points,
            duration_s=time.monotonic() - self._began,
            output="\n".join([said, *([why] if why else []), *self._notes]),
            extra={"lab": self._lab.id, "complete": False},
        )
        replace_text(self._target, dumps(document), durable=True)

    def _waiting(self, check_id: str) -> CheckResult:
        spec = self._lab.checks[check_id]
        return CheckResult(
            id=check_id,
            title=spec.title,
            kind=spec.kind,
            hidden=spec.hidden,
            status=Status.SKIPPED,
            points=0.0,
            max_points=spec.points,
            message=NOT_REACHED,
        )

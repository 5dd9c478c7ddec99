"""What one run of a lab's checks is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from grader.course import Lab
from grader.judge.requirements import Machine
from grader.judge.seeds import Seeds
from grader.report.model import CheckResult

if TYPE_CHECKING:
    from grader.profiles import HardwareProfile
    from grader.sandbox.submission import Submission

PUBLIC_FILE = "test_public.py"
HIDDEN_FILE = "test_hidden.py"

RESTORE = "Restore the file: it's the course's, no part of an answer."
"""What to do about a test file that can't be used; in a student's copy it was changed by accident."""

Progress = Callable[[str, CheckResult | None], None]
"""Called with (check id, None) when a check starts and (check id, its result) when it ends."""

NOT_HERE = "not in this copy of the course"
LEFT_OUT = "hidden checks were left out on request"
NOT_SELECTED = "not selected"


def _no_progress(check_id: str, done: CheckResult | None) -> None:
    """The default: nobody watches."""


def _no_log(text: str) -> None:
    """The default: grader faults leave nothing but their id."""


@dataclass(frozen=True)
class Plan:
    """Everything that one run needs.

    Attributes:
        tests_dir: the lab's folder under `assignments/`.
        open_submission: starts the connection to the graded code; called once, by the first test that needs it.
        thresholds: check id → name → value, the profile's laid over lab.toml's.
        selected: ids of the checks that were asked for.
        source_lines: submitted file → number of its lines.
        missing_files: files that the student must write and didn't hand in.
        log: takes what only an instructor may read: pytest's output and tracebacks of grader faults.
        log_output: log what pytest prints also when nothing went wrong with the run itself.
        time_limit_s: for all tests together, from the first one's start; None for no limit.
    """

    lab: Lab
    tests_dir: Path
    profile: HardwareProfile
    device: str
    seeds: Seeds
    open_submission: Callable[[], Submission]
    thresholds: Mapping[str, dict[str, float]] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    selected: frozenset[str] | None = None
    public_only: bool = False
    source_lines: Mapping[str, int] = field(default_factory=dict)
    missing_files: tuple[str, ...] = ()
    progress: Progress = _no_progress
    log: Callable[[str], None] = _no_log
    log_output: bool = True
    time_limit_s: float | None = None

    @property
    def has_hidden_tests(self) -> bool:
        return (self.tests_dir / HIDDEN_FILE).is_file()

    def left_out(self, check_id: str) -> str:
        """Why a check isn't run at all; empty for an expected one."""
        if self.selected is not None and check_id not in self.selected:
            return NOT_SELECTED
        if self.lab.checks[check_id].hidden:
            if self.public_only:
                return LEFT_OUT
            if not self.has_hidden_tests:
                return NOT_HERE
        return ""

    @cached_property
    def expected(self) -> frozenset[str]:
        """Ids that must have a result when pytest is done."""
        return frozenset(check_id for check_id in self.lab.checks if not self.left_out(check_id))

"""The worked capstones: whole where they were measured, and honest where they weren't."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.seeds import Seeds
from grader.report.model import CheckResult, Status
from grader.session import GradeRequest, grade

COURSE = Course.find(Path(__file__).parent)
LAB = "lab10_capstone"
SEEDS = Seeds(b"the grader's own tests", "secret")
TEXT = frozenset(
    {
        "manifest", "readme", "patch", "patch-focus", "correctness-report", "benchmark", "benchmark-arithmetic",
        "benchmark-possible", "readme-figures", "limitations", "claims",
    }
)  # fmt: skip
MEASURED = ("C", "E")
"""Those whose figures need no GPU."""
UNMEASURED = ("A", "B", "D")
NEED_FIGURES = TEXT - {"manifest", "readme", "patch", "patch-focus"}


def graded(option: str, checks: frozenset[str] | None) -> list[CheckResult]:
    request = GradeRequest(COURSE, LAB, COURSE.solution_dir(LAB) / option, device="cpu", checks=checks, seeds=SEEDS)
    return grade(request).checks


def lost(checks: list[CheckResult]) -> dict[str, str]:
    return {check.id: check.message for check in checks if check.status not in (Status.PASS, Status.SKIPPED)}


@pytest.mark.parametrize("option", MEASURED)
def test_text_of_a_measured_capstone_is_whole(option: str) -> None:
    assert lost(graded(option, TEXT)) == {}


@pytest.mark.parametrize("option", UNMEASURED)
def test_text_of_an_unmeasured_capstone_lacks_its_figures_only(option: str) -> None:
    checks = graded(option, TEXT)
    there = (COURSE.solution_dir(LAB) / option / "benchmark.csv").is_file()
    assert set(lost(checks)) <= (frozenset() if there else NEED_FIGURES)
    if not there:
        said = {check.id: check for check in checks if check.id == "benchmark"}
        assert said["benchmark"].diagnosis is not None
        assert said["benchmark"].diagnosis.id == "not-measured"


@pytest.mark.slow
@pytest.mark.parametrize("option", [*MEASURED, *UNMEASURED])
def test_worked_capstone_loses_nothing_but_figures_that_need_a_gpu(option: str) -> None:
    there = (COURSE.solution_dir(LAB) / option / "benchmark.csv").is_file()
    allowed = frozenset() if there else NEED_FIGURES | {"plot", "benchmark-again"}
    checks = graded(option, None)
    assert [check.id for check in checks if check.status is Status.ERROR] == []
    assert set(lost(checks)) <= allowed, lost(checks)

"""The worked capstones are whole: text, table, claims, and whatever a CPU can grade of the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.seeds import Seeds
from grader.report.model import CheckResult, Status
from grader.session import GradeRequest, grade

COURSE = Course.find(Path(__file__).parent)
LAB = "lab10_capstone"
SEEDS = Seeds(b"the grader's own tests", "secret")
OPTIONS = ("A", "B", "C", "D", "E")
TEXT = frozenset(
    {
        "manifest", "readme", "patch", "patch-focus", "correctness-report", "benchmark", "benchmark-arithmetic",
        "benchmark-possible", "readme-figures", "limitations", "claims",
    }
)  # fmt: skip


def graded(option: str, checks: frozenset[str] | None) -> list[CheckResult]:
    request = GradeRequest(COURSE, LAB, COURSE.solution_dir(LAB) / option, device="cpu", checks=checks, seeds=SEEDS)
    return grade(request).checks


def lost(checks: list[CheckResult]) -> dict[str, str]:
    return {check.id: check.message for check in checks if check.status not in (Status.PASS, Status.SKIPPED)}


@pytest.mark.parametrize("option", OPTIONS)
def test_text_of_a_worked_capstone_is_whole(option: str) -> None:
    checks = graded(option, TEXT)
    assert lost(checks) == {}
    assert {check.id for check in checks if check.status is Status.PASS} == TEXT


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_worked_capstone_loses_nothing_without_a_gpu(option: str) -> None:
    assert lost(graded(option, None)) == {}


def test_table_of_waves_in_the_readme_is_what_its_script_prints() -> None:
    folder = COURSE.solution_dir(LAB) / "A"
    script = [sys.executable, str(folder / "appendix" / "waves.py")]
    found = subprocess.run(
        script, capture_output=True, check=True, encoding="utf-8", env=os.environ | {"PYTHONIOENCODING": "utf-8"}
    )
    assert found.stdout in (folder / "README.md").read_text(encoding="utf-8")
    assert [line.rpartition(": ")[2] for line in found.stderr.splitlines()] == ["148 tiles", "256 tiles"]

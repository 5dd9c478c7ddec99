"""A course of one small NumPy lab, written where a test wants it, and a stand-in for the graded code."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from grader.course import Course
from grader.judge.plan import Plan
from grader.judge.requirements import Machine
from grader.judge.run import run_checks
from grader.judge.seeds import Seeds
from grader.profiles import load_profile
from grader.report.model import CheckResult

PROJECT = Path(__file__).resolve().parent.parent
LAB_ID = "lab01_double"

COURSE_TOML = 'format_version = 1\ntitle = "Toy course"\ndefault_profile = "cpu"\n'

LAB_TOML = """\
format_version = 1
id = "lab01_double"
title = "Twice"
summary = "Doubles an array."
runtime = "numpy"

[files]
edit = ["double.py"]

[limits]
import_s = 60.0
call_s = 30.0
memory_mib = 512

[checks.small]
title = "Small arrays"
kind = "correctness"
points = 40
thresholds = { atol = 0.001 }

[checks.long]
title = "Long arrays"
kind = "numerics"
points = 35
hidden = true

[checks.negative]
title = "Negative numbers"
kind = "correctness"
points = 25
hidden = true
"""

TEST_PUBLIC = """\
import numpy as np
from grader.judge import check

@check("small")
def test_small(submission, judge):
    x = judge.rng().normal(size=7)
    error = float(np.abs(submission.call("double", x) - 2 * x).max())
    judge.measure("error", error)
    if not error <= judge.thresholds["atol"]:
        judge.fail("the result is not twice the input")
"""

TEST_HIDDEN = """\
import numpy as np
import pytest
from grader.judge import check
from grader.report.model import Diagnosis, ErrorMap

@check("long")
@pytest.mark.parametrize("size", [100, 1000])
def test_long(submission, judge, size):
    x = judge.rng().normal(size=size)
    y = submission.call("double", x)
    if not np.array_equal(y, 2 * x):
        seen = Diagnosis(id="unchanged", text="Your output equals the input.") if np.array_equal(y, x) else None
        where = ErrorMap(title="y", row_axis="i", col_axis="-", tile=(1, 1), cells=[[9.0]])
        judge.fail("long arrays come out wrong", diagnosis=seen, error_map=where)

@check("negative")
def test_negative(submission, judge):
    x = -np.abs(judge.rng().normal(size=5))
    assert np.array_equal(submission.call("double", x), 2 * x)
"""

REFERENCE = '''\
"""Doubles an array."""

import numpy as np


def double(x: np.ndarray) -> np.ndarray:
    """Twice `x`, in its dtype."""
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: double x")
    return x * 2
    # END SOLUTION
'''

MISTAKE = """\
format_version = 1
why = "The factor is forgotten."
check = "long"
diagnosis = "unchanged"

[[edits]]
file = "double.py"
old = "return x * 2"
new = "return x * 1"
"""


def write_course(
    root: Path, *, lab_toml: str = LAB_TOML, public: str = TEST_PUBLIC, hidden: str | None = TEST_HIDDEN
) -> Course:
    """A whole course in `root`: assignment, starter-to-be, reference, one mistake, the project's profiles."""
    assignment = root / "assignments" / LAB_ID
    assignment.mkdir(parents=True)
    (root / "assignments" / "course.toml").write_text(COURSE_TOML)
    (assignment / "lab.toml").write_text(lab_toml)
    (assignment / "test_public.py").write_text(public)
    if hidden is not None:
        (assignment / "test_hidden.py").write_text(hidden)
    reference = root / "solutions" / LAB_ID / "reference"
    reference.mkdir(parents=True)
    (reference / "double.py").write_text(REFERENCE)
    wrong = root / "solutions" / LAB_ID / "wrong"
    wrong.mkdir()
    (wrong / "forgotten.toml").write_text(MISTAKE)
    shutil.copytree(PROJECT / "hardware_profiles", root / "hardware_profiles")
    return Course(root)


def write_submission(folder: Path, source: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "double.py").write_text(source)
    return folder


class LocalSubmission:
    """Calls functions in this very process: what a test of the engine needs of `grader.sandbox.submission`."""

    device = "cpu"

    def __init__(self, functions: dict[str, Callable[..., Any]] | Path) -> None:
        self.functions = functions if isinstance(functions, dict) else vars(_load(functions / "double.py"))
        self.timeouts: list[float | None] = []
        self.default_timeout_s: float | None = None
        self.closed = 0

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        self.timeouts.append(self.default_timeout_s)
        return self.functions[function](*args, **kwargs)

    def close(self) -> None:
        self.closed += 1


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"toy_{abs(hash(path))}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_plan(course: Course, submission: Any, **changes: Any) -> Plan:
    """A plan over `submission`: an object with `call`, or a function that stands for `double`."""
    if callable(submission):
        submission = LocalSubmission({"double": submission})
    settings: dict[str, Any] = {
        "lab": course.lab(LAB_ID),
        "tests_dir": course.assignment_dir(LAB_ID),
        "profile": load_profile(course.root, "cpu"),
        "device": "cpu",
        "seeds": Seeds(b"0123456789abcdef", "secret"),
        "open_submission": lambda: submission,
        "thresholds": {"small": {"atol": 0.001}},
        "machine": Machine(),
    }
    return Plan(**{**settings, **changes})


def run_toy(course: Course, submission: Any, **changes: Any) -> dict[str, CheckResult]:
    return {result.id: result for result in run_checks(make_plan(course, submission, **changes))}

"""lab01's answers behind the boundary: what they earn at each level, and how notebooks that misbehave end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from grader.course import Course
from grader.judge.recorder import Judge
from grader.judge.roofline import prediction, table
from grader.judge.seeds import Seeds
from grader.mutants import load_mistakes
from grader.profiles import load_profile
from grader.report.model import CheckResult, Report, Status
from grader.sandbox.levels import choose_isolation
from grader.sandbox.stage import stage
from grader.sandbox.submission import Submission
from grader.session import GradeRequest, grade

COURSE = Course(Path(__file__).resolve().parents[2])
LAB = COURSE.lab("lab01")
SOLUTIONS = COURSE.solution_dir(LAB.id)
NEEDED = ("nbclient", "ipykernel", "matplotlib")


def graded(submission: Path, checks: set[str] | None = None, isolation: str = "auto") -> Report:
    wanted = frozenset(checks) if checks else None
    seeds = Seeds(b"the grader's own tests", "secret")
    return grade(
        GradeRequest(COURSE, LAB.id, submission, device="cpu", checks=wanted, isolation=isolation, seeds=seeds)
    )


def check_of(report: Report, check_id: str) -> CheckResult:
    return next(check for check in report.checks if check.id == check_id)


def with_cells(folder: Path, *sources: str) -> Path:
    """The reference with a notebook of these code cells."""
    for name in NEEDED:
        pytest.importorskip(name)
    shutil.copytree(SOLUTIONS / "reference", folder)
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for i, source in enumerate(sources)
    ]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "roofline.ipynb").write_text(json.dumps(book))
    return folder


@pytest.mark.parametrize(("isolation", "how"), [("sealed", "kernel"), ("process", "shell")])
def test_notebook_runs_at_every_level(isolation: str, how: str, tmp_path: Path) -> None:
    magic = "%matplotlib inline\nfrom pathlib import Path\nassert not Path('table.csv').exists()"
    given = json.loads((SOLUTIONS / "reference" / "roofline.ipynb").read_text())["cells"]
    own = ["".join(cell["source"]) for cell in given if cell["cell_type"] == "code"]
    report = graded(with_cells(tmp_path / "answer", magic, *own), {"notebook-runs"}, isolation)
    if report.isolation.level != isolation:
        pytest.skip(f"no {isolation} level here")
    check = check_of(report, "notebook-runs")
    assert (check.status, check.message) == (Status.PASS, "")
    assert check.measured["executed_by"] == how
    assert check.measured["code_cells"] == 5


@pytest.mark.parametrize("isolation", ["sealed", "process"])
@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["import os", "os._exit(0)"], "ended|died"),
        (["x = 1", "import sys\nsys.exit(0)", "y"], "code cell [23]: (SystemExit|NameError)"),
        (["1 +"], "code cell 1: SyntaxError"),
        (["import socket\nsocket.socket(socket.AF_INET, socket.SOCK_STREAM)"], "code cell 1: PermissionError"),
        (["import roofline\nroofline.ridge_point(None)"], r"code cell 1: roofline\.py:\d+: AttributeError"),
        (["import grader"], "code cell 1: (ModuleNotFoundError|PermissionError)"),
    ],
    ids=["dies", "exits", "syntax", "network", "own-line", "grader"],
)
def test_notebook_that_misbehaves_loses_the_check_and_no_more(
    cells: list[str], said: str, isolation: str, tmp_path: Path
) -> None:
    report = graded(with_cells(tmp_path / "answer", *cells), {"notebook-runs", "forward-flops"}, isolation)
    if report.isolation.level != isolation:
        pytest.skip(f"no {isolation} level here")
    check = check_of(report, "notebook-runs")
    assert check.status is Status.FAIL
    assert re.search(said, check.message), check.message
    assert check_of(report, "forward-flops").status is Status.PASS


@pytest.mark.parametrize("content", [b"", b"{}", b'{"cells": 3}', b"\xff\xfe"])
def test_notebook_that_is_none_fails(content: bytes, tmp_path: Path) -> None:
    folder = with_cells(tmp_path / "answer")
    (folder / "roofline.ipynb").write_bytes(content)
    check = check_of(graded(folder, {"notebook-runs"}), "notebook-runs")
    assert check.status is Status.FAIL
    assert "notebook" in check.message


def test_provided_files_of_a_submission_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(COURSE.starter_dir(LAB.id), folder)
    (folder / "graded_calls.py").write_text("def costs(cases):\n    raise SystemExit\n")
    (folder / "course_types.py").write_text("raise RuntimeError('mine')\n")
    check = check_of(graded(folder, {"forward-flops"}), "forward-flops")
    assert "TODO" in check.message


def test_constant_zero_answer_earns_next_to_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(SOLUTIONS / "reference", folder)
    (folder / "roofline.py").write_text(
        "from course_types import Cost\n"
        "def visible_pairs(*_): return 0\n"
        "def attention_cost(*_, **__): return Cost(0, 1)\n"
        "def ridge_point(*_): return 0.0\n"
        "def attainable_tflops(*_): return 0.0\n"
        "def bound(*_): return 'memory'\n"
        "def intensity_table(shapes, *_, **__): return [{}] * (2 * len(list(shapes)))\n"
        "def plot_roofline(*_): return None\n"
    )
    report = graded(folder)
    assert [check for check in report.checks if check.status is Status.ERROR] == []
    passed = {check.id for check in report.checks if check.status is Status.PASS}
    # What is left are the reference's files, which a student would not have.
    assert passed == {"table-format", "roofline-picture"}


def test_every_check_has_a_mistake_that_it_catches() -> None:
    assert {mistake.check for mistake in load_mistakes(SOLUTIONS)} == set(LAB.checks)


ODD = [
    "None", "'x'", "float('nan')", "10**5000", "np.arange(3)", "Cost(np.arange(2), 10**5000)",
    "[{name: np.arange(2) for name in COLUMNS}] * 8",
]  # fmt: skip
MORE_OF_THEM = [
    "True", "float('inf')", "-1", "[]", "[1, 2]", "{'a': 1}", "np.array(['a'])", "np.float32(2)", "Cost(None, None)",
    "[{name: 10**5000 for name in COLUMNS}] * 8",
]  # fmt: skip


@pytest.mark.parametrize("value", [*ODD, *(pytest.param(value, marks=pytest.mark.slow) for value in MORE_OF_THEM)])
def test_odd_values_cost_the_check_and_are_no_fault_of_the_grader(value: str, tmp_path: Path) -> None:
    folder = tmp_path / "answer"
    shutil.copytree(SOLUTIONS / "reference", folder)
    names = ("visible_pairs", "attention_cost", "ridge_point", "attainable_tflops", "bound", "intensity_table")
    text = "import numpy as np\nfrom course_types import COLUMNS, Cost\n"
    text += "".join(f"def {name}(*args, **options):\n    return {value}\n" for name in names)
    text += "def plot_roofline(*args):\n    raise ValueError\n"
    (folder / "roofline.py").write_text(text)
    left_alone = {"notebook-runs", "table-format", "roofline-picture", "prediction"}
    report = graded(folder, set(LAB.checks) - left_alone)
    ran = [check for check in report.checks if check.id not in left_alone]
    assert {check.status for check in ran} <= {Status.FAIL, Status.CONTRACT}


def test_sdpa_is_timed_without_the_submission(tmp_path: Path) -> None:
    starter = tmp_path / "starter"
    shutil.copytree(COURSE.starter_dir(LAB.id), starter)
    (starter / "sdpa_timing.py").write_text(
        "import sys\n"
        "def time_sdpa(*sizes):\n"
        "    assert 'roofline' not in sys.modules and len(sizes) == 6\n"
        "    return {'median_ms': float(sizes[0]), 'iqr_ms': 0.5}\n"
    )
    judge = Judge(
        check_id="prediction",
        lab=LAB,
        profile=load_profile(COURSE.root, "h200"),
        device="cuda",
        thresholds=LAB.checks["prediction"].thresholds,
        seeds=Seeds(b"lab01", "secret"),
        test="unit",
    )
    reference = SOLUTIONS / "reference"
    asked = [prediction.LARGE, prediction.DECODE]
    with stage(reference, LAB, starter) as staged, Submission(staged, LAB, choose_isolation("auto")) as submission:
        assert prediction.measure_sdpa(starter, LAB, submission, judge, asked) == [4.0, 16.0]
        predicted = prediction.predict_ms(submission, judge, table.gpu_of(judge.profile), asked)
        assert predicted == pytest.approx([0.5559, 0.2238], rel=1e-3)
        (starter / "sdpa_timing.py").write_text("def time_sdpa(*sizes):\n    raise RuntimeError('no room')\n")
        with pytest.raises(pytest.skip.Exception, match="no room"):
            prediction.measure_sdpa(starter, LAB, submission, judge, asked)
    assert judge.measured["measured_ms_0"] == 4.0

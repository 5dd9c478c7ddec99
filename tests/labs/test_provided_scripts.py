"""Provided scripts that need a GPU say so where there is none, in place of a traceback from inside torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grader.course import Course

COURSE = Course.find(Path(__file__).parent)


@pytest.mark.parametrize(
    ("lab", "script", "code"),
    [("lab01", "sdpa_timing.py", 1), ("lab06", "benchmark.py", 2), ("lab08", "benchmark.py", 2)],
)
def test_provided_script_without_a_gpu_says_that_it_needs_one(lab: str, script: str, code: int, tmp_path: Path) -> None:
    folder = COURSE.starter_dir(COURSE.lab(lab).id)
    words = [sys.executable, "-B", str(folder / script), *(["--out", str(tmp_path)] if code == 2 else [])]
    done = subprocess.run(
        words, cwd=tmp_path, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert "needs a GPU, and there is none here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_run_harness_without_a_gpu_accepts_the_reference_in_bfloat16(tmp_path: Path) -> None:
    """One query, 77 keys: the interpreter's own bfloat16 refuses it."""
    shutil.copytree(COURSE.solution_dir(COURSE.lab("lab07").id) / "reference", tmp_path / "mine")
    code = "import sys, run_harness as r; r.STANDARD_SHAPES = r.STANDARD_SHAPES[-1:]; sys.exit(r.main())"
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", code],
        cwd=tmp_path / "mine",
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "GRADE_COURSE": str(COURSE.root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("pass  bfloat16  1x77  d 128\nharness_report.json: pass\n")
    assert done.returncode == 0

"""Hidden checks of lab10."""

from __future__ import annotations

from pathlib import Path

from grader.judge import Judge, Submission, check
from grader.judge.capstone import path_checks

COURSE = Path(__file__).resolve().parents[2]


@check("path-shapes")
def test_path_on_other_shapes(submission: Submission, judge: Judge) -> None:
    """Lengths that no tile divides, every dtype and kind of mask that capstone.toml names, groups and batches."""
    path_checks.judge_problems(judge, submission, COURSE, edges=False, count=2)


@check("path-edges")
def test_path_at_the_edges(submission: Submission, judge: Judge) -> None:
    """Windows of one key, one global token, documents of one token, rows without a block."""
    path_checks.judge_problems(judge, submission, COURSE, edges=True, count=1)


@check("path-work")
def test_changed_code_does_the_work(submission: Submission, judge: Judge) -> None:
    """Kernels launch and no library computes; an audit's rows belong to one problem; a patch keeps no state."""
    path_checks.judge_work(judge, submission, COURSE)


@check("benchmark-again")
def test_benchmark_runs_again(submission: Submission, judge: Judge) -> None:
    """On the table's card every looked-at median within the bound; an audit's quantiles on rows drawn anew."""
    path_checks.judge_rerun(judge, submission, COURSE)


# kept-from-students-a4c156f30cbed99d

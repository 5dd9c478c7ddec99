"""Hidden checks of lab10."""

from __future__ import annotations

from grader.judge import Judge, Submission, check
from grader.judge.capstone import path_checks


@check("path-shapes")
def test_path_on_other_shapes(submission: Submission, judge: Judge) -> None:
    """Lengths that no tile divides, every dtype and kind of mask that capstone.toml names, groups and batches."""
    path_checks.judge_problems(judge, submission, edges=False, count=2)


@check("path-edges")
def test_path_at_the_edges(submission: Submission, judge: Judge) -> None:
    """Windows of one key, one global token, documents of one token, rows without a block."""
    path_checks.judge_problems(judge, submission, edges=True, count=1)


@check("path-work")
def test_changed_code_does_the_work(submission: Submission, judge: Judge) -> None:
    """Kernels launch and no library computes; an audit's rows belong to one problem; a patch keeps no state."""
    path_checks.judge_work(judge, submission)


@check("benchmark-again")
def test_benchmark_runs_again(submission: Submission, judge: Judge) -> None:
    """Medians on the table's card; an audit's quantiles on rows drawn anew; calls of a patch and of none, in turns."""
    path_checks.judge_rerun(judge, submission)


# kept-from-students-a4c156f30cbed99d

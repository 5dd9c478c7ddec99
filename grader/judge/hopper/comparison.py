"""lab09's comparison of kernels, for the same points either way: a table from a Hopper card, or the provided ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grader.judge.benchmark_table import judge_plot
from grader.judge.hopper import analysis, bench_table, measurements
from grader.judge.hopper.analysis import Answers
from grader.judge.hopper.measurements import Published, Speeds
from grader.profiles import HardwareProfile, list_profiles, load_profile

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

MEASURED_ON, PUBLISHED_ON = "h200", "h100-sxm"


@dataclass(frozen=True)
class Tables:
    """The answers, and the tables that they are about."""

    answers: Answers
    speeds: Speeds
    published: Published


def judge_ratios(judge: Judge, submission: Submission, course: Path) -> None:
    """The ratios to FA2; or a table of tested rows whose arithmetic is right."""
    handed = _handed_in(judge, submission)
    if isinstance(handed, bytes):
        bench_table.judge_table(judge, handed, _profiles(course))
    else:
        analysis.judge_ratios(judge, handed.answers, handed.speeds)


def judge_lengths(judge: Judge, submission: Submission) -> None:
    """From which length on a gain holds; or a gain from 4096 on."""
    handed = _handed_in(judge, submission)
    if isinstance(handed, bytes):
        bench_table.judge_gain(judge, handed)
    else:
        analysis.judge_lengths(judge, handed.answers, handed.speeds, handed.published)


def judge_roofline(judge: Judge, submission: Submission, course: Path) -> None:
    """Fractions of the peak, the fastest kernel, the causal mask; or fractions of the roofline and spreads."""
    handed = _handed_in(judge, submission)
    if isinstance(handed, bytes):
        bench_table.judge_roofline(judge, handed, _profiles(course))
    else:
        analysis.judge_roofline(judge, handed.answers, handed.speeds, load_profile(course, MEASURED_ON))
        analysis.judge_causal(judge, handed.answers, handed.speeds)


def judge_ablation(judge: Judge, submission: Submission, course: Path) -> None:
    """What each step bought and which claims the tables bear out; or the plot of the table."""
    handed = _handed_in(judge, submission)
    if isinstance(handed, bytes):
        picture = submission.read_file(bench_table.PLOT_NAME)
        if picture is None:
            judge.fail(f"{bench_table.PLOT_NAME} is missing beside {bench_table.FILE_NAME}.")
        judge_plot(judge, bench_table.PLOT_NAME, picture)
    else:
        peak = load_profile(course, PUBLISHED_ON).peak_tflops["float16"]
        analysis.judge_ablation(judge, handed.answers, handed.published, peak)
        analysis.judge_claims(judge, handed.answers, handed.speeds, handed.published)


def _profiles(course: Path) -> Sequence[HardwareProfile]:
    return [load_profile(course, name) for name in list_profiles(course)]


def _handed_in(judge: Judge, submission: Submission) -> bytes | Tables:
    """bench.csv where there is one, else the answers about the provided tables; one of them must be there."""
    table = submission.read_file(bench_table.FILE_NAME)
    judge.measure("way", "analysis" if table is None else "bench")
    if table is not None:
        return table
    raw = submission.read_file(analysis.FILE_NAME)
    if raw is None:
        judge.fail(f"Neither {bench_table.FILE_NAME} (from a Hopper card) nor {analysis.FILE_NAME} is there.")
    try:
        answers = Answers(judge, analysis.read(raw))
    except analysis.AnalysisError as error:
        judge.fail(f"{analysis.FILE_NAME}: {error}.")
    measured, published = (_provided(submission, name) for name in (measurements.MEASURED, measurements.PUBLISHED))
    return Tables(answers, measurements.read(measured), measurements.read_published(published))


def _provided(submission: Submission, name: str) -> str:
    """A provided table; the stage lays the course's own copy over whatever a student did to it."""
    raw = submission.read_file(name)
    assert raw is not None  # the stage refuses a lab whose provided files are missing
    return raw.decode()

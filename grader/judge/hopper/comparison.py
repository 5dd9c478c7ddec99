"""lab09's comparison of kernels, for the same points by either way: a table from a Hopper card, or the provided ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from grader.judge.hopper import analysis, bench_table, measurements
from grader.judge.hopper.measurements import Published, Speeds

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission


@dataclass(frozen=True)
class Handed:
    """What a submission hands in.

    Attributes:
        way: `bench` where there is a bench.csv, else `analysis`.
        bench: its bytes. answers, speeds, published: of the other way.
    """

    way: Literal["bench", "analysis"]
    bench: bytes = b""
    answers: analysis.Answers | None = None
    speeds: Speeds | None = None
    published: Published | None = None


def handed_in(submission: Submission, judge: Judge) -> Handed:
    """Look at what is there; ends the check when that can't be read."""
    table = submission.read_file(bench_table.FILE_NAME)
    judge.measure("way", "analysis" if table is None else "bench")
    if table is not None:
        return Handed("bench", bench=table)
    raw = submission.read_file(analysis.FILE_NAME)
    if raw is None:
        judge.fail(f"Neither {bench_table.FILE_NAME} (from a Hopper card) nor {analysis.FILE_NAME} is there.")
    try:
        answers = analysis.Answers(judge, analysis.read(raw))
    except analysis.AnalysisError as error:
        judge.fail(f"{analysis.FILE_NAME}: {error}.")
    return Handed(
        "analysis",
        answers=answers,
        speeds=measurements.read(_provided(submission, measurements.MEASURED)),
        published=measurements.read_published(_provided(submission, measurements.PUBLISHED)),
    )


def _provided(submission: Submission, name: str) -> str:
    """A provided table; the stage lays the course's own copy over whatever a student did to it."""
    raw = submission.read_file(name)
    assert raw is not None  # the stage refuses a lab whose provided files are missing
    return raw.decode()

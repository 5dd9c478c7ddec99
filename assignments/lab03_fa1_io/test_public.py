"""Public checks of lab03."""

from __future__ import annotations

import pytest

from grader.judge import Judge, Submission, check
from grader.judge.tiles import models, runs, table
from grader.judge.tiles.forms import FA1, FA2, FUNCTIONS, STANDARD, Setting
from grader.judge.tiles.notes import NotesError, judge_notes

# N, d and M, in elements: blocks that divide N; ragged blocks; tiles higher than d.
SIZES = ((32, 4, 128), (37, 6, 160), (45, 3, 100))
SMALL = (95, 8, 368)
IDS = ["whole", "ragged", "wide"]


@check("standard-output")
@pytest.mark.parametrize(("n", "d", "m"), SIZES, ids=IDS)
def test_standard_attention_is_right(submission: Submission, judge: Judge, n: int, d: int, m: int) -> None:
    """float32; P must be softmax(S), O must be P V."""
    case = runs.draw(judge.rng(), n, d, m, dtype="float32")
    runs.judge_run(submission, judge, case, STANDARD, f"{STANDARD}, N={n}, d={d}, M={m}", count=False)


@check("fa1-output")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "d", "m"), SIZES, ids=IDS)
def test_fa1_is_right(submission: Submission, judge: Judge, n: int, d: int, m: int, dtype: str) -> None:
    """O, and m + log l; the scores rise along the keys, so that every block moves the maximum."""
    case = runs.draw(judge.rng(), n, d, m, dtype=dtype)
    runs.judge_run(submission, judge, case, FA1, f"{FA1}, N={n}, d={d}, M={m}, {dtype}", count=False)


@check("fa2-output")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("n", "d", "m"), SIZES, ids=IDS)
def test_fa2_is_right(submission: Submission, judge: Judge, n: int, d: int, m: int, dtype: str) -> None:
    """O and LSE, as above."""
    case = runs.draw(judge.rng(), n, d, m, dtype=dtype)
    runs.judge_run(submission, judge, case, FA2, f"{FA2}, N={n}, d={d}, M={m}, {dtype}", count=False)


@check("bytes")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_bytes_are_those_of_the_closed_form(submission: Submission, judge: Judge, function: str) -> None:
    """N=95, d=8, M=368, which 4d doesn't divide: tiles of 11 and 8 rows, where ⌈M/4d⌉ would be 12."""
    case = runs.draw(judge.rng(), *SMALL)
    runs.judge_run(submission, judge, case, function, f"{function}, N=95, d=8, M=368")


@check("causal-small")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_causal_run_masks_and_skips(submission: Submission, judge: Judge, function: str) -> None:
    """The same sizes, causal: blocks without a visible pair aren't loaded, standard attention masks only."""
    case = runs.draw(judge.rng(), *SMALL, causal=True)
    runs.judge_run(submission, judge, case, function, f"{function}, causal, N=95, d=8, M=368")


@check("paper-setting")
@pytest.mark.parametrize("name", list(models.MODELS))
def test_closed_form_at_the_papers_setting(submission: Submission, judge: Judge, name: str) -> None:
    """N=1024, d=64, M=98304 elements (192 KB of float16), one head; the same M of float32 elements; a small machine."""
    settings = [Setting(*table.PAPER), Setting(*table.PAPER, itemsize=4), Setting(*SMALL)]
    models.judge_model(submission, judge, name, settings)


@check("notes")
def test_notes_walk_through_the_algorithms(submission: Submission, judge: Judge) -> None:
    """A section an algorithm: pseudocode whose loads and stores add up, the closed form, text; the paper's setting."""
    raw = submission.read_file("NOTES.md")
    if raw is None:
        judge.fail("NOTES.md is missing.")
    try:
        judge_notes(raw, min_words=int(judge.thresholds["min_words"]))
    except NotesError as error:
        judge.fail(f"NOTES.md: {error}.", diagnosis=error.diagnosis)


@check("table-format")
def test_table_has_every_row(submission: Submission, judge: Judge) -> None:
    """io.csv: the columns, every function at every point, once."""
    raw = submission.read_file("io.csv")
    if raw is None:
        judge.fail("io.csv is missing. Run `python io_model.py` in the lab's folder and hand the file in.")
    try:
        table.read_table(raw)
    except table.TableError as error:
        judge.fail(f"io.csv: {error}.")

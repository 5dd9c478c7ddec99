"""Public checks of lab01."""

from __future__ import annotations

from pathlib import Path

from grader.judge import Judge, Submission, check
from grader.judge.roofline import cases, costs, machine, notebook, plot, table
from grader.profiles import load_profile

COURSE = Path(__file__).resolve().parents[2]


@check("forward-flops")
def test_forward_flops_of_squares(submission: Submission, judge: Judge) -> None:
    """As many queries as keys: 64, 200 and a random length, with and without a causal mask."""
    asked = cases.public_forward(judge.rng())
    costs.judge_flops(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, forward")


@check("forward-bytes")
def test_forward_bytes_of_both_algorithms(submission: Submission, judge: Judge) -> None:
    """Without a mask, a K/V head for each query head, bfloat16."""
    asked = cases.public_bytes(judge.rng())
    costs.judge_bytes(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, forward")


@check("roofline")
def test_roofline_of_this_profile(submission: Submission, judge: Judge) -> None:
    """The card that this run is held to: its ridge points, then costs on either side of them."""
    card = table.gpu_of(judge.profile)
    if "bfloat16" not in card.peak_tflops:
        card = table.gpu_of(load_profile(COURSE, "a100-80gb"))
    machine.judge_ridges(submission, judge, card, ["bfloat16", "float32"])
    works = [
        (int(factor * card.ridge(d) * 10**8), 10**8, d) for d in ("bfloat16", "float32") for factor in (0.1, 0.8, 2)
    ]
    machine.judge_rates(submission, judge, card, works)
    machine.judge_bounds(submission, judge, card, works)


@check("table-rows")
def test_table_rows_of_two_shapes(submission: Submission, judge: Judge) -> None:
    """Rows have the columns of the handout and name what was asked; their numbers agree with each other."""
    card = table.gpu_of(load_profile(COURSE, "a100-80gb"))
    shapes = cases.table_shapes(judge.rng())[:2]
    rows = table.run_table(submission, judge, shapes, card, {"dtype": "bfloat16", "causal": False})
    table.judge_consistent(judge, rows, shapes, card)


@check("table-format")
def test_table_has_every_row_of_the_grid(submission: Submission, judge: Judge) -> None:
    """table.csv: the columns, 64 rows, each once, one GPU that the course knows."""
    raw = submission.read_file("table.csv")
    if raw is None:
        judge.fail("table.csv is missing. Run the notebook in the lab's folder and hand the file in.")
    try:
        table.card_of(table.ordered(table.read_csv(raw)), lambda name: load_profile(COURSE, name))
    except table.TableError as error:
        judge.fail(f"table.csv: {error}.")


@check("notebook-runs")
def test_notebook_runs_from_a_clean_kernel(submission: Submission, judge: Judge) -> None:
    """All cells from top to bottom, in a copy of the folder without table.csv and roofline.png."""
    run = notebook.run_notebook(submission, judge)
    notebook.judge_run(judge, run)
    plot.judge_picture(judge, "the notebook's roofline.png", run.files[notebook.PLOT])
    table.judge_left_table(judge, run.files[notebook.TABLE], submission.read_file("table.csv"))

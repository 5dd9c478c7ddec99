"""Hidden checks of lab01."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.judge import Judge, Submission, check
from grader.judge.roofline import cases, costs, machine, plot, prediction, table
from grader.judge.roofline.model import Case, Gpu
from grader.profiles import load_profile

COURSE = Path(__file__).resolve().parents[2]

# Counting


@check("visible-pairs")
def test_visible_pairs_are_exact(submission: Submission, judge: Judge) -> None:
    """Lengths far apart either way, one apart, one query, one key, odd squares; with and without a mask."""
    costs.judge_pairs(submission, judge, cases.pair_lengths(judge.rng()), "visible_pairs, uneven lengths")


@check("visible-pairs")
def test_flops_follow_from_visible_pairs(submission: Submission, judge: Judge) -> None:
    """The same lengths through attention_cost."""
    asked = cases.pairs(judge.rng())
    costs.judge_flops(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, uneven lengths")


@check("backward-flops")
def test_backward_flops_are_two_and_a_half_times(submission: Submission, judge: Judge) -> None:
    """Forward and backward of the same shapes, grouped heads and masks among them."""
    asked = cases.backward(judge.rng())
    costs.judge_flops(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, both directions")


@check("backward-bytes")
def test_backward_bytes_of_both_algorithms(submission: Submission, judge: Judge) -> None:
    """Every operand, gradient and pass over the matrix."""
    asked = cases.backward(judge.rng())
    costs.judge_bytes(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, both directions")


@check("dtype-widths")
def test_bytes_of_every_dtype(submission: Submission, judge: Judge) -> None:
    """Four dtypes, both algorithms, both directions."""
    asked = cases.widths(judge.rng())
    costs.judge_bytes(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, all dtypes")


@check("dtype-widths")
def test_unknown_names_are_errors(submission: Submission, judge: Judge) -> None:
    """A dtype, an algorithm or a direction that nobody defined has no cost."""
    costs.judge_unknown_names(submission, judge)


@check("masked-bytes")
def test_bytes_under_a_causal_mask(submission: Submission, judge: Judge) -> None:
    """A mask hides pairs, not operands: the stored matrix and K and V stay whole."""
    asked = cases.masked_forward(judge.rng())
    costs.judge_bytes(judge, asked, costs.run_costs(submission, judge, asked), "attention_cost, causal")


@check("grouped-decode")
def test_decode_intensity_is_the_group_size(submission: Submission, judge: Judge) -> None:
    """One query a sequence, groups of 1, 4, 7 and 8: K and V are moved once for the heads that share them."""
    asked = cases.grouped_decode(judge.rng())
    counts = costs.run_costs(submission, judge, asked)
    costs.judge_bytes(judge, asked, counts, "attention_cost, decode")
    costs.judge_flops(judge, asked, counts, "attention_cost, decode")
    for case, (flops, moved) in zip(asked, counts, strict=True):
        if case.algorithm == "flash":
            ratio = flops / moved / (case.shape.q_heads // case.shape.kv_heads)
            judge.measure("intensity_per_group", ratio)
            if not judge.thresholds["min_ratio"] <= ratio <= 1:
                judge.fail("attention_cost, decode: the intensity isn't about the group size.")


@check("single-query")
def test_single_query_and_single_key_are_no_special_case(submission: Submission, judge: Judge) -> None:
    """Standard attention stores S and P for one query too, and its causal mask hides nothing."""
    asked = cases.single_query(judge.rng())
    counts = costs.run_costs(submission, judge, asked)
    costs.judge_flops(judge, asked, counts, "attention_cost, one query or key")
    costs.judge_bytes(judge, asked, counts, "attention_cost, one query or key")


# The machine


@check("ridge-dtypes")
def test_ridge_points_of_a_made_up_card(submission: Submission, judge: Judge) -> None:
    """Every dtype, and the default."""
    card = cases.gpu(judge.rng())
    machine.judge_ridges(submission, judge, card, list(card.peak_tflops))


@check("ridge-dtypes")
def test_missing_unit_is_an_error(submission: Submission, judge: Judge) -> None:
    """A card without float8: no other peak may stand in."""
    card = cases.gpu(judge.rng())
    peaks = {dtype: peak for dtype, peak in card.peak_tflops.items() if dtype != "float8"}
    machine.judge_missing_dtype(submission, judge, Gpu(card.name, card.bandwidth_gbs, peaks), "float8")


@check("bound-sides")
def test_rates_and_bounds_on_both_sides(submission: Submission, judge: Judge) -> None:
    """From a hundredth of the ridge point to fifty times it, and closely on either side."""
    rng = judge.rng()
    card = cases.gpu(rng)
    works = cases.roof_costs(rng, card)
    machine.judge_rates(submission, judge, card, works)
    machine.judge_bounds(submission, judge, card, works)


@check("bound-sides")
def test_bound_at_the_ridge_point(submission: Submission, judge: Judge) -> None:
    """A card on which no step rounds: one FLOP below the ridge, at it, one above."""
    rng = judge.rng()
    card = cases.ridge_gpu(rng)
    machine.judge_bounds(submission, judge, card, cases.at_the_ridge(rng, card))


@check("bound-sides")
def test_standard_and_flash_are_bound_as_the_handout_says(submission: Submission, judge: Judge) -> None:
    """Prefill: memory under standard, compute under flash. Decode: memory under both."""
    card = cases.gpu(judge.rng())
    shapes = [cases.PREFILL, cases.DECODE]
    rows = table.run_table(submission, judge, shapes, card, {"dtype": "bfloat16"})
    if [row["bound"] for row in rows] != ["memory", "compute", "memory", "memory"]:
        judge.fail("intensity_table: prefill and decode aren't bound by what the definitions give.")


# What is shipped


@check("table-numbers")
@pytest.mark.parametrize(
    ("dtype", "causal", "direction"),
    [("bfloat16", False, "forward"), ("float32", True, "forward"), ("float8", True, "backward")],
)
def test_table_of_a_made_up_card(
    submission: Submission, judge: Judge, dtype: str, causal: bool, direction: str
) -> None:
    """Shapes and a card that no table holds: every number against the judge's own count."""
    rng = judge.rng()
    card, shapes = cases.gpu(rng), cases.table_shapes(rng)
    options = {"dtype": dtype, "causal": causal, "direction": direction}
    rows = table.run_table(submission, judge, shapes, card, options)
    asked = [Case(shape, algorithm, dtype, causal, direction) for shape in shapes for algorithm in table.ALGORITHMS]
    table.judge_rows(judge, rows, asked, card, "intensity_table", table.CODE_RELATIVE)


@check("table-numbers")
def test_table_file_is_what_the_code_returns(submission: Submission, judge: Judge) -> None:
    """table.csv against intensity_table for its own GPU, and against the judge's own count."""
    raw = submission.read_file("table.csv")
    if raw is None:
        judge.fail("table.csv is missing.")
    try:
        rows = table.ordered(table.read_csv(raw))
        card = table.card_of(rows, lambda name: load_profile(COURSE, name))
    except table.TableError as error:
        judge.fail(f"table.csv: {error}.")
    again = []
    for dtype, causal, direction in table.SWEEP:
        options = {"dtype": dtype, "causal": causal, "direction": direction}
        again += table.run_table(submission, judge, table.SHAPES, card, options)
    table.judge_reproduced(judge, rows, again)
    table.judge_rows(judge, rows, table.GRID, card, "table.csv", table.FILE_RELATIVE)


@check("plot-data")
def test_plot_shows_the_rows_and_the_roofs(submission: Submission, judge: Judge) -> None:
    """The figure's own lines and points, for rows of two dtypes on a made-up card."""
    rng = judge.rng()
    card = cases.gpu(rng)
    shapes = cases.table_shapes(rng)
    asked = [
        Case(shape, algorithm, dtype)
        for dtype in ("bfloat16", "float32")
        for shape in shapes
        for algorithm in table.ALGORITHMS
    ]
    rows = [table.expected_row(case, card) for case in asked]
    told = submission.call("drawn", rows, card.wire(), module=costs.CALLS)
    try:
        drawing = plot.read_drawing(told)
    except plot.DrawingError as error:
        judge.contract(f"plot_roofline: {error}.")
    plot.judge_drawing(judge, drawing, rows, card)


@check("roofline-picture")
def test_picture_is_one_of_something(submission: Submission, judge: Judge) -> None:
    """A whole PNG of sufficient size that is neither blank nor noise."""
    plot.judge_picture(judge, "roofline.png", submission.read_file("roofline.png"))


@check("prediction")
def test_prediction_holds_on_this_gpu(submission: Submission, judge: Judge) -> None:
    """A large square that arithmetic limits, and a grouped decode that memory limits; the course's own SDPA call."""
    card = table.gpu_of(judge.profile)
    asked = [prediction.LARGE, prediction.DECODE]
    predicted_ms = prediction.predict_ms(submission, judge, card, asked)
    starter = COURSE / "starter" / judge.lab.id
    measured_ms = prediction.measure_sdpa(starter, judge.lab, submission, judge, asked)
    prediction.judge_prediction(judge, card, predicted_ms, measured_ms)


# kept-from-students-d6e4c4f153f371e0

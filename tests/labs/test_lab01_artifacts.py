"""lab01's judge of what is shipped: provided files agree with the course, tables, plots and runs are read warily."""

from __future__ import annotations

import csv
import io
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from grader.course import Course
from grader.judge.recorder import Judge, Verdict
from grader.judge.roofline import notebook, plot, prediction, table
from grader.judge.seeds import Seeds
from grader.modules import load_module
from grader.profiles import list_profiles, load_profile
from grader.report.model import Status

COURSE = Course(Path(__file__).resolve().parents[2])
LAB = COURSE.lab("lab01")
REFERENCE = COURSE.solution_dir(LAB.id) / "reference"


def judge_of(check_id: str) -> Judge:
    return Judge(
        check_id=check_id,
        lab=LAB,
        profile=load_profile(COURSE.root, "h200"),
        device="cpu",
        thresholds=LAB.checks[check_id].thresholds,
        seeds=Seeds(b"lab01", "secret"),
        test="unit",
    )


def provided(name: str) -> ModuleType:
    """A module of the student's folder."""
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        return load_module(REFERENCE / f"{name}.py", f"lab01_{name}")
    finally:
        sys.dont_write_bytecode = before


# The provided files


def test_provided_figures_equal_the_courses_profiles() -> None:
    told = tomllib.loads((REFERENCE / "profiles.toml").read_text(encoding="utf-8"))
    known = {name: load_profile(COURSE.root, name) for name in list_profiles(COURSE.root)}
    assert set(told) == {name for name, profile in known.items() if "bfloat16" in profile.peak_tflops}
    for name, figures in told.items():
        assert figures["bandwidth_gbs"] == known[name].bandwidth_gbs
        assert figures["peak_tflops"] == known[name].peak_tflops
        assert known[name].sources["peak_tflops"] in figures["source"]
        assert known[name].sources["bandwidth_gbs"] in figures["source"]


def test_provided_grid_equals_the_judges() -> None:
    course_types = provided("course_types")
    assert course_types.COLUMNS == table.COLUMNS
    assert tuple(vars(shape) for shape in course_types.SHAPES) == tuple(vars(shape) for shape in table.SHAPES)
    assert tuple(tuple(entry.values()) for entry in course_types.SWEEP) == table.SWEEP


@pytest.mark.parametrize("sizes", [(1, 4, 3, 1, 1, 1), (0, 1, 1, 1, 1, 1), (1, 1, 1, 1, -5, 1)])
def test_provided_shape_that_cannot_be_is_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least 1|multiple of kv_heads"):
        provided("course_types").Shape(*sizes)


# The table

H200 = table.gpu_of(load_profile(COURSE.root, "h200"))


def csv_of(change: Callable[[list[list[str]]], None] = lambda rows: None) -> bytes:
    rows = [list(table.COLUMNS)]
    for case in table.GRID:
        row = table.expected_row(case, H200)
        rows.append([str(row[name]) for name in table.COLUMNS])
    change(rows)
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def test_read_csv_of_the_grid_gives_its_rows_and_card() -> None:
    rows = table.ordered(list(reversed(table.read_csv(csv_of()))))
    assert [row["head_dim"] for row in rows] == [case.shape.head_dim for case in table.GRID]
    assert table.card_of(rows, lambda name: load_profile(COURSE.root, name)) == H200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0].reverse(), "first line"),
        (lambda rows: rows.pop(5), "63 rows"),
        (lambda rows: rows.append(rows[3]), "more than 64"),
        (lambda rows: rows.__setitem__(5, rows[4]), "is missing"),
        (lambda rows: rows[4].__setitem__(0, "a100-80gb"), "2 GPUs"),
        (lambda rows: rows[4].__setitem__(11, "nan"), "positive number"),
        (lambda rows: rows[4].__setitem__(12, "-1"), "positive number"),
        (lambda rows: rows[4].__setitem__(13, "=cmd()"), "positive number"),
        (lambda rows: rows[4].pop(), "lacks time_us"),
        (lambda rows: [row.__setitem__(0, "no-such-card") for row in rows[1:]], "isn't a GPU"),
        (lambda rows: [row.__setitem__(0, "t4") for row in rows[1:]], "no bfloat16"),
    ],
)
def test_read_csv_of_a_broken_file_names_the_fault(change: Callable[[list[list[str]]], None], message: str) -> None:
    with pytest.raises(table.TableError, match=message):
        table.card_of(table.ordered(table.read_csv(csv_of(change))), lambda name: load_profile(COURSE.root, name))


def test_judge_rows_accepts_the_exact_table_and_six_digits() -> None:
    judge = judge_of("table-numbers")
    rounded = table.ordered(
        table.read_csv(csv_of(lambda rows: [row.__setitem__(13, f"{float(row[13]):.6g}") for row in rows[1:]]))
    )
    table.judge_rows(judge, rounded, table.GRID, H200, "table", table.FILE_RELATIVE)
    with pytest.raises(Verdict, match="intensity"):
        table.judge_rows(judge, rounded, table.GRID, H200, "table", table.CODE_RELATIVE)


@pytest.mark.parametrize(
    ("column", "change", "diagnosis"),
    [
        ("intensity", lambda row: 1 / row["intensity"], "intensity-inverted"),
        ("time_us", lambda row: row["flops"] / H200.peak_tflops[row["dtype"]] / 1e6, "time-without-memory"),
        ("time_us", lambda row: row["bytes"] / H200.bandwidth_gbs / 1e3, "time-without-compute"),
        ("flops", lambda row: row["flops"] / 2, "mac-counted-once"),
        ("bytes", lambda row: row["bytes"] * 1.001, ""),
    ],
)
def test_judge_rows_of_a_wrong_column_names_the_mistake(
    column: str, change: Callable[[table.Row], float], diagnosis: str
) -> None:
    rows = [row | {column: change(row)} for row in (table.expected_row(case, H200) for case in table.GRID)]
    with pytest.raises(Verdict, match=column) as caught:
        table.judge_rows(judge_of("table-numbers"), rows, table.GRID, H200, "table", table.CODE_RELATIVE)
    found = caught.value.diagnosis
    assert (found.id if found else "") == diagnosis


# The plot

X = np.geomspace(1e-2, 1e5, 400)


def drawing(*lines: tuple[np.ndarray, np.ndarray], points: np.ndarray | None = None) -> plot.Drawing:
    """Roofs of H200's bfloat16 and float32, or `lines` instead, and the points of the first rows."""
    roofs = [
        (x, np.minimum(H200.peak_tflops[d], x * H200.bandwidth_gbs / 1e3))
        for d in ("bfloat16", "float32")
        for x in (np.array([X[0], H200.ridge(d), X[-1]]),)
    ]
    rows = plot_rows()
    shown = np.array([[row["intensity"], row["attainable_tflops"]] for row in rows]).T if points is None else points
    return plot.Drawing(("log", "log"), ("FLOP/byte", "TFLOP/s"), list(lines) or roofs, shown)


def plot_rows() -> list[table.Row]:
    return [table.expected_row(case, H200) for case in table.GRID if case.direction == "forward"]


def test_judge_drawing_accepts_roofs_of_three_vertices_many_or_two_lines() -> None:
    slope = (X, X * H200.bandwidth_gbs / 1e3)
    ceilings = [(X[[0, -1]], np.full(2, H200.peak_tflops[d])) for d in ("bfloat16", "float32")]
    sampled = [(X, np.minimum(ceiling[1][0], slope[1])) for ceiling in ceilings]
    for lines in ([], [slope, *ceilings], sampled):
        plot.judge_drawing(judge_of("plot-data"), drawing(*lines), plot_rows(), H200)


GIB = 2**30 / 1e9


@pytest.mark.parametrize(
    ("lines", "diagnosis"),
    [
        ([(X, X * 4.8)], "plot-roof-unbounded"),
        ([(X, np.full(len(X), 989.0))], "plot-roof-flat"),
        ([(X, np.minimum(989.0, X * 4.8))], "plot-one-roof"),
        ([(X, np.minimum(67.0, X * 4.8 * GIB)), (X, np.minimum(989.0, X * 4.8 * GIB))], "plot-roof-misplaced"),
        ([(np.zeros(3), np.zeros(3))], "plot-roof-misplaced"),
        ([(X, np.full(len(X), np.nan))], "plot-roof-misplaced"),
    ],
)
def test_judge_drawing_of_wrong_roofs_names_the_fault(
    lines: list[tuple[np.ndarray, np.ndarray]], diagnosis: str
) -> None:
    with pytest.raises(Verdict, match="roof") as caught:
        plot.judge_drawing(judge_of("plot-data"), drawing(*lines), plot_rows(), H200)
    assert caught.value.diagnosis is not None
    assert caught.value.diagnosis.id == diagnosis


def test_judge_drawing_without_points_or_labels_fails() -> None:
    right = drawing()
    for points, diagnosis in (
        (np.empty((2, 0)), "plot-points-missing"),
        (right.points[:, 1:], "plot-points-missing"),
        (right.points * 1.1, "plot-points-missing"),
        (right.points[::-1], "plot-axes-swapped"),
    ):
        with pytest.raises(Verdict) as caught:
            plot.judge_drawing(judge_of("plot-data"), drawing(points=points), plot_rows(), H200)
        assert caught.value.diagnosis is not None
        assert caught.value.diagnosis.id == diagnosis
    blank = plot.Drawing(("log", "log"), ("", ""), right.lines, right.points)
    with pytest.raises(Verdict, match="labelled"):
        plot.judge_drawing(judge_of("plot-data"), blank, plot_rows(), H200)


@pytest.mark.parametrize(
    "told",
    [None, {}, {"lines": 3}, {"lines": [[[1], [2, 3]]], "points": [[], []], "xscale": "log", "yscale": "log"}],
)
def test_read_drawing_of_something_else_is_refused(told: object) -> None:
    with pytest.raises(plot.DrawingError, match="drawing"):
        plot.read_drawing(told)


# Prediction


@pytest.mark.parametrize(
    ("predicted", "measured", "status", "diagnosis"),
    [
        ((0.556, 0.224), (1.63, 0.259), None, ""),
        ((0.556, 0.224), (0.918, 0.249), None, ""),
        ((1.7, 0.224), (1.63, 0.259), Status.FAIL, "prediction-above-measured"),
        ((0.556, 0.9), (1.63, 0.259), Status.FAIL, "prediction-above-measured"),
        ((0.278, 0.224), (1.63, 0.259), Status.FAIL, "prediction-far-below"),
        ((0.556, 0.224), (9.0, 0.259), Status.NOISY, ""),
    ],
)
def test_judge_prediction_holds_it_between_bounds(
    predicted: tuple[float, float], measured: tuple[float, float], status: Status | None, diagnosis: str
) -> None:
    judge = judge_of("prediction")
    if status is None:
        prediction.judge_prediction(judge, H200, list(predicted), list(measured))
        return
    with pytest.raises(Verdict) as caught:
        prediction.judge_prediction(judge, H200, list(predicted), list(measured))
    assert caught.value.status is status
    assert (caught.value.diagnosis.id if caught.value.diagnosis else "") == diagnosis


def test_judge_prediction_on_a_card_faster_than_its_profile_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="faster"):
        prediction.judge_prediction(judge_of("prediction"), H200, [0.5, 0.2], [0.3, 0.3])


# The notebook's report


@pytest.mark.parametrize(
    ("error", "diagnosis"),
    [
        ("code cell 3: NameError: name 'rows' is not defined", "notebook-undefined-name"),
        ("code cell 1: FileNotFoundError: table.csv", "notebook-missing-file"),
        ("code cell 1: ValueError: no", ""),
    ],
)
def test_judge_run_of_a_notebook_that_stops_names_the_cause(error: str, diagnosis: str) -> None:
    with pytest.raises(Verdict, match="code cell") as caught:
        notebook.judge_run(judge_of("notebook-runs"), notebook.Run("kernel", error, 4, {}))
    assert (caught.value.diagnosis.id if caught.value.diagnosis else "") == diagnosis

"""lab01's judge: counts are right, every check's inputs tell known mistakes apart, artifacts are read warily."""

from __future__ import annotations

import csv
import importlib.util
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
from grader.judge.roofline import cases, machine, notebook, plot, prediction, table
from grader.judge.roofline.mistakes import BYTES, FLOPS, PAIRS, Mistake, explain, same
from grader.judge.roofline.model import EXACT, Case, Gpu, Shape
from grader.judge.seeds import Seeds
from grader.profiles import list_profiles, load_profile
from grader.report.model import Status

COURSE = Course(Path(__file__).resolve().parents[2])
LAB = COURSE.lab("lab01")
REFERENCE = COURSE.solution_dir(LAB.id) / "reference"
SEEDS = range(8)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([1, seed])


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
    spec = importlib.util.spec_from_file_location(f"lab01_{name}", REFERENCE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


# The count itself


@pytest.mark.parametrize(("q_len", "k_len"), [(q, k) for q in range(1, 8) for k in range(1, 8)])
def test_exact_pairs_equal_a_double_loop(q_len: int, k_len: int) -> None:
    case = Case(Shape(1, 1, 1, q_len, k_len, 1), causal=True)
    assert EXACT.pairs(case) == sum(j <= i + k_len - q_len for i in range(q_len) for j in range(k_len))


KERNELS = {
    ("standard", "forward"): (("QK", "S"), ("S", "P"), ("PV", "O")),
    ("standard", "backward"): (("PG", "v"), ("GV", "p"), ("Pp", "s"), ("sK", "q"), ("sQ", "k")),
    ("flash", "forward"): (("QKV", "OL"),),
    ("flash", "backward"): (("QKVOGL", "qkv"),),
}
"""(reads, writes) of each kernel of the handout: G is dO, small letters are gradients, L the log-sum-exp."""


@pytest.mark.parametrize("seed", SEEDS)
def test_exact_bytes_equal_the_handouts_tables(seed: int) -> None:
    for case in [*cases.widths(rng(seed)), *cases.backward(rng(seed)), *cases.single_query(rng(seed))]:
        b, heads, kv_heads, q_len, k_len, head_dim = case.shape.sizes()
        width = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}[case.dtype]
        sizes = dict.fromkeys("QOGq", b * heads * q_len * head_dim * width)
        sizes |= dict.fromkeys("KVkv", b * kv_heads * k_len * head_dim * width)
        sizes |= dict.fromkeys("SPsp", b * heads * q_len * k_len * width) | {"L": b * heads * q_len * 4}
        kernels = KERNELS[case.algorithm, case.direction]
        assert EXACT.bytes(case) == sum(sizes[name] for kernel in kernels for name in "".join(kernel))


def test_exact_flops_of_a_backward_are_five_halves_of_the_forward() -> None:
    shape = Shape(2, 4, 2, 30, 50, 64)
    forward, backward = (EXACT.flops(Case(shape, causal=True, direction=d)) for d in ("forward", "backward"))
    assert forward == 4 * 2 * 4 * 64 * sum(range(21, 51))
    assert backward == 2.5 * forward


# Inputs tell mistakes apart


def _pair_cases(generator: np.random.Generator) -> list[Case]:
    return [Case(Shape(1, 1, 1, q, k, 1), causal=causal) for q, k, causal in cases.pair_lengths(generator)]


PAIR_IDS = {mistake.id for mistake in PAIRS}
WIDTH_IDS = {"bytes-in-elements", "dtype-width-ignored", "float8-two-bytes", "bits-for-bytes", "lse-in-working-dtype"}
STORED_IDS = {"p-round-trip-forgotten", "matrix-never-stored", "matrix-written-only", "lse-in-standard"}
BACKWARD_IDS = {mistake.id for mistake in BYTES if mistake.id.startswith("backward")}
CLAIMS: list[tuple[str, Callable[[np.random.Generator], list[Case]], tuple[Mistake, ...], set[str]]] = [
    ("forward-flops", cases.public_forward, FLOPS, {"mac-counted-once", "causal-ignored"}),
    (
        "forward-bytes",
        cases.public_bytes,
        BYTES,
        {"bytes-in-elements", "lse-forgotten", "lse-in-working-dtype", *STORED_IDS},
    ),
    ("visible-pairs", _pair_cases, PAIRS, PAIR_IDS),
    ("visible-pairs", cases.pairs, FLOPS, PAIR_IDS),
    (
        "backward-flops",
        cases.backward,
        FLOPS,
        {
            "backward-twice",
            "backward-as-forward",
            "backward-with-forward",
            "flops-by-kv-heads",
            "mac-counted-once",
            "one-product-forgotten",
        },
    ),
    ("backward-bytes", cases.backward, BYTES, {*BACKWARD_IDS, "lse-forgotten", "kv-per-query-head"}),
    ("dtype-widths", cases.widths, BYTES, {*WIDTH_IDS, *BACKWARD_IDS, "lse-forgotten"}),
    ("masked-bytes", cases.masked_forward, BYTES, {"matrix-masked", *STORED_IDS}),
    ("grouped-decode", cases.grouped_decode, BYTES, {"kv-per-query-head", "lse-forgotten"}),
    ("grouped-decode", cases.grouped_decode, FLOPS, {"flops-by-kv-heads"}),
    ("single-query", cases.single_query, BYTES, {"single-query-special", *STORED_IDS}),
    ("single-query", cases.single_query, FLOPS, {"single-query-special", "empty-rows-negative"}),
]


def _right(known: tuple[Mistake, ...]) -> Callable[[Case], float]:
    return {id(FLOPS): EXACT.flops, id(BYTES): EXACT.bytes}.get(id(known), EXACT.pairs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0])
def test_inputs_of_a_check_show_each_claimed_mistake_and_name_it(
    claim: tuple[str, Callable[[np.random.Generator], list[Case]], tuple[Mistake, ...], set[str]], seed: int
) -> None:
    _, draw, known, ids = claim
    asked, right = draw(rng(seed)), _right(known)
    assert all(right(case) > 0 for case in asked)  # so that zeros are wrong everywhere
    assert ids <= {mistake.id for mistake in known}
    for mistake in known:
        if mistake.id not in ids:
            continue
        counts = [mistake.count(case) for case in asked]
        if all(same(count, right(case)) for count, case in zip(counts, asked, strict=True)):
            # Two forms of one mistake: widths of 2 for all dtypes can't show where every dtype has two bytes.
            assert sum(other.id == mistake.id for other in known) > 1
            continue
        found = explain(known, asked, counts, right)
        assert found is not None
        assert found.id == mistake.id


def test_every_known_mistake_is_claimed_by_a_check() -> None:
    claimed = set().union(*(ids for *_, ids in CLAIMS))
    assert {mistake.id for mistake in (*FLOPS, *BYTES)} == claimed


def test_explain_of_right_counts_names_nothing() -> None:
    asked = cases.pairs(rng(0))
    assert explain(FLOPS, asked, [EXACT.flops(case) for case in asked], EXACT.flops) is None
    assert explain(FLOPS, asked, [7.0 * EXACT.flops(case) for case in asked], EXACT.flops) is None


@pytest.mark.parametrize("seed", range(30))
def test_decode_intensity_lies_just_below_the_group(seed: int) -> None:
    least = LAB.checks["grouped-decode"].thresholds["min_ratio"]
    for case in cases.grouped_decode(rng(seed)):
        if case.algorithm == "flash":
            group = case.shape.q_heads / case.shape.kv_heads
            assert least <= EXACT.flops(case) / EXACT.bytes(case) / group <= 1


# The machine


def _works(seed: int) -> tuple[Gpu, list[machine.Work]]:
    generator = rng(seed)
    card = cases.gpu(generator)
    return card, cases.roof_costs(generator, card)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("slips", "right"),
    [
        (machine.RIDGES, machine.right_ridge),
        (machine.RATES, machine.right_rate),
        (machine.BOUNDS, machine.right_bound),
    ],
    ids=["ridge", "rate", "bound"],
)
def test_inputs_of_the_roofline_show_each_slip_and_name_it(
    slips: tuple[machine.Slip, ...], right: Callable[[Gpu, machine.Work], float | str], seed: int
) -> None:
    card, works = _works(seed)
    for slip in slips:
        if slip.id == "bound-at-the-ridge":
            continue
        got = [slip.value(card, work) for work in works]
        found = machine.explain(slips, card, works, got, right)
        assert found is not None, slip
        assert found.id == slip.id


@pytest.mark.parametrize("seed", range(30))
def test_costs_at_the_ridge_tell_less_from_less_or_equal(seed: int) -> None:
    generator = rng(seed)
    card = cases.ridge_gpu(generator)
    works = cases.at_the_ridge(generator, card)
    wanted = ["memory", "compute", "compute"] * len(card.peak_tflops)
    assert [machine.right_bound(card, work) for work in works] == wanted
    by_times = [flops / (card.peak_tflops[d] * 1e12) < moved / (card.bandwidth_gbs * 1e9) for flops, moved, d in works]
    assert by_times == [bound == "memory" for bound in wanted]
    slip = next(slip for slip in machine.BOUNDS if slip.id == "bound-at-the-ridge")
    assert [slip.value(card, work) for work in works] == ["memory", "memory", "compute"] * len(card.peak_tflops)


@pytest.mark.parametrize("seed", range(50))
def test_made_up_cards_bind_prefill_and_decode_as_the_handout_says(seed: int) -> None:
    card = cases.gpu(rng(seed))
    asked = [Case(shape, algorithm) for shape in (cases.PREFILL, cases.DECODE) for algorithm in table.ALGORITHMS]
    bounds = [card.bound(EXACT.flops(case) / EXACT.bytes(case), case.dtype) for case in asked]
    assert bounds == ["memory", "compute", "memory", "memory"]


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

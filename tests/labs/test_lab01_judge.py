"""lab01's judge: counts are right, and every check's inputs tell known mistakes apart and from the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from grader.course import Course
from grader.judge.roofline import cases, machine, table
from grader.judge.roofline.mistakes import BYTES, FLOPS, PAIRS, Mistake, explain, same
from grader.judge.roofline.model import EXACT, Case, Gpu, Shape

COURSE = Course(Path(__file__).resolve().parents[2])
LAB = COURSE.lab("lab01")
SEEDS = range(8)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([1, seed])


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

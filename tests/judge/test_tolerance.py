"""Right kernels of every kind pass; wrong ones don't."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from grader.judge import attention, honest
from grader.judge.compare import absolute_error, misplaced, sizes
from grader.judge.families import FAMILIES
from grader.judge.oracle import RowView
from grader.judge.precision import round_to
from grader.judge.tolerance import TILINGS, emulate, tensor_bounds

SHAPES = (
    {"q_len": 113, "k_len": 203, "head_dim": 64, "causal": True},
    {"q_len": 1, "k_len": 77, "head_dim": 64},
    {"q_len": 1, "k_len": 1, "head_dim": 32},
    {"q_len": 150, "k_len": 90, "head_dim": 32, "causal": True},
    {"q_len": 64, "k_len": 250, "head_dim": 80, "window": (40, 10)},
    {"q_len": 60, "k_len": 60, "head_dim": 96, "scale": 0.5},
)
DTYPES = ("float16", "bfloat16", "float32")


PARTS = 3
"""By default each family and dtype meets one in three of the recipes, others for each; all meet all in the slow run."""


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_right_kernel_of_any_kind_passes(family: str, dtype: str, whole: bool) -> None:
    first = (list(FAMILIES).index(family) + DTYPES.index(dtype)) % PARTS
    recipes = honest.RECIPES if whole else honest.RECIPES[first::PARTS]
    rng = np.random.default_rng(zlib.crc32(f"{family} {dtype}".encode()))
    for shape in SHAPES:
        case = attention.case(rng, family=family, kv_heads=1, dtype=dtype, **shape)  # type: ignore[arg-type]
        bounds = attention.bounds_of(case)
        for recipe in recipes:
            breaches = bounds.breaches(*honest.compute(bounds.view, recipe, rng))
            assert not breaches, f"{recipe.name} on {shape}: {breaches[0]}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: tiling.name)
def test_emulate_each_tiling_is_within_its_own_bounds(tiling: object, dtype: str) -> None:
    case = attention.case(np.random.default_rng(7), q_len=70, k_len=100, dtype=dtype, causal=True)
    bounds = attention.bounds_of(case)
    assert not bounds.breaches(*emulate(bounds.view, tiling))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spoil", ["scaled", "noise", "nan", "inf", "row", "column", "zeros"])
def test_bounds_spoiled_output_fails(spoil: str, dtype: str) -> None:
    rng = np.random.default_rng(8)
    bounds = attention.bounds_of(attention.case(rng, q_len=70, k_len=100, dtype=dtype))
    o, lse = bounds.o.copy(), bounds.lse
    if spoil == "scaled":
        o *= 1.0 + 8.0 * bounds.o_bounds.allowed.max / bounds.o_bounds.peak
    elif spoil == "noise":
        o += rng.standard_normal(o.shape) * 2.0 * bounds.o_bounds.allowed.mean
    elif spoil in ("nan", "inf"):
        o[0, 3, 5] = np.nan if spoil == "nan" else np.inf
    elif spoil == "row":
        o[1, 40] += 1.1 * bounds.o_bounds.allowed.row_rms
    elif spoil == "column":
        o[..., -1] = 0.0
    else:
        o[:] = 0.0
    assert bounds.breaches(o, lse)


def test_bounds_each_rule_can_bind_and_is_named() -> None:
    bounds = attention.bounds_of(attention.case(np.random.default_rng(9), q_len=70, k_len=100))
    allowed = bounds.o_bounds.allowed
    one = np.zeros(bounds.o.shape)
    one[0, 0, 0] = 1.01 * allowed.max
    assert [breach.rule for breach in bounds.breaches(bounds.o + one, bounds.lse)] == ["max"]
    row = np.zeros(bounds.o.shape)
    row[0, 0] = 1.01 * allowed.row_rms
    assert [breach.rule for breach in bounds.breaches(bounds.o + row, bounds.lse)] == ["row rms"]
    everywhere = np.full(bounds.o.shape, 1.01 * allowed.mean)
    assert [breach.rule for breach in bounds.breaches(bounds.o + everywhere, bounds.lse)] == ["mean"]
    shifted = bounds.lse + 1.01 * bounds.lse_allowed
    assert [(breach.tensor, breach.rule) for breach in bounds.breaches(bounds.o, shifted)] == [("LSE", "max")]


def test_lse_pattern_of_infinities_must_be_the_oracles() -> None:
    case = attention.case(np.random.default_rng(10), q_len=40, k_len=20, causal=True)
    bounds = attention.bounds_of(case)
    for value in (np.nan, 0.0, np.inf, -1e30):
        lse = np.where(np.isneginf(bounds.lse), value, bounds.lse)
        assert [breach.rule for breach in bounds.breaches(bounds.o, lse)] == ["non-finite"]


def test_bounds_sampled_rows_judge_like_the_whole() -> None:
    case = attention.case(np.random.default_rng(11), batch=2, q_heads=4, q_len=300, k_len=256, causal=True)
    view = RowView.sample(case, np.random.default_rng(12))
    bounds = attention.bounds_of(case, view)
    o, lse = emulate(view, TILINGS[1])
    assert not bounds.breaches(o, lse)
    o[3, 2] += 0.1
    assert bounds.breaches(o, lse)


def test_absolute_error_infinities_and_nan() -> None:
    actual = np.array([1.0, -np.inf, np.nan, np.inf])
    expected = np.array([1.5, -np.inf, 0.0, 1.0])
    np.testing.assert_array_equal(absolute_error(actual, expected), [0.5, 0.0, np.inf, np.inf])
    np.testing.assert_array_equal(misplaced(actual, expected), [False, False, True, True])
    assert misplaced(np.array([np.nan]), np.array([np.nan])).all()


def test_sizes_takes_the_worst_row() -> None:
    error = np.array([[3.0, 4.0], [0.0, 1.0]])
    found = sizes(error)
    assert (found.max, found.mean) == (4.0, 2.0)
    assert found.row_rms == pytest.approx(np.sqrt(12.5))


def test_tensor_bounds_of_a_gradient_use_the_same_rules() -> None:
    expected = np.random.default_rng(14).standard_normal((3, 8, 16))
    rounded = [round_to(expected, "bfloat16")]
    bounds = tensor_bounds("dQ", "bfloat16", expected, rounded)
    assert not bounds.breaches(rounded[0], expected)
    assert bounds.breaches(expected * 1.05, expected)[0].tensor == "dQ"

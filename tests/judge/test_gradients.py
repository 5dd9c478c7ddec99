"""The gradient oracle against finite differences; right backward kernels pass, wrong ones don't."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from grader.judge import attention, gradients, oracle
from grader.judge.precision import round_to
from grader.judge.tolerance import Tiling

OPTIONS = {"batch": 2, "q_heads": 4, "kv_heads": 2, "q_len": 5, "k_len": 7, "head_dim": 4}


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "q_len": 9}, {"window": (2, 1)}, {"scale": 0.7}], ids=str
)
def test_gradients_equal_finite_differences(options: dict[str, object]) -> None:
    rng = np.random.default_rng(0)
    case = attention.case(rng, **{**OPTIONS, **options})  # type: ignore[arg-type]
    grad_o = rng.standard_normal(case.q.shape)
    found = gradients.gradients(case, grad_o)
    step = 1e-5
    for name, exact in (("q", found.dq), ("k", found.dk), ("v", found.dv)):
        values = getattr(case, name)
        for place in [(0, 0, 1, 2), (1, 1, 4, 3), (1, 0, 3, 0)]:
            sums = []
            for sign in (1.0, -1.0):
                moved = values.copy()
                moved[place] += sign * step
                sums.append(float((oracle.forward(replace(case, **{name: moved}))[0] * grad_o).sum()))
            assert exact[place] == pytest.approx((sums[0] - sums[1]) / (2 * step), abs=1e-8)


def test_gradients_fully_masked_rows_are_zero_and_scores_gradient_sums_to_zero() -> None:
    rng = np.random.default_rng(1)
    case = attention.case(rng, **{**OPTIONS, "q_len": 12, "causal": True})  # type: ignore[arg-type]
    found = gradients.gradients(case, rng.standard_normal(case.q.shape))
    assert not found.dq[:, :, :5].any()
    assert np.isfinite(found.dk).all()


CASES = (
    {"q_len": 70, "k_len": 100, "causal": True, "kv_heads": 1},
    {"q_len": 100, "k_len": 60, "causal": True, "family": "peaked"},
    {"q_len": 64, "k_len": 64, "family": "far-below"},
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("options", CASES, ids=["grouped", "peaked", "far-below"])
def test_gradient_bounds_right_kernel_of_another_tile_passes(options: dict[str, object], dtype: str) -> None:
    rng = np.random.default_rng(2)
    case = attention.case(rng, dtype=dtype, **options)  # type: ignore[arg-type]
    grad_o = round_to(rng.standard_normal(case.q.shape), dtype)
    bounds = gradients.gradient_bounds(case, grad_o)
    for tiling in (Tiling("32", 32), Tiling("256", 256), Tiling("32, Q scaled", 32, scaled_q="scale")):
        assert not bounds.breaches(gradients.emulate_gradients(case, grad_o, tiling))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("spoil", "tensor"),
    [
        ("scale", "dQ"),
        ("scale", "dK"),
        ("group", "dK"),
        ("group", "dV"),
        ("delta", "dQ"),
        ("nan", "dV"),
        ("zero", "dK"),
    ],
)
def test_gradient_bounds_wrong_kernel_fails(spoil: str, tensor: str, dtype: str) -> None:
    rng = np.random.default_rng(3)
    case = attention.case(rng, dtype=dtype, q_heads=4, kv_heads=2, q_len=70, k_len=100, causal=True)
    grad_o = round_to(rng.standard_normal(case.q.shape), dtype)
    bounds = gradients.gradient_bounds(case, grad_o)
    wrong = {name: values.copy() for name, values in bounds.exact.named().items()}
    if spoil == "scale":
        wrong[tensor] /= case.softmax_scale
    elif spoil == "group":
        one = grad_o.copy()
        one[:, 1::2] = 0.0
        wrong[tensor] = gradients.gradients(case, one).named()[tensor]
    elif spoil == "delta":
        wrong[tensor] = gradients.gradients(replace(case, v=case.v + 0.1), grad_o).named()[tensor] * 1.05
    elif spoil == "nan":
        wrong[tensor][0, 0, 0, 0] = np.nan
    else:
        wrong[tensor][:] = 0.0
    breaches = bounds.breaches(gradients.Gradients(*wrong.values()))
    assert {breach.tensor for breach in breaches} == {tensor}
    assert bounds.ratio(tensor, wrong[tensor]) > 1


def test_output_and_lse_are_rounded_as_stored() -> None:
    case = attention.case(np.random.default_rng(4), dtype="bfloat16")
    o, lse = gradients.output_and_lse(case)
    np.testing.assert_array_equal(o, round_to(o, "bfloat16"))
    np.testing.assert_array_equal(lse, lse.astype(np.float32))

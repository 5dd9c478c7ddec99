"""What each input family promises."""

from __future__ import annotations

import numpy as np
import pytest

from grader.errors import CourseError
from grader.judge import families, layouts
from grader.judge.families import FAMILIES, AttentionShape, draw
from grader.judge.precision import round_mantissa, round_to

SHAPE = AttentionShape(batch=1, q_heads=4, kv_heads=2, q_len=17, k_len=60, head_dim=64)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_draw_any_family_is_finite_representable_and_fresh(family: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    first, second = draw(family, rng, SHAPE, dtype), draw(family, rng, SHAPE, dtype)
    for values, shape in ((first.q, SHAPE.q), (first.k, SHAPE.kv), (first.v, SHAPE.kv)):
        assert values.shape == shape
        assert values.dtype == np.float64
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(values, round_to(values, dtype))
    assert not np.array_equal(first.q, second.q)


def _scores(family: str, dtype: str = "float16") -> np.ndarray:
    drawn = draw(family, np.random.default_rng(1), SHAPE, dtype)
    return np.einsum("bhid,bhjd->bhij", drawn.q, drawn.k.repeat(2, axis=1))


@pytest.mark.parametrize(
    ("family", "centre"),
    [("far-below", -200), ("far-below-60", -450), ("far-below-700", -61250), ("far-above", 200), ("far-above-60", 450)],
)
def test_shifted_families_move_the_scores_and_keep_their_spread(family: str, centre: float) -> None:
    scores = _scores(family) / 8.0
    assert np.median(scores) == pytest.approx(centre, rel=0.12)
    assert 0.4 < scores.std() < 2.0


def test_fp16_overflow_scores_leave_half_precision_before_scaling() -> None:
    assert (_scores("fp16-overflow") > np.finfo(np.float16).max).all()


def test_rising_and_falling_move_the_running_maximum_in_opposite_directions() -> None:
    rising, falling = _scores("rising"), _scores("falling")
    assert (rising[..., -15:].max(axis=-1) > rising[..., :15].max(axis=-1)).all()
    assert (falling[..., -15:].max(axis=-1) < falling[..., :15].max(axis=-1)).all()


def test_outliers_small_draw_still_holds_one() -> None:
    one = AttentionShape(1, 1, 1, 1, 2, 8)
    drawn = [draw("outliers", np.random.default_rng(seed), one, "float32") for seed in range(40)]
    assert max(np.abs(d.q).max() for d in drawn) > 10


def test_draw_unknown_family_suggests_the_nearest() -> None:
    with pytest.raises(CourseError, match="Did you mean far-below"):
        draw("far-belov", np.random.default_rng(0), SHAPE, "float16")


def test_shape_uneven_groups_are_refused() -> None:
    with pytest.raises(CourseError, match="multiple of kv_heads"):
        families.AttentionShape(1, 5, 2, 4, 4, 8)


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_layout_reread_at_its_own_strides_gives_the_values(name: str) -> None:
    shape = (2, 3, 5, 8)
    values = layouts.share_broadcast(np.random.default_rng(0).standard_normal(shape), name)
    layout = layouts.LAYOUTS[name]
    strides = layout.strides(shape)
    np.testing.assert_array_equal(layouts.reread(values, name, strides, layout.offset), values)


def test_layout_reread_outside_of_storage_gives_nan() -> None:
    values = np.ones((1, 1, 4, 8))
    assert np.isnan(layouts.reread(values, "contiguous", (32, 32, 16, 1), 0)).any()


def test_layout_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(CourseError, match="Did you mean transposed"):
        layouts.resolve("transpose")


def test_round_mantissa_ten_bits_is_tf32() -> None:
    value = np.array([1.0 + 2.0**-10 + 2.0**-12, 1.0 + 2.0**-11 + 2.0**-20])
    np.testing.assert_array_equal(round_mantissa(value, 10), [1.0 + 2.0**-10, 1.0 + 2.0**-10])
    np.testing.assert_array_equal(round_mantissa(value, 10, truncate=True), [1.0 + 2.0**-10, 1.0])

"""lab09's FP8 judge: the format is exact, right answers of several makes pass, each known mistake shows by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_judges import diagnosis_of, judge_of

from grader.course import Course
from grader.judge.hopper import codes, e4m3, fp8_attention, rotation, scales
from grader.judge.hopper.fp8_attention import Case, Recipe
from grader.judge.recorder import Verdict
from grader.report.model import Status

COURSE = Course(Path(__file__).resolve().parents[2])
LAB = COURSE.lab("lab09_fa3_probe")


judge = partial(judge_of, LAB)
diagnosis = partial(diagnosis_of, LAB)


def corners() -> np.ndarray:
    middles = (e4m3.POSITIVE[:-1] + e4m3.POSITIVE[1:]) / 2
    above = (e4m3.POSITIVE[:-1] + 3 * e4m3.POSITIVE[1:]) / 4
    positive = np.concatenate([e4m3.POSITIVE, middles, above, [2.0**-10, 1e-30, 449, 465, 1e30, np.inf]])
    return np.concatenate([positive, -positive, [np.nan]]).astype(np.float32)


# The format


def test_values_are_those_of_the_formats_definition() -> None:
    for code in range(0x7F):
        exponent, mantissa = code >> 3, code & 7
        value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        assert e4m3.VALUES[code] == value
        assert e4m3.VALUES[code + 0x80] == -value
    assert np.isnan(e4m3.VALUES[list(e4m3.NAN_CODES)]).all()
    assert e4m3.POSITIVE[-1] == e4m3.LARGEST
    assert e4m3.POSITIVE[1] == 2.0**-9


def test_encode_takes_the_nearest_value_and_the_even_one_of_two() -> None:
    for low in range(126):
        here, above = float(e4m3.POSITIVE[low]), float(e4m3.POSITIVE[low + 1])
        middle = (here + above) / 2
        x = np.array([here, np.nextafter(np.float32(middle), np.float32(0)), middle, above], np.float32)
        even = low if low % 2 == 0 else low + 1
        assert e4m3.encode(x).tolist() == [low, low, even, low + 1]
        assert e4m3.encode(-x).tolist() == [low | 0x80, low | 0x80, even | 0x80, (low + 1) | 0x80]
    assert e4m3.encode(np.array([448, 464, 480, 1e30, np.inf], np.float32)).tolist() == [0x7E] * 5


RULES = {
    "fp8-half-away": e4m3.half_away,
    "fp8-half-down": e4m3.half_down,
    "fp8-truncated": e4m3.truncated,
    "fp8-not-saturated": e4m3.unsaturated,
    "fp8-saturates-elsewhere": lambda x: e4m3.limited_to(x, 240),
    "fp8-subnormals-flushed": e4m3.flushed,
    "fp8-e5m2": e4m3.in_e5m2,
    "fp8-sign-lost": lambda x: e4m3.encode(np.abs(x)),
    "": np.zeros_like,
}


@pytest.mark.parametrize("name", RULES)
def test_codes_by_another_rule_are_refused_by_name(name: str) -> None:
    x = corners()
    wrong = RULES[name](x).astype(np.uint8)
    assert diagnosis("fp8-corners", lambda j: codes.judge_codes(j, x, 1.0, wrong, "codes")) == name


def test_codes_that_were_rounded_twice_are_named() -> None:
    x = (((e4m3.POSITIVE[8:-1] + e4m3.POSITIVE[9:]) / 2).astype(np.float64) * (1 - 2.0**-14)).astype(np.float32)
    run = lambda j: codes.judge_codes(j, x, 1.0, e4m3.twice(x), "codes")  # noqa: E731
    assert diagnosis("fp8-corners", run) == "fp8-rounded-twice"


@pytest.mark.parametrize("route", [0, 1, 2])
def test_codes_of_every_rightful_quotient_pass(route: int) -> None:
    x = np.random.default_rng(0).standard_normal((400, 50)).astype(np.float32)
    scale = 0.0371
    codes.judge_codes(judge("fp8-quantise"), x, scale, codes.right_codes(x, scale)[route], "codes")


def test_a_result_of_another_kind_breaks_the_contract() -> None:
    x = np.ones((2, 3), np.float32)
    for result in (x, np.zeros((3, 2), np.uint8), [0] * 6, None):
        with pytest.raises(Verdict) as caught:
            codes.judge_codes(judge("fp8-quantise"), x, 1.0, result, "codes")
        assert caught.value.status is Status.CONTRACT


def test_decoding_mistakes_are_named() -> None:
    every = np.arange(256, dtype=np.uint8)
    right = e4m3.decode(every) * np.float32(0.5)
    codes.judge_values(judge("fp8-quantise"), every, 0.5, right, "values")
    made = {
        "fp8-scale-ignored": e4m3.decode(every),
        "fp8-scale-inverted": e4m3.decode(every) * np.float32(2),
        "fp8-nan-decoded": np.where(np.isnan(right), np.where(every < 128, 240, -240), right).astype(np.float32),
    }
    for name, values in made.items():
        assert diagnosis("fp8-quantise", lambda j, v=values: codes.judge_values(j, every, 0.5, v, "v")) == name


# Scales


def blocks() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((2, 3, 50, 32)) * rng.uniform(0.1, 10, (2, 3, 50, 1))).astype(np.float32)
    return x, scales.scale_of(scales.block_amax(x, 16))


def quantised(x: np.ndarray, per_block: np.ndarray, block: int = 16) -> tuple[np.ndarray, np.ndarray]:
    return e4m3.encode(x / scales.spread(per_block, x.shape[-2], block)), per_block


def test_block_scales_pass_and_others_are_named() -> None:
    x, right = blocks()
    scales.judge_per_block(judge("fp8-blocks"), x, 16, quantised(x, right), "blocks")
    amax = scales.block_amax(x, 16)
    tail = right.copy()
    tail[..., -1] = tail[..., -2]
    made = {
        "fp8-scale-of-tensor": np.broadcast_to(scales.scale_of(np.abs(x).max()), right.shape),
        "fp8-scale-of-one-row": scales.scale_of(np.abs(x).max(axis=-1)[..., ::16]),
        "fp8-scale-over-heads": np.broadcast_to(scales.scale_of(amax.reshape(-1, 4).max(axis=0)), right.shape),
        "fp8-tail-scale": tail,
        "fp8-scale-240": (amax / 240).astype(np.float32),
        "fp8-scale-inverted": (448 / amax).astype(np.float32),
        "fp8-scale-is-amax": amax.astype(np.float32),
        "fp8-scale-power-of-two": (2.0 ** np.ceil(np.log2(amax / 448))).astype(np.float32),
    }
    for name, wrong in made.items():
        given = quantised(x, np.ascontiguousarray(wrong))
        assert diagnosis("fp8-blocks", lambda j, g=given: scales.judge_per_block(j, x, 16, g, "blocks")) == name


def test_a_block_without_numbers_has_the_scale_one() -> None:
    assert scales.scale_of(np.array([0.0, 1e-44, 448.0, 6e-36])).tolist() == [1, 1, 1, np.float32(6e-36 / 448)]
    x = np.zeros((4, 8), np.float32)
    codes_of_zero = np.zeros((4, 8), np.uint8)
    scales.judge_per_tensor(judge("fp8-corners"), x, (codes_of_zero, 1.0), "zeros")
    assert diagnosis("fp8-corners", lambda j: scales.judge_per_tensor(j, x, (codes_of_zero, 0.0), "zeros")) == (
        "fp8-scale-zero"
    )


@pytest.mark.parametrize("scale", [0.5, np.float32(0.5), np.array(0.5, np.float32)])
def test_a_tensors_scale_may_be_any_kind_of_number(scale: Any) -> None:
    x = np.array([[224.0, -3.0]], np.float32)
    scales.judge_per_tensor(judge("fp8-quantise"), x, (e4m3.encode(x / np.float32(0.5)), scale), "tensor")


# Rotation


def test_the_rotation_is_orthogonal_and_spreads_an_outlier() -> None:
    for d in (1, 2, 64, 256):
        matrix = rotation.rotated(np.eye(d), np.random.default_rng(d).choice([-1.0, 1.0], d))
        assert np.allclose(matrix @ matrix.T, np.eye(d), atol=1e-12)
        assert np.allclose(np.abs(matrix), 1 / np.sqrt(d))


def test_rotations_of_other_kinds_are_named() -> None:
    rng = np.random.default_rng(5)
    x, signs = rng.standard_normal((32, 64)).astype(np.float32), rng.choice(np.array([-1, 1], np.float32), 64)
    right = rotation.rotated(x, signs).astype(np.float32)
    rotation.judge_rotation(judge("fp8-rotation"), x, signs, right, "rotation")
    named = set()
    for mistake in rotation.rotation_mistakes(x, signs):
        for (wrong,) in mistake.results():
            given = wrong.astype(np.float32)
            run = lambda j, g=given: rotation.judge_rotation(j, x, signs, g, "rotation")  # noqa: E731
            assert diagnosis("fp8-rotation", run) == mistake.id
            named.add(mistake.id)
    assert len(named) == 7
    assert diagnosis("fp8-rotation", lambda j: rotation.judge_rotation(j, x, signs, right * 0, "rotation")) == ""


# Attention


def some_case(block: int | None, turn: bool, scale: float | None = None, seed: int = 7) -> Case:
    rng = np.random.default_rng(seed)
    size = np.repeat([1.0, 2.0, 0.4, 1.5, 0.8], 64)[:, None]
    q, k, v = (
        (fp8_attention.paper_rows(rng, rows, 64, 0.002) * size[:rows]).astype(np.float32) for rows in (96, 300, 300)
    )
    return Case(q, k, v, block, rng.choice(np.array([-1, 1], np.float32), 64) if turn else None, scale)


SETTINGS = [(None, False, None), (32, False, None), (None, True, None), (64, True, None), (48, True, 0.2)]


@pytest.mark.parametrize(("block", "turn", "scale"), SETTINGS)
def test_attention_by_either_maximum_passes(block: int | None, turn: bool, scale: float | None) -> None:
    case = some_case(block, turn, scale)
    for recipe in (Recipe(), Recipe(whole_rows=False)):
        fp8_attention.judge_recipe(judge("fp8-order"), case, fp8_attention.emulate(case, recipe), "attention")


@pytest.mark.parametrize(("block", "turn", "scale"), SETTINGS)
def test_attention_that_leaves_something_out_is_far_from_right_and_unlike_the_others(
    block: int | None, turn: bool, scale: float | None
) -> None:
    case = some_case(block, turn, scale)
    right = fp8_attention.right_ones(case)
    noise = fp8_attention.rms(right[0] - fp8_attention.exact(case))
    allowed = LAB.checks["fp8-order"].thresholds["distance"] * noise
    made = list(fp8_attention.mistakes(case))
    for place, (name, _, wrong) in enumerate(made):
        if name not in ("p-scale", "sum-of-codes"):  # where no weight dominates they may be near; see below
            assert min(fp8_attention.rms(wrong - one) for one in right) > 2 * allowed, name
        assert not any(np.array_equal(wrong, other) for _, _, other in made[:place]), name


def test_attention_that_leaves_something_out_is_named() -> None:
    case = some_case(64, True)
    made = {name: wrong for name, _, wrong in fp8_attention.mistakes(case)}
    for name in ("rotation-one-sided", "blocks-left-out", "v-not-quantised"):
        run = lambda j, w=made[name]: fp8_attention.judge_recipe(j, case, w, "attention")  # noqa: E731
        assert diagnosis("fp8-order", run) == name
    nonsense = np.full_like(made["p-only"], np.nan)
    assert diagnosis("fp8-order", lambda j: fp8_attention.judge_recipe(j, case, nonsense, "attention")) == ""


@pytest.mark.parametrize("recipe", [Recipe(p_scale=1.0), Recipe(sum_of_codes=True)])
def test_small_mistakes_of_p_show_in_one_of_the_cases(recipe: Recipe) -> None:
    case = some_case(None, turn=False)
    wrong = fp8_attention.emulate(case, recipe)
    named = diagnosis("fp8-order", lambda j: fp8_attention.judge_recipe(j, case, wrong, "attention"))
    assert named == ("sum-of-codes" if recipe.sum_of_codes else "p-scale")


def test_attention_in_float32_stays_far_within_the_allowance() -> None:
    """Inputs that differ by float32's own rounding move the output by much less than what is allowed."""
    case = some_case(64, True)
    perturbed = replace(case, k=(case.k * np.float32(1 + 2e-7)).astype(np.float32))
    right = fp8_attention.right_ones(case)
    noise = fp8_attention.rms(right[0] - fp8_attention.exact(case))
    moved = min(fp8_attention.rms(fp8_attention.emulate(perturbed, Recipe()) - one) for one in right)
    assert moved < 0.5 * LAB.checks["fp8-order"].thresholds["distance"] * noise


def paper_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    q, k, v = (fp8_attention.paper_rows(rng, rows, 128) for rows in (256, 2048, 2048))
    return Case(q, k, v, 128, rng.choice(np.array([-1, 1], np.float32), 128))


def test_errors_have_the_papers_order_and_impostors_are_refused() -> None:
    cases = [paper_case(seed) for seed in (1, 2)]
    bare = [replace(case, block=None, signs=None) for case in cases]
    outputs = {
        "baseline": [fp8_attention.emulate(case, Recipe()) for case in bare],
        "fa3": [fp8_attention.emulate(case, Recipe()) for case in cases],
    }
    asked = judge("fp8-order")
    fp8_attention.judge_order(asked, cases, outputs)
    assert 1.2e-3 < float(str(asked.measured["rmse_fa3"])) < 0.7 * float(str(asked.measured["rmse_baseline"]))
    truths = [fp8_attention.exact(case).astype(np.float32) for case in cases]
    impostors = {
        "attention-not-fp8": {"baseline": truths, "fa3": truths},
        "attention-not-attention": {name: [0 * o for o in truths] for name in outputs},
        "fp8-order": {**outputs, "fa3": outputs["baseline"]},
    }
    for name, given in impostors.items():
        assert diagnosis("fp8-order", lambda j, g=given: fp8_attention.judge_order(j, cases, g)) == name

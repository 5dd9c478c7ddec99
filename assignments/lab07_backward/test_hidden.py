"""Hidden checks of lab07."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from grader.judge import Judge, Submission, attention, check, speed
from grader.judge.backward import judging
from grader.judge.backward.artifacts import judge_discerning, judge_seeded, judge_truth
from grader.judge.backward.checks import (
    judge_linear,
    judge_memoryless,
    judge_quotients,
    judge_row_sums,
    judge_skipped,
    require_equal,
    with_constant_column,
)
from grader.judge.backward.codegen import backward_launch, judge_backward_codegen
from grader.judge.backward.rare_specimens import RARE
from grader.judge.backward.specimens import FORWARD, GRADIENTS, RIGHT
from grader.judge.backward.trial import judge_kills, shapes, try_harness
from grader.judge.codegen import forward_launch, judge_all_parts
from grader.profiles import load_profile
from grader.report.model import Diagnosis

COURSE = Path(__file__).resolve().parents[2]
CARDS = ("a10", "rtx3090", "l4", "h100-sxm")
RUNS = 20
LONG = speed.AttentionShape(1, 16, 16, 4096, 4096, 128, "bfloat16")
TIMED_SHAPES = (
    LONG,
    speed.AttentionShape(4, 16, 16, 2048, 2048, 128, "bfloat16", causal=True),
    speed.AttentionShape(4, 16, 16, 2048, 2048, 64, "float16"),
)


def _backward(submission: Submission, judge: Judge, label: str = "", **options: object) -> None:
    """Draw a problem, run its backward, judge it."""
    asked = judging.problem(judge.rng(), **options)  # type: ignore[arg-type]
    judging.judge_gradients(judge, asked, judging.run_backward(submission, asked), label=label)


@check("upstream-kinds")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("upstream", ["normal", "ones", "large"])
def test_gradients_for_every_kind_of_upstream(
    submission: Submission, judge: Judge, upstream: str, causal: bool
) -> None:
    """dO random, all ones behind strides of 0, and 64 times as large."""
    _backward(submission, judge, upstream=upstream, causal=causal, q_len=60, k_len=90, head_dim=64)


@check("ragged-lengths")
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_lengths_with_groups(submission: Submission, judge: Judge, causal: bool) -> None:
    """113 queries, 203 keys, four query heads on two kv heads, with and without a mask; two batch entries."""
    _backward(submission, judge, batch=2, q_heads=2, kv_heads=1, q_len=113, k_len=203, head_dim=32, causal=causal)


@check("mask-alignment")
@pytest.mark.parametrize(("q_len", "k_len"), [(70, 150), (150, 70), (1, 90)])
def test_causal_mask_is_aligned_bottom_right(submission: Submission, judge: Judge, q_len: int, k_len: int) -> None:
    """Fewer queries than keys, more, and one."""
    _backward(submission, judge, q_len=q_len, k_len=k_len, head_dim=64, causal=True)


@check("masked-rows")
@pytest.mark.parametrize(("q_len", "k_len", "upstream"), [(140, 60, "large"), (100, 1, "normal"), (70, 33, "ones")])
def test_rows_that_see_no_key(submission: Submission, judge: Judge, q_len: int, k_len: int, upstream: str) -> None:
    """Whole tiles of rows without a key, and a tile in which only some have one. Their LSE is -inf."""
    _backward(submission, judge, upstream=upstream, q_len=q_len, k_len=k_len, head_dim=32, causal=True)


@check("grouped-heads")
@pytest.mark.parametrize(("q_heads", "kv_heads", "batch"), [(7, 1, 1), (6, 3, 2), (4, 2, 1)])
def test_dk_and_dv_are_sums_over_the_group(
    submission: Submission, judge: Judge, q_heads: int, kv_heads: int, batch: int
) -> None:
    """Groups of 7 and 2, one kv head and several, batch 1 and 2."""
    _backward(submission, judge, batch=batch, q_heads=q_heads, kv_heads=kv_heads, q_len=40, k_len=50, head_dim=32)


@check("grouped-heads")
def test_more_heads_than_a_card_has_sms(submission: Submission, judge: Judge) -> None:
    """328 heads under a causal mask: a grid that is capped at one or two programs an SM leaves heads unwritten."""
    asked = judging.problem(judge.rng(), batch=8, q_heads=41, q_len=20, k_len=33, head_dim=32, causal=True)
    heads = asked.case.batch * asked.case.q_heads
    judge_all_parts(judge, submission, forward_launch(judge, asked.case, judging.FORWARD), parts=heads)
    judge_all_parts(judge, submission, backward_launch(judge, asked), parts=heads)


@check("low-lse")
@pytest.mark.parametrize(
    ("family", "scale"), [("far-below", 0.0625), ("far-below-60", None), ("far-above", None), ("peaked", None)]
)
def test_rows_with_a_far_lse(submission: Submission, judge: Judge, family: str, scale: float | None) -> None:
    """An LSE near -100, near -450, near 200, and scores spread widely; key lengths that no tile divides."""
    _backward(submission, judge, family=family, scale=scale, q_len=60, k_len=107, head_dim=64)


@check("row-sums")
@pytest.mark.parametrize(("upstream", "causal"), [("normal", False), ("large", True)])
def test_rows_of_ds_add_up_to_zero(submission: Submission, judge: Judge, upstream: str, causal: bool) -> None:
    """K has a column of ones, so dQ's is the row sum of dS."""
    drawn = judging.problem(judge.rng(), upstream=upstream, causal=causal, q_len=70, k_len=120, head_dim=64)  # type: ignore[arg-type]
    asked = with_constant_column(drawn)
    found = judging.run_backward(submission, asked)
    judge_row_sums(judge, asked, found)
    judging.judge_gradients(judge, asked, found)


@check("linearity")
def test_gradients_scale_with_the_upstream(submission: Submission, judge: Judge) -> None:
    """dO times 16 and times 1/4, in bfloat16, whose exponent has room for both."""
    asked = judging.problem(judge.rng(), dtype="bfloat16", q_len=60, k_len=80, head_dim=64, causal=True)
    once = judging.run_backward(submission, asked)
    judging.judge_gradients(judge, asked, once)
    for factor in (16.0, 0.25):
        scaled = judging.run_backward(submission, replace(asked, grad_o=asked.grad_o * factor))
        judge_linear(judge, asked.case, once, scaled, factor)


@check("second-call")
def test_calls_do_not_add_up(submission: Submission, judge: Judge) -> None:
    """Equal inputs at fresh addresses, other inputs in between; memory is poisoned before every call."""
    rng = judge.rng()
    judge_memoryless(
        judge,
        lambda: judging.problem(rng, q_heads=2, kv_heads=1, q_len=40, k_len=70, head_dim=32, causal=True),
        lambda asked: judging.run_backward(submission, asked),
        calls=5,
    )


@check("scale")
def test_explicit_scales(submission: Submission, judge: Judge) -> None:
    """Scale 0.5 at the shape where the default was used before, then another, then the default again."""
    for label, scale in (("default scale", None), ("scale 0.5", 0.5), ("scale 0.08", 0.08), ("default again", None)):
        _backward(submission, judge, label, q_len=40, k_len=70, head_dim=64, scale=scale)


@check("scale")
@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scales_that_are_not_positive(submission: Submission, judge: Judge, scale: float) -> None:
    """Scale 0, which isn't None: dQ and dK are 0, dV isn't. A negative one turns the order of the scores round."""
    _backward(submission, judge, q_len=40, k_len=70, head_dim=64, scale=scale)


@check("float32")
@pytest.mark.parametrize(("family", "causal"), [("normal", True), ("peaked", False)])
def test_float32_is_held_to_float32(submission: Submission, judge: Judge, family: str, causal: bool) -> None:
    """The bounds are those of float32 arithmetic; then slopes of the float64 forward, which know no backward."""
    asked = judging.problem(judge.rng(), family=family, dtype="float32", q_len=60, k_len=75, head_dim=32, causal=causal)
    found = judging.run_backward(submission, asked)
    judging.judge_gradients(judge, asked, found)
    judge_quotients(judge, asked, found)


@check("bfloat16")
@pytest.mark.parametrize(
    "options",
    [
        {"q_len": 2048, "k_len": 37, "upstream": "ones"},
        {"q_len": 40, "k_len": 300, "family": "far-below"},
        {"q_len": 90, "k_len": 90, "causal": True},
    ],
    ids=["queries", "keys", "causal"],
)
def test_bfloat16_sums(submission: Submission, judge: Judge, options: dict[str, object]) -> None:
    """Sums of many terms of one sign, and of large terms that cancel: they are added up in float32."""
    _backward(submission, judge, dtype="bfloat16", q_heads=1, head_dim=32, **options)


@check("bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parts_of_a_group_that_cancel(submission: Submission, judge: Judge, dtype: str) -> None:
    """Two query heads' parts of dV are large and of opposite signs: they are added up in float32."""
    _backward(
        submission, judge, upstream="cancelling", family="near-equal", dtype=dtype, q_heads=2, kv_heads=1, q_len=96,
        k_len=40, head_dim=32,
    )  # fmt: skip


@check("strides")
def test_forward_and_autograd_read_strides(submission: Submission, judge: Judge) -> None:
    """The forward alone, and what autograd gives, for q, k and v that lie in memory each in its own way."""
    layout = ("transposed", "padded-rows", "seqlen-last")
    asked = judging.problem(judge.rng(), batch=2, q_len=40, k_len=60, head_dim=32, causal=True, layout=layout)
    grad_o, q, k, v, _, _ = asked.arguments(submission.device)
    result = submission.call(judging.FORWARD, q, k, v, **asked.options())
    o, lse = attention.check_forward(result, asked.case, submission.device, judging.FORWARD)
    attention.judge_forward(judge, asked.case, o, lse, label="forward")
    wanted = [replace(tensor, requires_grad=True) for tensor in (q, k, v)]
    found = submission.gradient_call(judging.DIFFERENTIABLE, *wanted, cotangents=[grad_o], **asked.options())
    gradients = judging.check_gradients(
        tuple(found.gradients.get(name) for name in "qkv"), asked.case, submission.device, judging.DIFFERENTIABLE
    )
    judging.judge_gradients(judge, asked, gradients, label="autograd")


@check("strides")
@pytest.mark.parametrize(
    ("layout", "grad_layout", "o_layout"),
    [
        (("contiguous", "padded-rows", "transposed"), "transposed", "contiguous"),
        (("transposed", "seqlen-last", "contiguous"), "contiguous", "transposed"),
        (("every-other-head", "transposed", "misaligned"), "seqlen-last", "padded-rows"),
        (("padded-rows", "seqlen-broadcast", "transposed"), "transposed", "contiguous"),
        (("contiguous", "transposed", "seqlen-broadcast"), "contiguous", "padded-rows"),
    ],
)
def test_each_tensor_has_its_own_strides(
    submission: Submission, judge: Judge, layout: tuple[str, str, str], grad_layout: str, o_layout: str
) -> None:
    """Transposed, padded, interleaved memory, a different one for dO, O, q, k and v."""
    # One key past whole tiles: where a row of a broadcast tensor stands for all, a length of 1 doesn't.
    _backward(
        submission, judge, batch=2, q_len=40, k_len=65 if "seqlen-broadcast" in layout else 60, head_dim=32,
        layout=layout, grad_layout=grad_layout, o_layout=o_layout,
    )  # fmt: skip


@check("small-shapes")
@pytest.mark.parametrize(
    ("q_len", "k_len", "head_dim"), [(50, 70, 32), (50, 40, 80), (33, 50, 96), (1, 77, 64), (50, 1, 64), (1, 1, 128)]
)
def test_head_dims_and_single_rows(submission: Submission, judge: Judge, q_len: int, k_len: int, head_dim: int) -> None:
    """A small head dimension and two that aren't powers of two; one query, one key, one of each."""
    _backward(submission, judge, q_len=q_len, k_len=k_len, head_dim=head_dim, causal=k_len > 1)


@check("masked-tiles")
def test_tiles_that_the_mask_hides_are_not_loaded(submission: Submission, judge: Judge) -> None:
    """One head, 512 queries and keys, head_dim 32: bytes loaded with a causal mask and without."""
    counted = []
    for causal in (True, False):
        asked = judging.problem(judge.rng(), q_heads=1, q_len=512, head_dim=32, causal=causal)
        traced = submission.traced_call(judging.BACKWARD, *asked.arguments("cpu"), interpreted=True, **asked.options())
        judging.judge_gradients(judge, asked, judging.check_gradients(traced.value, asked.case, "cpu"))
        counted.append(traced.traffic)
    judge_skipped(judge, asked.case, *counted)


@check("codegen-cards")
def test_code_for_cards(submission: Submission, judge: Judge) -> None:
    """head_dim 128 in bfloat16, 1024 queries and keys; cards of one capability run the same code."""
    case = attention.case(judge.rng(), q_heads=1, q_len=1024, head_dim=128, dtype="bfloat16")
    judge_backward_codegen(judge, submission, case, [load_profile(COURSE, name) for name in CARDS])


@check("harness-forward")
def test_harness_on_mistakes_of_the_forward(submission: Submission, judge: Judge) -> None:
    """Kernels whose O or LSE is wrong, among right ones."""
    rng = judge.rng()
    judge_kills(judge, submission, FORWARD, shapes(rng), rng)


@check("harness-gradients")
def test_harness_on_mistakes_of_the_gradients(submission: Submission, judge: Judge) -> None:
    """Kernels whose forward is right and whose gradients aren't, among right ones."""
    rng = judge.rng()
    judge_kills(judge, submission, GRADIENTS, shapes(rng), rng)


@check("harness-rare")
def test_harness_on_mistakes_that_show_rarely(submission: Submission, judge: Judge) -> None:
    """Kernels that are wrong on some shapes, values, layouts or calls only, among right ones."""
    rng = judge.rng()
    judge_kills(judge, submission, RARE, shapes(rng), rng)


@check("harness-truth")
def test_harness_reports_what_it_saw(submission: Submission, judge: Judge) -> None:
    """A right kernel and a slightly broken one: the errors told are those of the answers. Then the seed."""
    rng = judge.rng()
    tables = shapes(rng)
    broken = next(specimen for specimen in GRADIENTS if specimen.id == "coarse-ds")
    first = try_harness(submission, RIGHT[1], tables, 21, rng)
    trials = [first, try_harness(submission, broken, tables, 22, rng)]
    judge_discerning(judge, *trials)
    for trial in trials:
        judge_truth(judge, trial.report, trial.calls)
    # Equal inputs for a shape whatever other shapes stand beside it, so that a part of a report can be run again.
    again = try_harness(submission, RIGHT[1], tables[::-1], 21, rng)
    judge_seeded(judge, first, again, try_harness(submission, RIGHT[1], tables[:1], 23, rng))


@check("twenty-runs")
def test_dk_and_dv_are_equal_over_twenty_runs(submission: Submission, judge: Judge) -> None:
    """2 batch entries, 6 query heads on 2 kv heads, 1024 queries and keys: hundreds of programs at once."""
    asked = judging.problem(judge.rng(), batch=2, q_heads=6, kv_heads=2, q_len=1024, head_dim=64, causal=True)
    arguments = asked.arguments(submission.device)
    first = None
    for number in range(1, RUNS + 1):
        result = submission.call(judging.BACKWARD, *arguments, **asked.options())
        found = judging.check_gradients(result, asked.case, submission.device)
        if first is None:
            first = found
            judging.judge_gradients(judge, asked, found)
        require_equal(
            judge,
            first,
            found,
            f"in run {number} of {RUNS} with equal inputs",
            Diagnosis(id="order-dependent", text="dK or dV is a sum whose order the grid decides, as with atomics."),
        )


@check("large-shapes")
@pytest.mark.parametrize(
    ("dtype", "q_len", "k_len", "head_dim", "causal"),
    [("float16", 1024, 1024, 128, True), ("bfloat16", 1000, 2500, 128, True), ("bfloat16", 3000, 600, 64, False)],
)
def test_large_shapes(
    submission: Submission, judge: Judge, dtype: str, q_len: int, k_len: int, head_dim: int, causal: bool
) -> None:
    """Two query heads on one kv head, thousands of terms in every sum."""
    _backward(
        submission, judge, dtype=dtype, q_heads=2, kv_heads=1, q_len=q_len, k_len=k_len, head_dim=head_dim,
        causal=causal,
    )  # fmt: skip


@check("speed-vs-sdpa")
def test_speed_against_sdpa_flash(submission: Submission, judge: Judge) -> None:
    """Ratio of times, interleaved, over shapes that take 0.3 ms or more: the gradients alone, of a call made before."""
    workloads = [_timed(judge, shape) for shape in TIMED_SHAPES]
    races = speed.against(judge, submission, workloads, baseline="sdpa_flash", operation="backward")
    speed.settle(judge, races, "SDPA flash's backward over yours")


@check("speed-roofline")
def test_fraction_of_the_roofline(submission: Submission, judge: Judge) -> None:
    """FLOPs of the backward over its time, over the profile's peak, at seqlen 4096 and head_dim 128."""
    speed.settle(judge, speed.alone(judge, submission, [_timed(judge, LONG)]), "of the roofline")


def _timed(judge: Judge, shape: speed.AttentionShape) -> speed.Workload:
    long = speed.long_enough(shape, judge.profile, "backward")
    return speed.attention(long, function=judging.DIFFERENTIABLE, mode="backward")


# kept-from-students-4aaa96217b3cfe75

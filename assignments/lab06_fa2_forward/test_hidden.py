"""Hidden checks of lab06."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grader.judge import Judge, Submission, attention, check, speed
from grader.judge.codegen import forward_launch, judge_all_parts, judge_forward_codegen
from grader.judge.fa2_traffic import judge_skipped_tiles
from grader.profiles import load_profile
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised

COURSE = Path(__file__).resolve().parents[2]
SMALL_CARDS = ("l4", "a10", "rtx3090")
TIMED = (
    speed.AttentionShape(4, 16, 16, 4096, 4096, 64, "bfloat16"),
    speed.AttentionShape(4, 16, 16, 4096, 4096, 128, "float16", causal=True),
    speed.AttentionShape(4, 32, 8, 4096, 4096, 128, "bfloat16"),
)
AT_THE_ROOFLINE = speed.AttentionShape(4, 16, 16, 4096, 4096, 128, "bfloat16")


def _forward(submission: Submission, judge: Judge, label: str = "", **options: object) -> None:
    """Draw a case, run it, judge it."""
    case = attention.case(judge.rng(), **options)  # type: ignore[arg-type]
    attention.judge_forward(judge, case, *attention.run_forward(submission, case), label=label)


@check("ragged-tails")
@pytest.mark.parametrize("causal", [False, True])
def test_ragged_lengths_with_groups(submission: Submission, judge: Judge, causal: bool) -> None:
    """113 queries, 203 keys, head_dim 128, four query heads on two kv heads, with and without a mask."""
    _forward(submission, judge, q_heads=4, kv_heads=2, q_len=113, k_len=203, head_dim=128, causal=causal)


@check("padded-keys")
@pytest.mark.parametrize(("family", "k_len"), [("k-zero", 203), ("k-zero", 65), ("far-below", 141)])
def test_padded_keys_weigh_nothing(submission: Submission, judge: Judge, family: str, k_len: int) -> None:
    """K = 0 and V near 1: a padded key in the row sum moves every value. Then scores far below the padding's 0."""
    _forward(submission, judge, family=family, q_len=40, k_len=k_len, head_dim=64)


@check("mask-alignment")
@pytest.mark.parametrize(("q_len", "k_len"), [(200, 256), (70, 190), (1, 150)])
def test_causal_mask_is_aligned_bottom_right(submission: Submission, judge: Judge, q_len: int, k_len: int) -> None:
    """Fewer queries than keys; V tells positions."""
    _forward(submission, judge, family="position", q_len=q_len, k_len=k_len, head_dim=64, causal=True)


@check("mask-alignment")
def test_causal_mask_with_more_queries_than_keys(submission: Submission, judge: Judge) -> None:
    """The first rows see nothing, the last one all."""
    _forward(submission, judge, family="position", q_len=150, k_len=70, head_dim=64, causal=True)


@check("window")
@pytest.mark.parametrize(
    ("window", "causal", "q_len", "k_len"),
    [
        ((37, 0), False, 150, 150),
        ((20, 11), False, 90, 170),
        ((20, 100), False, 300, 300),
        ((50, -1), False, 120, 120),
        ((33, 5), True, 100, 140),
        ((30, 0), False, 1, 150),
    ],
)
def test_window_ends_are_exact(
    submission: Submission, judge: Judge, window: tuple[int, int], causal: bool, q_len: int, k_len: int
) -> None:
    """Both sides, one wider than a tile, one side, under a causal mask, and of a single row; V tells positions."""
    _forward(submission, judge, family="position", window=window, causal=causal, q_len=q_len, k_len=k_len, head_dim=64)


@check("masked-rows")
@pytest.mark.parametrize(("q_len", "k_len"), [(200, 60), (140, 1)])
def test_rows_that_see_no_key(submission: Submission, judge: Judge, q_len: int, k_len: int) -> None:
    """Whole tiles of rows without a key, and a tile in which only some rows have one: O = 0, LSE = -inf."""
    _forward(submission, judge, q_len=q_len, k_len=k_len, head_dim=64, causal=True)


@check("masked-rows")
def test_key_tiles_that_a_row_does_not_see(submission: Submission, judge: Judge) -> None:
    """A narrow window far from the first keys: for most rows whole runs (or splits) of keys are masked."""
    _forward(submission, judge, family="far-below", window=(9, 0), q_len=150, k_len=256, head_dim=64)


@check("grouped-heads")
@pytest.mark.parametrize(("q_heads", "kv_heads", "batch"), [(4, 2, 2), (7, 1, 1), (6, 3, 1)])
def test_every_query_head_reads_its_kv_head(
    submission: Submission, judge: Judge, q_heads: int, kv_heads: int, batch: int
) -> None:
    """Groups of 2 and 7, one kv head and several, batch 1 and 2."""
    _forward(submission, judge, batch=batch, q_heads=q_heads, kv_heads=kv_heads, q_len=40, k_len=50, head_dim=64)


@check("grouped-heads")
def test_more_heads_than_a_card_has_sms(submission: Submission, judge: Judge) -> None:
    """328 heads under a causal mask: a grid that is capped at one or two programs an SM leaves heads unwritten."""
    case = attention.case(judge.rng(), batch=8, q_heads=41, q_len=20, k_len=33, head_dim=32, causal=True)
    judge_all_parts(judge, submission, forward_launch(judge, case), parts=case.batch * case.q_heads)


@check("head-dims")
@pytest.mark.parametrize("head_dim", [32, 80, 96])
def test_head_dims(submission: Submission, judge: Judge, head_dim: int) -> None:
    """A small one and two that aren't powers of two."""
    _forward(submission, judge, q_len=70, k_len=90, head_dim=head_dim, causal=True)


@check("single-row")
@pytest.mark.parametrize(("q_len", "k_len", "causal"), [(1, 203, True), (77, 1, False), (1, 1, True)])
def test_single_query_and_single_key(
    submission: Submission, judge: Judge, q_len: int, k_len: int, causal: bool
) -> None:
    """One row against many keys, many rows against one key, one against one."""
    _forward(submission, judge, q_len=q_len, k_len=k_len, head_dim=64, causal=causal)


@check("single-row")
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(0, 40, 50), (2, 0, 50), (2, 40, 0)])
def test_nothing_to_do(submission: Submission, judge: Judge, batch: int, q_len: int, k_len: int) -> None:
    """No batch entry, no query, no key: results of the right shapes, and rows that see nothing."""
    case = attention.case(judge.rng(), batch=batch, q_len=q_len, k_len=k_len)
    attention.judge_empty(judge, case, *attention.run_forward(submission, case))


@check("strides")
@pytest.mark.parametrize(
    ("layout", "batch"),
    [
        (("transposed", "contiguous", "transposed"), 2),
        (("padded-rows", "transposed", "offset"), 2),
        (("contiguous", "seqlen-last", "every-other-head"), 1),
        (("misaligned", "head-broadcast", "padded-rows"), 1),
        (("transposed", "batch-broadcast", "seqlen-last"), 2),
        (("padded-rows", "seqlen-broadcast", "contiguous"), 1),
        (("contiguous", "transposed", "seqlen-broadcast"), 2),
    ],
)
def test_each_tensor_has_its_own_strides(
    submission: Submission, judge: Judge, layout: tuple[str, str, str], batch: int
) -> None:
    """Transposed, padded, offset, interleaved and broadcast memory, a different one for q, k and v."""
    # One key past whole tiles: where a row of a broadcast tensor stands for all, a length of 1 doesn't.
    k_len = 97 if "seqlen-broadcast" in layout else 70
    _forward(submission, judge, batch=batch, q_len=50, k_len=k_len, head_dim=64, layout=layout)


@check("low-scores")
@pytest.mark.parametrize("family", ["far-below-60", "far-below-700"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_far_below_zero(submission: Submission, judge: Judge, family: str, dtype: str) -> None:
    """Every score of a row is a few hundred, or tens of thousands, below zero."""
    _forward(submission, judge, family=family, dtype=dtype, q_len=60, k_len=150, head_dim=64)


@check("large-scores")
@pytest.mark.parametrize("family", ["fp16-overflow", "far-above-60", "peaked"])
def test_scores_beyond_float16(submission: Submission, judge: Judge, family: str) -> None:
    """Products of q and k that float16 can't hold, and scores spread over a wide range."""
    _forward(submission, judge, family=family, q_len=60, k_len=150, head_dim=64)


@check("scale")
def test_explicit_scale(submission: Submission, judge: Judge) -> None:
    """Scale 0.5 at the shape where the default was used before, then another, then the default again."""
    for label, scale in (("default scale", None), ("scale 0.5", 0.5), ("scale 0.08", 0.08), ("default again", None)):
        _forward(submission, judge, label, q_len=40, k_len=90, head_dim=64, scale=scale)


@check("scale")
@pytest.mark.parametrize(("scale", "causal"), [(0.0, True), (-0.5, False)])
def test_scales_that_are_not_positive(submission: Submission, judge: Judge, scale: float, causal: bool) -> None:
    """Scale 0 weighs all visible keys alike and isn't None; a negative one turns the order of the scores round."""
    _forward(submission, judge, family="peaked", q_len=40, k_len=90, head_dim=64, scale=scale, causal=causal)


@check("scale")
def test_default_scale_of_an_odd_head_dim(submission: Submission, judge: Judge) -> None:
    """1/sqrt(80), whatever the tile is padded to."""
    _forward(submission, judge, family="peaked", q_len=40, k_len=60, head_dim=80)


@check("bfloat16")
@pytest.mark.parametrize(("family", "causal"), [("normal", True), ("outliers", False)])
def test_bfloat16(submission: Submission, judge: Judge, family: str, causal: bool) -> None:
    """Ragged lengths, with and without a mask."""
    _forward(submission, judge, family=family, dtype="bfloat16", q_len=113, k_len=150, head_dim=128, causal=causal)


@check("bfloat16")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_partial_results_that_cancel(submission: Submission, judge: Judge, dtype: str) -> None:
    """One half of the keys against the other: partial results are large, their sum isn't, and float32 holds both."""
    _forward(submission, judge, family="cancelling", dtype=dtype, q_heads=1, q_len=24, k_len=512, head_dim=32)


@check("bfloat16")
def test_long_rows_of_nearly_equal_scores(submission: Submission, judge: Judge) -> None:
    """A row sum over thousands of keys: it must not saturate."""
    _forward(submission, judge, family="near-equal", dtype="float16", q_heads=1, q_len=16, k_len=4096, head_dim=32)


@check("float32")
@pytest.mark.parametrize(("family", "causal"), [("normal", True), ("peaked", False)])
def test_float32_is_held_to_float32(submission: Submission, judge: Judge, family: str, causal: bool) -> None:
    """The bounds are those of float32 arithmetic; TF32 is a thousand times coarser."""
    _forward(submission, judge, family=family, dtype="float32", q_len=70, k_len=113, head_dim=64, causal=causal)


@check("repeatable")
def test_tenth_call_equals_the_first(submission: Submission, judge: Judge) -> None:
    """Equal inputs at fresh addresses, other inputs in between; memory is poisoned before every call."""
    case = attention.case(judge.rng(), q_heads=1, q_len=40, k_len=70, head_dim=64, causal=True)
    first_o, first_lse = attention.run_forward(submission, case)
    attention.judge_forward(judge, case, first_o, first_lse, label="first call")
    for number in range(2, 10):
        other = attention.case(judge.rng(), q_heads=1, q_len=40, k_len=70, head_dim=64, causal=True)
        o, lse = attention.run_forward(submission, other)
        attention.judge_forward(judge, other, o, lse, label=f"call {number}, new values")
    o, lse = attention.run_forward(submission, case)
    for name, last, first in (("O", o, first_o), ("LSE", lse, first_lse)):
        if not np.array_equal(np.asarray(last.data, np.float64), np.asarray(first.data, np.float64)):
            judge.fail(
                f"The tenth call's {name} differs from the first one's for equal inputs.",
                diagnosis=Diagnosis(id="call-depends-on-history", text="Calls with equal inputs give different bits."),
            )


@check("masked-traffic")
@pytest.mark.parametrize(
    ("label", "q_len", "k_len", "causal", "window"),
    [
        ("causal square", 384, 384, True, None),
        ("more queries than keys", 384, 128, True, None),
        ("window", 384, 384, True, (40, 0)),
    ],
    ids=["square", "tall", "window"],
)
def test_masked_key_tiles_are_not_loaded(
    submission: Submission,
    judge: Judge,
    label: str,
    q_len: int,
    k_len: int,
    causal: bool,
    window: tuple[int, int] | None,
) -> None:
    """Three masks that hide whole key tiles; one head."""
    case = attention.case(judge.rng(), q_heads=1, q_len=q_len, k_len=k_len, head_dim=64, causal=causal, window=window)
    options = {"causal": causal, **({"window": window} if window else {})}
    traced = submission.traced_call(attention.FUNCTION, *attention.to_tensors(case), interpreted=True, **options)
    attention.judge_forward(judge, case, *attention.check_forward(traced.value, case, "cpu"))
    judge_skipped_tiles(judge, case, traced.traffic, label)


@check("codegen-small-cards")
def test_code_for_cards_with_99_kib(submission: Submission, judge: Judge) -> None:
    """head_dim 128, causal, 1024 queries and keys, for L4, A10 and RTX 3090 (the last two run the same code)."""
    case = attention.case(judge.rng(), q_len=1024, head_dim=128, causal=True)
    judge_forward_codegen(judge, submission, case, [load_profile(COURSE, name) for name in SMALL_CARDS])


@check("schedule-warps")
def test_warp_traffic(submission: Submission, judge: Judge) -> None:
    """Random tiles of both splits, in bytes."""
    rng = judge.rng()
    for _ in range(6):
        warps = int(rng.choice([1, 2, 4, 8]))
        block_m, block_n = (int(rng.choice([64, 128, 192])) for _ in range(2))
        head_dim, itemsize = int(rng.choice([32, 64, 80, 128])), int(rng.choice([2, 4]))
        q_tile, kv_tiles = block_m * head_dim * itemsize, 2 * block_n * head_dim * itemsize
        expected = {
            "split-k": warps * q_tile + kv_tiles + 2 * warps * block_m * (head_dim + 2) * 4,
            "split-q": q_tile + warps * kv_tiles,
        }
        for split, wanted in expected.items():
            got = submission.call("warp_traffic", block_m, block_n, head_dim, warps, itemsize, split, module="schedule")
            if type(got) is not int or got != wanted:
                judge.fail(f"warp_traffic of {split} is wrong for {warps} warps: count reads, and partials twice.")


@check("schedule-warps")
@pytest.mark.parametrize(("block_m", "block_n", "split"), [(128, 100, "split-k"), (100, 128, "split-q")])
def test_uneven_warp_split_is_refused(
    submission: Submission, judge: Judge, block_m: int, block_n: int, split: str
) -> None:
    """Eight warps don't divide 100 rows."""
    try:
        got = submission.call("warp_traffic", block_m, block_n, 64, 8, 2, split, module="schedule")
    except SubmissionRaised as raised:
        if raised.type_name == "ValueError":
            return
        raise
    judge.fail(f"warp_traffic returned {got!r} for a {split} that doesn't come out even; expected a ValueError.")


@check("grid-limit")
def test_more_heads_than_a_grid_axis(submission: Submission, judge: Judge) -> None:
    """70 000 batch entries of one head: axes y and z end at 65535."""
    _forward(submission, judge, batch=70_000, q_heads=1, q_len=2, k_len=2, head_dim=32)


@check("wide-offsets")
@pytest.mark.parametrize("wide", ["q", "k", "v"])
@pytest.mark.parametrize(("heads", "rows", "stride_bits"), [(9, 16, 28), (1, 129, 24)])
def test_offsets_beyond_int32(
    submission: Submission, judge: Judge, wide: str, heads: int, rows: int, stride_bits: int
) -> None:
    """One tensor laid out so that its last head, or its last row, begins 2^31 elements in: 4.3 GB by strides alone.

    Each stride fits an int32; only the product of index and stride doesn't.
    """
    case = attention.case(judge.rng(), q_heads=heads, q_len=rows, k_len=rows, head_dim=32)
    tensors = dict(zip("qkv", attention.to_tensors(case, submission.device), strict=True))
    step = 1 << stride_bits
    inner = (step, 32) if heads > 1 else (rows * step, step)
    tensors[wide] = replace(tensors[wide], strides=(heads * inner[0], *inner, 1))
    result = submission.call(attention.FUNCTION, *tensors.values(), causal=False)
    o, lse = attention.check_forward(result, case, submission.device)
    attention.judge_forward(judge, case, o, lse, label=f"wide {wide}")


def _timed(judge: Judge, shape: speed.AttentionShape) -> speed.Workload:
    return speed.attention(speed.long_enough(shape, judge.profile), function=attention.FUNCTION)


@check("speed-vs-sdpa")
def test_speed_against_sdpa_flash(submission: Submission, judge: Judge) -> None:
    """Ratio of times, interleaved, over head_dim 64 and 128, with and without a mask, plain and grouped heads."""
    workloads = [_timed(judge, shape) for shape in TIMED]
    races = speed.against(judge, submission, workloads, baseline="sdpa_flash")
    speed.settle(judge, races, "against SDPA flash")


@check("speed-roofline")
def test_fraction_of_the_roofline(submission: Submission, judge: Judge) -> None:
    """TFLOP/s at seqlen 4096, head_dim 128, over the profile's peak."""
    speed.settle(judge, speed.alone(judge, submission, [_timed(judge, AT_THE_ROOFLINE)]), "timed by itself")


# kept-from-students-215dad9da01e624a

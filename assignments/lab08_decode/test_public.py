"""Public checks of lab08."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.judge import Judge, Submission, check
from grader.judge.benchmark_table import await_card, cards_of, judge_plot
from grader.judge.codegen import judge_all_parts
from grader.judge.decode import appending, attending, cache, rotary
from grader.judge.decode.benchmark import judge_decode_benchmark
from grader.judge.decode.codegen import decode_launch, judge_decode_codegen
from grader.judge.decode.traffic import judge_decode_traffic
from grader.judge.kernel_work import DECODED, judge_kernel_work
from grader.profiles import list_profiles, load_profile

COURSE = Path(__file__).resolve().parents[2]


@check("rope-half-split")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rope_half_split(submission: Submission, judge: Judge, dtype: str) -> None:
    """Two sequences of five tokens at positions of no order; pairs are (i, i + 32)."""
    case = rotary.case(judge.rng(), dtype=dtype)
    rotary.judge_rope(judge, case, rotary.run_rope(submission, case))


@check("append-slot")
def test_append_in_the_middle_of_a_page(submission: Submission, judge: Judge) -> None:
    """Three sequences with 5, 21 and 42 tokens in pages of 16."""
    case = appending.case(judge.rng(), lens=(5, 21, 42))
    appending.judge_append(judge, submission, case)


@check("one-page")
def test_decode_over_one_page(submission: Submission, judge: Judge) -> None:
    """A full page of 64 tokens, two query heads on each of two kv heads, one split."""
    case = cache.case(judge.rng(), lens=(64,), page_size=64, spare=6, margin=2, idle=1)
    attending.judge_decode(judge, case, *attending.run_decode(submission, case))


@check("several-pages")
@pytest.mark.parametrize("family", ["normal", "rising"])
def test_decode_over_pages_that_lie_anywhere(submission: Submission, judge: Judge, family: str) -> None:
    """150, 37 and 96 tokens in pages of 16, in random order, one split."""
    case = cache.case(judge.rng(), lens=(150, 37, 96), family=family, margin=1, idle=1)
    attending.judge_decode(judge, case, *attending.run_decode(submission, case))


@check("float32")
def test_float32_is_held_to_float32(submission: Submission, judge: Judge) -> None:
    """37 and 50 tokens of float32; a product in TF32 is a thousand times coarser."""
    case = cache.case(judge.rng(), lens=(37, 50), dtype="float32")
    attending.judge_decode(judge, case, *attending.run_decode(submission, case))


@check("split-merge")
@pytest.mark.parametrize("splits", [2, 3, 4, 5, 7, None])
def test_splits_are_merged_by_their_lse(submission: Submission, judge: Judge, splits: int | None) -> None:
    """Scores climb, so that splits' weights differ; 128 keys, or nearly, for each; None leaves the number to you."""
    tokens = 128 * (splits or 4)
    lens = (tokens - 20, tokens - 90)
    case = cache.case(judge.rng(), lens=lens, page_size=32, family="rising", num_splits=splits, kv_heads=1)
    attending.judge_decode(judge, case, *attending.run_decode(submission, case), label=f"{splits} splits")


@check("split-merge")
def test_splits_of_more_heads_than_a_card_has_sms_are_merged(submission: Submission, judge: Judge) -> None:
    """328 query heads of 41 sequences, two splits: both launches cover all of them."""
    rng = judge.rng()
    lens = tuple(int(length) for length in rng.integers(129, 150, 41))
    case = cache.case(rng, lens=lens, q_heads=8, kv_heads=4, head_dim=32, num_splits=2)
    judge_all_parts(judge, submission, decode_launch(judge, case), parts=case.batch * case.q_heads)


@check("kernel-does-the-work")
@pytest.mark.parametrize("splits", [1, 2])
def test_output_comes_from_triton_kernels(submission: Submission, judge: Judge, splits: int) -> None:
    """What the launcher does is recorded: launches whose results are returned, and beside them only what it may do."""
    case = cache.case(judge.rng(), lens=DECODED, num_splits=splits)
    tensors, options = cache.to_tensors(case, submission.device), attending.options(case)
    value = judge_kernel_work(judge, submission, attending.FUNCTION, tensors, module=attending.MODULE, **options)
    attending.judge_decode(judge, case, *attending.check_decode(value, case, submission.device))


@check("decode-traffic")
@pytest.mark.parametrize(("splits", "lens", "kv_heads"), [(1, (330, 203), 2), (2, (400, 272), 1)])
def test_traffic_of_a_decode_step(
    submission: Submission, judge: Judge, splits: int, lens: tuple[int, ...], kv_heads: int
) -> None:
    """Four query heads a kv head, with and without splits: bytes counted in the interpreter.

    With one kv head a program that reads more keys than a split's takes those of another split.
    """
    case = cache.case(judge.rng(), lens=lens, q_heads=4 * kv_heads, kv_heads=kv_heads, num_splits=splits)
    tensors = cache.to_tensors(case)
    traced = submission.traced_call(
        attending.FUNCTION, *tensors, module=attending.MODULE, interpreted=True, **attending.options(case)
    )
    attending.judge_decode(judge, case, *attending.check_decode(traced.value, case, "cpu"))
    judge_decode_traffic(judge, case, traced.traffic)


@check("codegen-profile")
@pytest.mark.parametrize(("q_heads", "dtype"), [(8, "bfloat16"), (2, "float16")])
def test_code_for_this_profile(submission: Submission, judge: Judge, q_heads: int, dtype: str) -> None:
    """Four query heads a kv head, and one; compiled for the profile's card. One needs no tensor cores."""
    if judge.profile.sm is None:
        judge.skip(f"profile {judge.profile.name} is not a GPU's; choose one with --profile")
    case = cache.case(judge.rng(), lens=(1500, 900), q_heads=q_heads, head_dim=128, dtype=dtype, num_splits=4)
    judge_decode_codegen(judge, submission, case, [judge.profile])


@check("benchmark-table")
def test_benchmark_table_and_plot(submission: Submission, judge: Judge) -> None:
    """benchmark.csv and benchmark.png as shipped; nothing is run. Without the table's card its points are pending."""
    table, plot = submission.read_file("benchmark.csv"), submission.read_file("benchmark.png")
    if table is None and judge.device != "cuda":
        judge.skip("benchmark.csv isn't there, and making it needs an NVIDIA GPU")
    if table is None or plot is None:
        missing = "benchmark.csv" if table is None else "benchmark.png"
        judge.fail(f"{missing} isn't in the submission; `python benchmark.py` on a GPU writes it.")
    profiles = [load_profile(COURSE, name) for name in list_profiles(COURSE)]
    rows = judge_decode_benchmark(judge, table, profiles)
    judge_plot(judge, "benchmark.png", plot)
    await_card(judge, cards_of(rows))

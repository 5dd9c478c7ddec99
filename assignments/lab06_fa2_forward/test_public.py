"""Public checks of lab06."""

from __future__ import annotations

from pathlib import Path

import pytest

from grader.judge import Judge, Submission, attention, check
from grader.judge.answers import real_number
from grader.judge.benchmark_table import await_card, cards_of, judge_benchmark, judge_plot
from grader.judge.codegen import judge_forward_codegen
from grader.judge.fa2_traffic import judge_fa2_traffic
from grader.judge.kernel_work import FORWARD, judge_kernel_work
from grader.profiles import list_profiles, load_profile

COURSE = Path(__file__).resolve().parents[2]
BENCHED_KERNELS = ("fa1-order", "fa2", "sdpa-flash", "sdpa-cudnn")


@check("one-tile")
def test_one_tile_of_queries_and_keys(submission: Submission, judge: Judge) -> None:
    """16 queries, 16 keys, head_dim 64, two heads: no loop, no tail."""
    case = attention.case(judge.rng(), q_len=16, head_dim=64)
    attention.judge_forward(judge, case, *attention.run_forward(submission, case))


@check("several-tiles")
@pytest.mark.parametrize("family", ["rising", "falling", "normal"])
def test_several_key_tiles_are_rescaled(submission: Submission, judge: Judge, family: str) -> None:
    """256 keys whose scores climb, fall, or do neither: the row maximum moves in every tile, or in none."""
    case = attention.case(judge.rng(), family=family, q_len=64, k_len=256, head_dim=64)
    attention.judge_forward(judge, case, *attention.run_forward(submission, case))


@check("causal-square")
def test_causal_mask_on_a_square(submission: Submission, judge: Judge) -> None:
    """256 queries, 256 keys, V one-hot by position, so that O shows which keys were seen."""
    case = attention.case(judge.rng(), family="position", q_len=256, head_dim=64, causal=True)
    attention.judge_forward(judge, case, *attention.run_forward(submission, case))


@check("causal-aligned")
def test_causal_mask_with_fewer_queries_than_keys(submission: Submission, judge: Judge) -> None:
    """48 queries at the end of 80 keys: the last query sees the last key."""
    case = attention.case(judge.rng(), family="position", q_len=48, k_len=80, head_dim=64, causal=True)
    attention.judge_forward(judge, case, *attention.run_forward(submission, case))


@check("schedule-ctas")
def test_work_split_counts_ctas(submission: Submission, judge: Judge) -> None:
    """Random shapes, ragged and not, for both orders; another order is refused."""
    rng = judge.rng()
    for seq_len in (1, 128, 129, *(int(n) for n in rng.integers(1, 40000, 4))):
        batch, heads = int(rng.integers(1, 9)), int(rng.integers(1, 65))
        block_m = int(rng.choice([16, 64, 128, 192]))
        for order, expected in (("fa1", batch * heads), ("fa2", batch * heads * -(-seq_len // block_m))):
            got = submission.call("work_split", batch, heads, seq_len, block_m, order, module="schedule")
            _equal(judge, got, expected, f"work_split({batch}, {heads}, {seq_len}, {block_m}, {order!r})")


@check("schedule-ctas")
def test_waves_and_utilisation_of_this_profile(submission: Submission, judge: Judge) -> None:
    """CTA counts around the profile's whole waves, and none."""
    sms = judge.profile.sms or 108
    rng = judge.rng()
    for ctas in (0, 1, sms, sms + 1, 2 * sms, *(int(n) for n in rng.integers(1, 50 * sms, 3))):
        for ctas_per_sm in (1, 2):
            slots = sms * ctas_per_sm
            rounds = -(-ctas // slots)
            got = submission.call("waves", ctas, sms, ctas_per_sm, module="schedule")
            _equal(judge, got, rounds, f"waves({ctas}, {sms}, {ctas_per_sm})")
            busy = ctas / (rounds * slots) if ctas else 0.0
            call = f"sm_utilisation({ctas}, {sms}, {ctas_per_sm})"
            got = submission.call("sm_utilisation", ctas, sms, ctas_per_sm, module="schedule")
            share = real_number(judge, got, call)
            if not abs(share - busy) <= 1e-9:
                judge.fail(f"{call} is {share!r}, expected {busy:.6g}.")


@check("kernel-does-the-work")
def test_output_comes_from_a_triton_kernel(submission: Submission, judge: Judge) -> None:
    """What the launcher does is recorded: launches whose results are returned, and beside them only what it may do."""
    case = attention.case(judge.rng(), **FORWARD, head_dim=64)
    tensors = attention.to_tensors(case, submission.device)
    value = judge_kernel_work(judge, submission, attention.FUNCTION, tensors, causal=False)
    attention.judge_forward(judge, case, *attention.check_forward(value, case, submission.device))


@check("fa2-traffic")
@pytest.mark.parametrize(("q_len", "k_len", "head_dim"), [(256, 256, 64), (200, 136, 128), (32, 1200, 16)])
def test_traffic_equals_the_closed_form(
    submission: Submission, judge: Judge, q_len: int, k_len: int, head_dim: int
) -> None:
    """Without a mask, even and ragged, and few queries of many keys: loads and stores counted in the interpreter."""
    case = attention.case(judge.rng(), q_len=q_len, k_len=k_len, head_dim=head_dim)
    traced = submission.traced_call(attention.FUNCTION, *attention.to_tensors(case), interpreted=True, causal=False)
    attention.judge_forward(judge, case, *attention.check_forward(traced.value, case, "cpu"))
    judge_fa2_traffic(judge, case, traced.traffic)


@check("codegen-profile")
@pytest.mark.parametrize(("head_dim", "dtype", "causal"), [(128, "float16", True), (64, "bfloat16", False)])
def test_code_for_this_profile(submission: Submission, judge: Judge, head_dim: int, dtype: str, causal: bool) -> None:
    """The launches for 1024 queries and keys, compiled for the profile's card."""
    if judge.profile.sm is None:
        judge.skip(f"profile {judge.profile.name} is not a GPU's; choose one with --profile")
    case = attention.case(judge.rng(), q_len=1024, head_dim=head_dim, dtype=dtype, causal=causal)
    judge_forward_codegen(judge, submission, case, [judge.profile])


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
    rows = judge_benchmark(judge, table, BENCHED_KERNELS, profiles, "fa2")
    judge_plot(judge, "benchmark.png", plot)
    await_card(judge, cards_of(rows))


def _equal(judge: Judge, got: object, expected: int, call: str) -> None:
    if type(got) is not int or got != expected:
        judge.fail(f"{call} is {got!r}, expected {expected}.")

"""lab08's judges: each with answers that pass and with every known mistake; the inputs of its checks show them all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lab08_stand_in import COURSE, LAB, Failed, StandIn

from grader.judge import attention
from grader.judge.benchmark_table import ERRORS
from grader.judge.decode import attending, cache, diagnosis, timing
from grader.judge.decode.benchmark import DECODE, judge_decode_benchmark
from grader.judge.decode.traffic import judge_decode_traffic
from grader.judge.precision import round_to
from grader.judge.speed.model import Interval
from grader.profiles import list_profiles, load_profile
from grader.worker.traffic_model import LaunchRecord, TensorTraffic, Traffic

PROFILES = [load_profile(COURSE.root, name) for name in list_profiles(COURSE.root)]
Array = np.ndarray


def a_case(**options: Any) -> cache.DecodeCase:
    return cache.case(np.random.default_rng(7), **{"lens": (150, 37, 96), **options})


def exact(case: cache.DecodeCase) -> tuple[Array, Array]:
    """The right answer, O rounded to the working dtype."""
    o = np.zeros((case.batch, case.q_heads, case.head_dim))
    lse = np.full((case.batch, case.q_heads), -np.inf)
    for index, length in enumerate(case.lens):
        if length:
            row_o, row_lse = attention.exact(case.attention(index))
            o[index], lse[index] = row_o[0, :, 0], row_lse[0, :, 0]
    return round_to(o, case.dtype), lse


# The cases of the checks, and what each claims to show.

HARD = "rising"
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one-page": ({"lens": (64,), "page_size": 64, "spare": 6, "margin": 2, "idle": 1}, ("last-token-missed",)),
    "several-pages": (
        {"margin": 1, "idle": 1},
        (
            "table-ignored",
            "table-row-of-first",
            "table-off-by-one",
            "one-page-a-tile",
            "one-length-for-all",
            "last-token-missed",
            "q-of-first",
            "softmax-over-heads",
        ),
    ),
    "split-merge": (
        {"lens": (492, 422), "page_size": 32, "family": HARD, "num_splits": 4, "kv_heads": 1},
        (
            "split-merged-without-weights",
            "split-maxima-ignored",
            "split-weights-mixed-bases",
            "split-remainder-lost",
            "split-missing",
            "split-output-overwritten",
            "split-statistics-overwritten",
            "split-lse-not-merged",
            "split-outputs-not-normalised",
            "splits-overlap",
        ),
    ),
    "unused-nan": ({"lens": (37, 70, 48), "margin": 1, "poison": True}, ("unused-k-read", "unused-v-read")),
    "lengths": (
        {"lens": (0, 1, 15, 16, 17, 63, 64, 65), "num_splits": 2, "kv_heads": 1},
        ("unused-slot-attended", "last-page-missed", "empty-sequence-nan", "last-token-missed"),
    ),
    "shared-pages": (
        {"lens": (90, 70, 37, 90), "shared": 3},
        ("one-length-for-all", "unused-slot-attended", "table-row-of-first"),
    ),
    "page-sizes": ({"lens": (150, 97), "page_size": 64, "idle": 10}, ("page-size-assumed",)),
    "many-splits": (
        {"lens": (5, 40), "num_splits": 7, "kv_heads": 1, "q_heads": 2},
        ("empty-split-nan", "empty-split-weighed"),
    ),
    "many-splits-with-keys": ({"lens": (5000,), "num_splits": 40, "kv_heads": 1, "q_heads": 2}, ("first-splits-only",)),
    "hard-scores": (
        {"lens": (150, 199), "num_splits": 2, "family": "fp16-overflow"},
        ("split-max-not-subtracted",),
    ),
}
CLAIMS = [(check, mistake) for check, (_, ids) in CASES.items() for mistake in ids]


def case_of(check: str) -> cache.DecodeCase:
    options = dict(CASES[check][0])
    poison = options.pop("poison", False)
    case = a_case(**options)
    return cache.poisoned(case, k=True, v=True) if poison else case


def test_every_mistake_is_claimed_by_a_check() -> None:
    assert {mistake for _, mistake in CLAIMS} == {mistake.id for mistake in diagnosis.CATALOGUE}


@pytest.mark.parametrize("check", CASES)
def test_right_answer_passes(check: str) -> None:
    case = case_of(check)
    attending.judge_decode(StandIn(), case, *exact(case))


@pytest.mark.parametrize(("check", "mistake"), CLAIMS)
def test_inputs_show_the_mistake(check: str, mistake: str) -> None:
    """At least one flavour of the mistake breaks a bound; a tile larger than the context shows nothing."""
    case = case_of(check)
    found = next(m for m in diagnosis.CATALOGUE if m.id == mistake)
    assert found.shows(case)
    passed = diagnosis.surviving(case, mistake, attending.sequences_of(case, *exact(case)))
    assert passed < len(found.variants)


@pytest.mark.parametrize("check", ["several-pages", "split-merge", "shared-pages"])
def test_inputs_show_zeros_and_the_mean_of_v(check: str) -> None:
    case = case_of(check)
    for index in range(case.batch):
        ids = ("scale-missing", "gqa-tiled") if case.kv_heads > 1 else ("scale-missing",)
        attention.assert_inputs_kill(case.attention(index), ids)


@pytest.mark.parametrize(("check", "mistake"), CLAIMS)
def test_answer_of_the_mistake_gets_its_diagnosis(check: str, mistake: str) -> None:
    """The first flavour that shows, rounded as a kernel would."""
    case = case_of(check)
    if mistake.startswith("unused-") and mistake.endswith("-read"):
        case = cache.poisoned(a_case(lens=(37, 70, 48), margin=1), k="-k-" in mistake, v="-v-" in mistake)
    right = exact(case)
    sequences = attending.sequences_of(case, *right)
    found = next(m for m in diagnosis.CATALOGUE if m.id == mistake)
    for variant in found.variants:
        o, lse = right[0].copy(), right[1].copy()
        with np.errstate(all="ignore"):
            for index in range(case.batch):
                o[index], told = variant(case, index)
                lse[index] = lse[index] if told is None else told
        if any(s.breaches for s in attending.sequences_of(case, round_to(o, case.dtype), lse)):
            break
    else:
        pytest.fail("no flavour shows")
    assert not any(s.breaches for s in sequences)
    with pytest.raises(Failed) as failed:
        attending.judge_decode(StandIn(), case, round_to(o, case.dtype), lse)
    assert failed.value.diagnosis == mistake


@pytest.mark.parametrize(
    ("spoil", "diagnosis"),
    [
        (lambda o, lse: (o, lse / np.log(2.0)), "lse-base-2"),
        (lambda o, lse: (np.zeros_like(o), lse), "zeros"),
        (lambda o, lse: (o[..., ::-1], lse), ""),
    ],
    ids=["lse-base-2", "zeros", "nothing-known"],
)
def test_mistakes_within_a_sequence_are_named_by_the_forward_catalogue(spoil: Any, diagnosis: str) -> None:
    case = a_case()
    with pytest.raises(Failed) as failed:
        attending.judge_decode(StandIn(), case, *spoil(*exact(case)))
    assert failed.value.diagnosis == diagnosis


def test_empty_sequence_with_a_number_fails() -> None:
    case = a_case(lens=(0, 37))
    o, lse = exact(case)
    o[0, 0, 0] = 1.0
    with pytest.raises(Failed, match="the empty ones"):
        attending.judge_decode(StandIn(), case, o, lse)


def test_reordered_case_holds_the_same_tokens() -> None:
    case = a_case(order="ordered")
    moved = cache.reordered(case, np.random.default_rng(3))
    assert (moved.table != case.table).any()
    assert all((exact(case)[part] == exact(moved)[part]).all() for part in (0, 1))


def test_shared_pages_lie_in_both_rows_and_keep_the_first_sequence() -> None:
    case = a_case(lens=(90, 37), shared=3)
    assert (case.table[0, :3] == case.table[1, :3]).all()
    first, second = case.attention(0), case.attention(1)
    assert (first.k[0, :, :37] == second.k[0]).all()


def test_maximum_at_zero_is_not_taken_for_lost_keys() -> None:
    """Rows far below zero come out as zeros, which splits without a key give as well."""
    case = a_case(lens=(150, 199), num_splits=2, family="far-below-60")
    lse = np.full((case.batch, case.q_heads), -np.inf)
    with pytest.raises(Failed) as failed:
        attending.judge_decode(StandIn(), case, np.zeros((case.batch, case.q_heads, case.head_dim)), lse)
    assert failed.value.diagnosis == "max-initialised-to-zero"


@pytest.mark.parametrize("of_k", [True, False])
def test_dead_slots_read_with_splits_are_not_taken_for_empty_splits(of_k: bool) -> None:
    case = cache.poisoned(a_case(lens=(37, 70, 49), margin=1, num_splits=3), k=of_k, v=not of_k)
    o, lse = exact(case)
    o[:] = np.nan
    lse[:] = np.nan if of_k else lse
    with pytest.raises(Failed) as failed:
        attending.judge_decode(StandIn(), case, o, lse)
    assert failed.value.diagnosis == ("unused-k-read" if of_k else "unused-v-read")


def test_renumbered_pages_hold_the_same_tokens() -> None:
    case = cache.shared_along(a_case(kv_heads=1), cache.Memory("head-broadcast", "head-broadcast"))
    far = cache.renumbered(case, 70_000 + np.arange(case.pages), 70_000 + case.pages)
    assert far.pages == 70_000 + case.pages
    assert all((exact(case)[part] == exact(far)[part]).all() for part in (0, 1))


@pytest.mark.parametrize(("margin", "idle"), [(1, 2), (2, 1)])
def test_pages_at_the_ends_belong_to_nobody(margin: int, idle: int) -> None:
    case = a_case(spare=5, margin=margin, idle=idle)
    live = case.live().any(axis=1)
    assert not live[:margin].any()
    assert not live[-margin:].any()


@pytest.mark.parametrize(("table", "lens"), [("columns", "wide"), ("wide", "dense"), ("expanded", "expanded")])
def test_index_tensors_keep_their_values_at_other_strides(table: str, lens: str) -> None:
    case = a_case(lens=(37, 37), shared=4)
    memory = cache.Memory(table=table, lens=lens)  # type: ignore[arg-type]
    case = cache.shared_along(case, memory)
    made_table, made_lens = cache.index_tensors(case, "cpu", memory)
    assert made_table.strides not in (None, (case.table.shape[1], 1))
    assert (made_table.data == case.table).all()
    assert made_lens.data.tolist() == [37, 37]


# Traffic of a decode step: two sequences of 160 and 93 tokens, 8 query heads on 2, head_dim 64.

ROW = 2 * 64 * 2
LIVE = (160 + 93) * ROW


def decode_traffic(
    k: float = 1,
    v: float = 1,
    q: float = 1,
    table: int = 400,
    partials: int = 0,
    readers: int = 8,
    most: int = 80,
    v_from: str = "v_cache",
    lse: float = 1,
) -> Traffic:
    q_bytes = 2 * 8 * 64 * 2
    tensors = {
        "q": TensorTraffic(int(q * q_bytes), 0),
        "k_cache": TensorTraffic(int(k * LIVE), 0, readers=readers, most=most * ROW // 2),
        v_from: TensorTraffic(int(v * LIVE), 0),
        "block_table": TensorTraffic(table, 0),
        "context_lens": TensorTraffic(8, 0),
        "out:0": TensorTraffic(0, q_bytes),
        "out:1": TensorTraffic(0, int(lse * 2 * 8 * 4)),
        "scratch:0": TensorTraffic(partials, partials),
    }
    main = LaunchRecord("decode", (1, 1, 1), 8, tensors=tensors)
    return Traffic(
        launches=1,
        records=[main],
        tensors=tensors,
        loaded_bytes=sum(t.loaded_bytes for t in tensors.values()),
        stored_bytes=sum(t.stored_bytes for t in tensors.values()),
    )


PARTIALS = 2 * 8 * 2 * 64 * 4


@pytest.mark.parametrize(
    ("splits", "counted"),
    [
        (1, decode_traffic()),
        (1, decode_traffic(k=256 / 253, v=256 / 253)),
        (2, decode_traffic(q=2, partials=PARTIALS + 2 * 8 * 2 * 4)),
        (1, decode_traffic(lse=0, partials=2 * 8 * 4)),
        (1, decode_traffic(partials=2 * 8 * (64 + 1) * 4)),
    ],
    ids=["one", "whole-last-page", "two-splits", "lse-finished-by-torch", "one-split-through-partials"],
)
def test_decode_traffic_by_its_closed_form_passes(splits: int, counted: Traffic) -> None:
    judge_decode_traffic(StandIn(), a_case(lens=(160, 93), q_heads=8, num_splits=splits), counted)


@pytest.mark.parametrize(
    ("splits", "counted", "diagnosis"),
    [
        (1, decode_traffic(k=4, v=4), "kv-read-per-query-head"),
        (1, decode_traffic(v=2), "kv-reloaded"),
        (1, decode_traffic(k=0.5), "kv-not-loaded"),
        (1, decode_traffic(v_from="copy:v_cache"), "cache-copied"),
        (1, decode_traffic(q=3), "q-reloaded"),
        (1, decode_traffic(table=8), "table-not-read"),
        (1, decode_traffic(table=1 << 20), ""),
        (1, decode_traffic(partials=1 << 16), "scores-stored"),
        (1, decode_traffic(lse=0), ""),
        (2, decode_traffic(), "keys-not-split"),
        (2, decode_traffic(readers=3, partials=PARTIALS), "keys-not-split"),
        (2, decode_traffic(most=640, partials=PARTIALS), "keys-not-split"),
        (1, decode_traffic(v_from="copy:k_cache and v_cache"), "cache-copied"),
        (2, decode_traffic(partials=PARTIALS // 2), "split-partials-low-precision"),
    ],
)
def test_decode_traffic_beyond_its_closed_form_fails(splits: int, counted: Traffic, diagnosis: str) -> None:
    with pytest.raises(Failed) as failed:
        judge_decode_traffic(StandIn(), a_case(lens=(160, 93), q_heads=8, num_splits=splits), counted)
    assert failed.value.diagnosis == diagnosis


# The benchmark's table.


def rows() -> list[dict[str, str]]:
    """A sweep on a card that no profile knows, with times that follow from 1000 GB/s and 900 GB/s."""
    made = []
    for context in (1024, 2048, 4096, 8192, 16384, 32768):
        for kernel, rate, page in (("paged", 900.0, 16), ("contiguous", 1000.0, context)):
            moved = 2 * 16 * 128 * (context * 8 + 32) * 2
            row = {"kernel": kernel, "batch": "16", "q_heads": "32", "kv_heads": "8", "context": str(context)}
            row |= {"head_dim": "128", "page_size": str(page), "dtype": "bfloat16", "correct": "yes"}
            row |= {
                "max_error": "1e-3",
                "allowed_error": "4e-3",
                "iqr_ms": "0.001",
                "repeats": "50",
                "gpu": "some card",
            }
            made.append(row | {"median_ms": f"{moved / rate / 1e6:.6f}", "gbs": f"{rate:.1f}"})
    return made


def written(table: list[dict[str, str]]) -> bytes:
    columns = (*DECODE.words, *DECODE.numbers, *DECODE.times)
    assert set(ERRORS) < set(columns)
    return "\n".join([",".join(columns), *(",".join(row[c] for c in columns) for row in table)]).encode()


def changed(index: int, **cells: str) -> list[dict[str, str]]:
    table = rows()
    table[index] |= cells
    return table


def test_benchmark_that_follows_from_its_columns_passes() -> None:
    judge_decode_benchmark(StandIn(), written(rows()), PROFILES)


@pytest.mark.parametrize(
    ("table", "diagnosis"),
    [
        (changed(0, correct="no"), "benchmark-untested-row"),
        (changed(0, max_error="1"), "benchmark-untested-row"),
        (changed(0, repeats="3"), "benchmark-malformed"),
        (changed(0, batch="0", gbs="0"), "benchmark-malformed"),
        (changed(0, dtype="int4"), "benchmark-malformed"),
        (changed(0, gpu=""), "benchmark-malformed"),
        (changed(0, median_ms="fast"), "benchmark-malformed"),
        (changed(2, gbs="1800.0"), "benchmark-arithmetic"),
        (changed(3, gpu="NVIDIA L4"), "benchmark-impossible"),
        (rows()[:8], "benchmark-incomplete"),
        (rows()[:-2], "benchmark-incomplete"),
        ([row for row in rows() if row["kernel"] == "paged"], "benchmark-incomplete"),
    ],
)
def test_benchmark_with_a_fault_fails(table: list[dict[str, str]], diagnosis: str) -> None:
    with pytest.raises(Failed) as failed:
        judge_decode_benchmark(StandIn(), written(table), PROFILES)
    assert failed.value.diagnosis == diagnosis


def test_quotient_of_intervals_takes_the_farthest_ends() -> None:
    ratio = timing.quotient(Interval(2.0, 1.8, 2.2), Interval(1.0, 0.9, 1.1))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 1.8 / 1.1, 2.2 / 0.9))


# The lab.


def test_hints_cover_every_check() -> None:
    assert set(COURSE.hints(LAB.id).checks) == set(LAB.checks)


def test_laptop_points_are_enough() -> None:
    on_cpu = [c.points for name, c in LAB.checks.items() if "gpu" not in c.requires and name != "benchmark-table"]
    assert sum(on_cpu) == 86


def test_poisoned_case_keeps_its_answer() -> None:
    case = a_case()
    struck = cache.poisoned(case, k=True, v=True)
    assert np.isnan(struck.k_cache).any()
    assert (exact(case)[0] == exact(struck)[0]).all()
    assert replace(case, num_splits=2).num_splits == 2

"""Hidden checks of lab08."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.codegen import judge_all_parts
from grader.judge.decode import appending, attending, cache, rotary, stepping, timing
from grader.judge.decode.cache import Memory
from grader.judge.decode.codegen import decode_launch, judge_decode_codegen
from grader.judge.decode.traffic import judge_append_traffic, require_counted
from grader.judge.speed.decode import DecodeShape
from grader.profiles import load_profile
from grader.report.model import Diagnosis
from grader.sandbox.wire import Tensor

COURSE = Path(__file__).resolve().parents[2]
CARDS = ("l4", "a10", "rtx3090", "a100-80gb", "h100-sxm")
HUGE = 2**31 - 1
PAGES_OF_16_BITS = 2**16
# A call's caches take at most 0.5 GB, so that a window of several calls fits a card of 24 GB.
BANDWIDTH_SHAPES = (
    DecodeShape(16, 32, 8, 8192, 128, 16, "bfloat16"),
    DecodeShape(4, 32, 8, 16384, 128, 16, "bfloat16"),
    DecodeShape(1, 28, 4, 32768, 128, 16, "bfloat16"),
)
PAGING_SHAPE = DecodeShape(16, 32, 8, 8192, 128, 16, "bfloat16")


def _decode(submission: Submission, judge: Judge, label: str = "", **options: object) -> None:
    """Draw a case, run it, judge it."""
    case = cache.case(judge.rng(), **options)  # type: ignore[arg-type]
    attending.judge_decode(judge, case, *attending.run_decode(submission, case), label=label)


def _decode_in(submission: Submission, judge: Judge, memory: Memory, found: Diagnosis, **options: object) -> None:
    """Draw a case, run it in memory that shows the mistake `found`, judge it."""
    case = cache.shared_along(cache.case(judge.rng(), **options), memory)  # type: ignore[arg-type]
    plain, given = (cache.to_tensors(case, submission.device, kind) for kind in (cache.PLAIN, memory))
    attending.judge_elsewhere(judge, submission, case, (plain, given), found)


def _rope(submission: Submission, judge: Judge, **options: object) -> None:
    case = rotary.case(judge.rng(), **options)  # type: ignore[arg-type]
    rotary.judge_rope(judge, case, rotary.run_rope(submission, case))


@check("rope-interleaved")
@pytest.mark.parametrize(("dtype", "integers"), [("float32", "int64"), ("bfloat16", "int32")])
def test_rope_interleaved(submission: Submission, judge: Judge, dtype: str, integers: str) -> None:
    """Pairs are (2i, 2i + 1); positions in both integer types."""
    _rope(submission, judge, interleaved=True, dtype=dtype, integers=integers)


@check("rope-partial")
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_over_part_of_the_features(submission: Submission, judge: Judge, interleaved: bool) -> None:
    """32 of 80 features are turned, the rest passes through unchanged."""
    _rope(submission, judge, head_dim=80, rotary_dim=32, interleaved=interleaved, dtype="float32")


@check("rope-partial")
def test_rope_with_another_base(submission: Submission, judge: Judge) -> None:
    """Base 500 000; x is a slice of rows that hold more."""
    case = rotary.case(judge.rng(), base=500000.0, dtype="float32", heads=2, seqlen=4)
    strides = (4 * 6 * 64, 64, 6 * 64, 1)
    rotary.judge_rope(judge, case, rotary.run_rope(submission, case, strides))


@check("rope-distance")
def test_scores_depend_on_the_distance_only(submission: Submission, judge: Judge) -> None:
    """One q and one k at three pairs of positions with the same distance, the last beyond 100 000."""
    rng = judge.rng()
    distance = int(rng.integers(3, 40))
    starts = np.array([0, int(rng.integers(500, 4000)), int(rng.integers(100_000, 130_000))])
    token = rng.standard_normal((1, 2, 1, 64))
    positions = np.concatenate([starts + distance, starts])[None]
    # Sequence places 0 to 2 hold q, 3 to 5 hold k.
    values = np.concatenate([np.repeat(token[:, :1], 3, axis=2), np.repeat(token[:, 1:], 3, axis=2)], axis=2)
    case = rotary.RopeCase(values.astype(np.float32).astype(np.float64), positions, dtype="float32")
    got = rotary.run_rope(submission, case)
    rotary.judge_rope(judge, case, got)
    scores = np.einsum("td,td->t", got[0, 0, :3], got[0, 0, 3:])
    bound = (rotary.allowed(case)[0, 0, :3] * np.abs(got[0, 0, 3:])).sum(axis=-1)
    bound = bound + (rotary.allowed(case)[0, 0, 3:] * np.abs(got[0, 0, :3])).sum(axis=-1)
    judge.measure("score_spread", float(np.ptp(scores)))
    if not (np.abs(scores - scores[0]) <= bound + bound[0]).all():
        judge.fail("The score of one q and one k changes when both move by the same number of positions.")


@check("rope-distance")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_angles_are_float32_at_large_positions(submission: Submission, judge: Judge, dtype: str) -> None:
    """Half-precision x at positions that half precision can't hold."""
    positions = np.array([[30001, 30002, 61003, 4099]])
    case = rotary.case(judge.rng(), batch=1, seqlen=4, positions=positions, dtype=dtype)
    rotary.judge_rope(judge, case, rotary.run_rope(submission, case))


@check("append-only-its-slot")
@pytest.mark.parametrize("lens", [(0, 1, 15), (16, 17, 31), (32, 48, 0)])
def test_append_around_page_boundaries(submission: Submission, judge: Judge, lens: tuple[int, ...]) -> None:
    """An empty sequence, a last slot, a first slot of a new page; every other byte keeps its value."""
    appending.judge_append(judge, submission, appending.case(judge.rng(), lens=lens, kv_heads=3, q_heads=3))


@check("append-only-its-slot")
def test_append_behind_a_shared_prefix(submission: Submission, judge: Judge) -> None:
    """Two sequences share their first page, and each appends to a page of its own."""
    appending.judge_append(judge, submission, appending.case(judge.rng(), lens=(40, 20), shared=1))


@check("append-only-its-slot")
def test_append_without_a_page_writes_nothing(submission: Submission, judge: Judge) -> None:
    """The second of three rows of the batch has no page (-1)."""
    appending.judge_append(judge, submission, appending.case(judge.rng(), lens=(5, 7, 33), skipped=(1,)))


@check("append-only-its-slot")
def test_append_to_more_kv_heads_than_a_card_has_sms(submission: Submission, judge: Judge) -> None:
    """328 kv heads of 82 sequences, each of which gets its row."""
    rng = judge.rng()
    lens = tuple(int(length) for length in rng.integers(0, 40, 82))
    appending.judge_append(judge, submission, appending.case(rng, lens=lens, kv_heads=4, q_heads=4, head_dim=32))


@check("append-layouts")
@pytest.mark.parametrize(
    ("memory", "dtype", "head_dim"),
    [
        (Memory("transposed", "padded-rows", q="fused", table="columns"), "float16", 64),
        (Memory("offset", "transposed", integers="int64", table="wide", lens="wide"), "bfloat16", 64),
        (Memory("seqlen-last", "contiguous", q="expanded", integers="int64"), "float32", 80),
    ],
    ids=["heads-first", "wide-table", "columns"],
)
def test_append_with_strides(submission: Submission, judge: Judge, memory: Memory, dtype: str, head_dim: int) -> None:
    """K's and V's caches laid out differently; tokens that are slices, or one for all; tables of any strides."""
    case = appending.case(judge.rng(), lens=(5, 16, 33), dtype=dtype, head_dim=head_dim)
    case = appending.shared_along(case, memory)
    plain, given = (appending.to_tensors(case, submission.device, kind) for kind in (cache.PLAIN, memory))
    appending.judge_elsewhere(judge, submission, case, (plain, given), _STRIDES)


@check("append-traffic")
def test_append_moves_the_new_rows_only(submission: Submission, judge: Judge) -> None:
    """Bytes of one append, counted in the interpreter."""
    case = appending.case(judge.rng(), lens=(5, 16, 47))
    tensors = appending.to_tensors(case, "cpu")
    traced = submission.traced_call(
        appending.FUNCTION, *tensors, module=appending.MODULE, interpreted=True, mutable=appending.MUTABLE
    )
    judge_append_traffic(judge, case, traced.traffic)
    appending.judge_caches(judge, case, traced.arguments)


@check("permuted-pages")
@pytest.mark.parametrize("splits", [1, 2])
def test_page_order_changes_no_bit(submission: Submission, judge: Judge, splits: int) -> None:
    """The same tokens in pages in a row and in pages anywhere."""
    rng = judge.rng()
    ordered = cache.case(rng, lens=(150, 192, 133), order="ordered", num_splits=splits)
    moved = cache.reordered(ordered, rng)
    answers = [attending.run_decode(submission, case) for case in (ordered, moved)]
    for case, answer, label in zip((ordered, moved), answers, ("pages in a row", "pages anywhere"), strict=True):
        attending.judge_decode(judge, case, *answer, label=label)
    attending.same_bits(judge, *answers, "Where the pages lie changes the result's bits.", _ORDER_MATTERS)


@check("unused-nan")
@pytest.mark.parametrize(("k", "v"), [(False, True), (True, False), (True, True)], ids=["v", "k", "both"])
@pytest.mark.parametrize(("lens", "splits"), [((37, 70, 48), 1), ((150, 199, 240), 2)], ids=["1", "2"])
def test_nan_where_no_token_is(
    submission: Submission, judge: Judge, k: bool, v: bool, lens: tuple[int, ...], splits: int
) -> None:
    """NaN in every unused slot and page of V, of K, and of both; page 0, which masked look-ups give, is such a page."""
    case = cache.poisoned(cache.case(judge.rng(), lens=lens, margin=1, num_splits=splits), k, v)
    attending.judge_decode(judge, case, *attending.run_decode(submission, case))


@check("unused-nan")
def test_nan_in_the_page_of_unused_entries(submission: Submission, judge: Judge) -> None:
    """Entries that no token needs name a page of NaN, as where pages are reserved or were given to others."""
    case = cache.poisoned(cache.case(judge.rng(), lens=(37, 70, 48), margin=1, idle=4), k=True, v=True)
    attending.judge_decode(judge, case, *attending.run_decode(submission, case))


@check("unused-entries")
@pytest.mark.parametrize(("lens", "splits"), [((37, 5, 130), 1), ((150, 199), 2)], ids=["1", "2"])
def test_unused_table_entries_are_not_followed(
    submission: Submission, judge: Judge, lens: tuple[int, ...], splits: int
) -> None:
    """-1 and pages just past the cache, with every access counted; then the largest integer."""
    case = cache.case(judge.rng(), lens=lens, num_splits=splits)
    for unused in (cache.NO_PAGE, case.pages + 2):
        tensors = cache.to_tensors(case, memory=Memory(unused=unused))
        traced = submission.traced_call(
            attending.FUNCTION, *tensors, module=attending.MODULE, interpreted=True, **attending.options(case)
        )
        attending.judge_decode(judge, case, *attending.check_decode(traced.value, case, "cpu"))
        require_counted(judge, traced.traffic)
    for integers in ("int32", "int64"):
        memory = Memory(unused=HUGE, integers=integers)
        attending.judge_decode(judge, case, *attending.run_decode(submission, case, memory))


@check("lengths")
@pytest.mark.parametrize(
    ("lens", "splits"),
    [((0, 1, 15, 16, 17, 63, 64, 65), 1), ((0, 129, 143, 144, 145, 191, 192, 193), 2)],
    ids=["1", "2"],
)
def test_lengths_around_whole_pages(submission: Submission, judge: Judge, lens: tuple[int, ...], splits: int) -> None:
    """0, 1, one less than a page, a page, one more, and the same around several pages."""
    _decode(submission, judge, lens=lens, num_splits=splits, kv_heads=1)


@check("lengths")
def test_batch_of_none(submission: Submission, judge: Judge) -> None:
    """No sequence: results without a row, and caches that keep their bytes."""
    for splits in (1, None):
        case = cache.case(judge.rng(), lens=(37, 20), num_splits=splits)
        attending.run_decode(submission, cache.without_sequences(case))
    made = appending.case(judge.rng(), lens=(37, 20))
    none = replace(made, before=cache.without_sequences(made.before), k=made.k[:0], v=made.v[:0])
    appending.judge_append(judge, submission, none)


@check("shared-pages")
@pytest.mark.parametrize(
    ("lens", "shared", "splits"), [((90, 70, 37, 90), 3, 1), ((190, 170, 137, 190), 9, 2)], ids=["1", "2"]
)
def test_sequences_that_share_pages(
    submission: Submission, judge: Judge, lens: tuple[int, ...], shared: int, splits: int
) -> None:
    """A common prefix of pages: one sequence goes on behind it, one ends inside of it, one is as long."""
    _decode(submission, judge, lens=lens, shared=shared, num_splits=splits)


@check("shared-pages")
def test_sequences_that_share_a_row_of_the_table(submission: Submission, judge: Judge) -> None:
    """One row of the table, expanded over three sequences of other lengths."""
    _decode_in(submission, judge, Memory(table="expanded"), _ZERO, lens=(90, 70, 37), shared=6)


@check("page-sizes")
@pytest.mark.parametrize(
    ("page_size", "memory"),
    [
        (32, Memory(integers="int64", table="columns")),
        (64, Memory(table="wide", lens="wide")),
        (128, Memory(integers="int64", table="wide", lens="wide")),
    ],
    ids=["32", "64", "128"],
)
def test_page_sizes_and_tables(submission: Submission, judge: Judge, page_size: int, memory: Memory) -> None:
    """Pages of 32, 64 and 128 tokens, more of them reserved than used; tables and lengths of any strides."""
    _decode_in(submission, judge, memory, _STRIDES, lens=(150, 97), page_size=page_size, idle=10)


@check("many-splits")
@pytest.mark.parametrize(("lens", "splits"), [((5, 40), 7), ((1, 70), 128), ((130, 129), 6), ((5000,), 40)])
def test_more_splits_than_pages(submission: Submission, judge: Judge, lens: tuple[int, ...], splits: int) -> None:
    """More splits than pages and than tokens; a number that divides nothing; many that all have keys."""
    _decode(submission, judge, lens=lens, num_splits=splits, kv_heads=1, q_heads=2)


@check("many-splits")
def test_number_of_splits_changes_rounding_only(submission: Submission, judge: Judge) -> None:
    """One case with 1 to 7 splits: all are right, and their LSE agree to float32's rounding."""
    case = cache.case(judge.rng(), lens=(333, 47), kv_heads=1, q_heads=2, dtype="float32")
    first = None
    for splits in range(1, 8):
        split = replace(case, num_splits=splits)
        answer = attending.run_decode(submission, split)
        attending.judge_decode(judge, split, *answer, label=f"{splits} splits")
        first = first or answer
        apart = attending.largest_difference(first[1], answer[1])
        if not apart <= 1e-5:
            judge.fail(f"The LSE of {splits} splits is {apart:.1e} away from that of one.")


@check("grouped-heads")
@pytest.mark.parametrize(("q_heads", "kv_heads"), [(7, 1), (14, 2), (4, 2), (3, 3)])
def test_query_heads_read_their_kv_head(submission: Submission, judge: Judge, q_heads: int, kv_heads: int) -> None:
    """Groups of 7, 2 and 1; one kv head and several."""
    _decode(submission, judge, lens=(37, 50), q_heads=q_heads, kv_heads=kv_heads)


@check("grouped-heads")
def test_more_kv_heads_than_a_card_has_sms(submission: Submission, judge: Judge) -> None:
    """328 kv heads of 82 sequences: a grid that is capped at one or two programs an SM leaves rows unwritten."""
    rng = judge.rng()
    lens = tuple(int(length) for length in rng.integers(1, 40, 82))
    case = cache.case(rng, lens=lens, q_heads=8, kv_heads=4, head_dim=32)
    judge_all_parts(judge, submission, decode_launch(judge, case), parts=case.batch * case.kv_heads)


@check("cache-layouts")
@pytest.mark.parametrize(
    "memory",
    [
        Memory("transposed", "contiguous", q="fused"),
        Memory("padded-rows", "transposed"),
        Memory("misaligned", "every-other-head"),
        Memory("contiguous", "seqlen-last", q="fused"),
    ],
    ids=["heads-first-k", "heads-first-v", "interleaved", "columns"],
)
def test_each_tensor_has_its_own_strides(submission: Submission, judge: Judge, memory: Memory) -> None:
    """K's and V's caches with other axes outside, padded, offset; q a slice of fused rows."""
    _decode_in(submission, judge, memory, _STRIDES, lens=(37, 50))


@check("cache-layouts")
@pytest.mark.parametrize(
    ("memory", "lens"),
    [
        (Memory("head-broadcast", "contiguous"), (65, 50)),
        (Memory("contiguous", "head-broadcast"), (65, 50)),
        (Memory("seqlen-broadcast", "transposed", q="expanded"), (33, 50)),
        (Memory("transposed", "seqlen-broadcast", lens="expanded"), (33, 33)),
    ],
    ids=["slots-of-k", "slots-of-v", "heads-of-k", "heads-of-v"],
)
def test_expanded_tensors(submission: Submission, judge: Judge, memory: Memory, lens: tuple[int, ...]) -> None:
    """A stride of 0 along the slots of a page or the heads, of K or V alone; in q, and in the lengths."""
    _decode_in(submission, judge, memory, _ZERO, lens=lens)


@check("hard-scores")
@pytest.mark.parametrize("family", ["fp16-overflow", "far-below-60", "far-below-700", "peaked"])
def test_hard_scores_across_splits(submission: Submission, judge: Judge, family: str) -> None:
    """Scores hundreds and tens of thousands below zero, beyond float16, and far apart; two splits."""
    _decode(submission, judge, lens=(150, 199), family=family, num_splits=2)


@check("dtypes")
@pytest.mark.parametrize(("dtype", "family"), [("bfloat16", "normal"), ("float32", "normal"), ("float32", "peaked")])
@pytest.mark.parametrize("splits", [1, 2])
def test_dtypes(submission: Submission, judge: Judge, dtype: str, family: str, splits: int) -> None:
    """The bounds of float32 are those of float32 arithmetic; TF32 is a thousand times coarser."""
    _decode(submission, judge, lens=(150, 199), dtype=dtype, family=family, num_splits=splits)


@check("scale-and-head-dim")
@pytest.mark.parametrize(("head_dim", "scale"), [(64, 0.5), (64, None), (80, None), (128, 0.03), (64, -0.3), (64, 0.0)])
def test_scale_and_head_dim(submission: Submission, judge: Judge, head_dim: int, scale: float | None) -> None:
    """Four scales at one shape, 0 and a negative one among them; 1/sqrt(80) whatever the tile is padded to."""
    _decode(submission, judge, lens=(37, 150), head_dim=head_dim, scale=scale, family="peaked")


@check("decode-equals-prefill")
@pytest.mark.parametrize(
    ("options", "rope"),
    [
        ({"lens": (0, 13), "kv_heads": 1, "q_heads": 3}, {}),
        (
            {"lens": (140, 134), "kv_heads": 2, "q_heads": 4, "num_splits": 2, "scale": 0.3},
            {"interleaved": True, "rotary_dim": 32},
        ),
    ],
    ids=["half-split", "interleaved-partial"],
)
def test_token_by_token_equals_prefill(
    submission: Submission, judge: Judge, options: dict[str, object], rope: dict[str, object]
) -> None:
    """Ten steps across page boundaries, behind a context of its own for each sequence; the options reach each part."""
    made = stepping.generation(judge.rng(), steps=10, **options, **rope)  # type: ignore[arg-type]
    stepping.judge_generation(judge, submission, made)


@check("codegen-cards")
@pytest.mark.parametrize("q_heads", [14, 2])
def test_code_for_every_card(submission: Submission, judge: Judge, q_heads: int) -> None:
    """Groups of 7 and of 1, head_dim 128, four splits; the profile's own capability is codegen-profile's."""
    case = cache.case(judge.rng(), lens=(1500, 900), q_heads=q_heads, head_dim=128, num_splits=4)
    cards = [load_profile(COURSE, name) for name in CARDS]
    profiles = [card for card in cards if card.sm != judge.profile.sm]
    judge_decode_codegen(judge, submission, case, profiles)


@check("repeatable")
def test_calls_stand_alone(submission: Submission, judge: Judge) -> None:
    """Equal inputs at fresh addresses with other calls in between; memory is poisoned before every call."""
    case = cache.case(judge.rng(), lens=(170, 137), num_splits=2, kv_heads=1, q_heads=2)
    first = attending.run_decode(submission, case)
    attending.judge_decode(judge, case, *first, label="first call")
    for lens in ((137, 170), (199, 144), (150, 160)):
        _decode(submission, judge, "another call", lens=lens, num_splits=2, kv_heads=1, q_heads=2)
    again = attending.run_decode(submission, case)
    attending.same_bits(judge, first, again, "A later call with equal inputs gives other bits.", _HISTORY)


@check("wide-offsets")
def test_page_numbers_beyond_16_bits(submission: Submission, judge: Judge) -> None:
    """Pages beyond 2^15 and 2^16; K and V are expanded along the slots of a page, so that so many take 4 MB."""
    memory = Memory("head-broadcast", "head-broadcast", integers="int64")
    near = cache.shared_along(cache.case(judge.rng(), lens=(37, 90), kv_heads=1, head_dim=32), memory)
    far = cache.renumbered(near, _beyond_16_bits(near.pages), PAGES_OF_16_BITS + near.pages)
    tensors = tuple(cache.to_tensors(case, submission.device, memory) for case in (near, far))
    attending.judge_elsewhere(judge, submission, near, tensors, _NUMBER)  # type: ignore[arg-type]


@check("wide-offsets")
def test_append_to_page_numbers_beyond_16_bits(submission: Submission, judge: Judge) -> None:
    """A token for each of two sequences, in caches as above."""
    memory = Memory("head-broadcast", "head-broadcast")
    made = appending.case(judge.rng(), lens=(37, 90), kv_heads=1, head_dim=32)
    made = replace(made, before=cache.shared_along(made.before, memory))
    numbers = _beyond_16_bits(made.before.pages)
    far = replace(made, before=cache.renumbered(made.before, numbers, PAGES_OF_16_BITS + numbers.size))
    near = appending.to_tensors(made, submission.device)
    tensors = (near, appending.to_tensors(far, submission.device, memory))
    appending.judge_elsewhere(judge, submission, made, tensors, _NUMBER, numbers=numbers)


def _beyond_16_bits(pages: int) -> np.ndarray:
    """Numbers for so many pages: every other one needs the 16th bit, the rest the 17th."""
    above = np.where(np.arange(pages) % 2, PAGES_OF_16_BITS, PAGES_OF_16_BITS // 2)
    return above + np.arange(pages)


@check("wide-offsets")
@pytest.mark.parametrize("wide", ["k_cache", "v_cache"])
def test_pages_beyond_int32(submission: Submission, judge: Judge, wide: str) -> None:
    """One cache laid out so that its last page begins 2^31 elements in: 4.3 GB by strides alone; decode and append.

    Every stride and page fits an int32; only their product doesn't. A CPU has memory for the elements only.
    """
    # The last page, the one far out, is the last sequence's.
    in_a_row = {"lens": (37, 90), "order": "ordered", "spare": 0}
    case = cache.case(judge.rng(), **in_a_row)  # type: ignore[arg-type]
    near = cache.to_tensors(case, submission.device)
    attending.judge_elsewhere(judge, submission, case, (near, _spread(near, 1 if wide == "k_cache" else 2)), _OFFSET)
    made = appending.case(judge.rng(), **in_a_row)  # type: ignore[arg-type]
    near = appending.to_tensors(made, submission.device)
    appending.judge_elsewhere(judge, submission, made, (near, _spread(near, 2 if wide == "k_cache" else 3)), _OFFSET)


def _spread(tensors: tuple[Tensor, ...], index: int) -> tuple[Tensor, ...]:
    """One of the tensors, a cache, with its pages far apart: the last one begins 2^31 elements in."""
    pages, _, heads, dim = tensors[index].data.shape
    step = -(-(2**31) // (pages - 1) // 16) * 16 + 16
    wide = replace(tensors[index], strides=(step, heads * dim, dim, 1))
    return (*tensors[:index], wide, *tensors[index + 1 :])


@check("speed-bandwidth")
def test_fraction_of_the_bandwidth(submission: Submission, judge: Judge) -> None:
    """Many sequences, few, and one; pages anywhere; the number of splits is yours."""
    timing.judge_bandwidth(judge, submission, BANDWIDTH_SHAPES)


@check("speed-paged")
def test_paged_against_contiguous(submission: Submission, judge: Judge) -> None:
    """Pages of 16 tokens anywhere, against one page as long as the context for each sequence."""
    timing.judge_paging(judge, submission, PAGING_SHAPE)


_ORDER_MATTERS = Diagnosis(
    id="page-order-matters", text="Tiles or splits follow the pages' places in memory, not the tokens' positions."
)
_NUMBER = Diagnosis(
    id="page-number-16-bit",
    text="Page numbers pass through 16 bits: those of 32768 or of 65536 and more come out as others.",
)
_OFFSET = Diagnosis(
    id="offset-32-bit", text="Offsets pass through 32 bits: make the page 64-bit before it is multiplied by its stride."
)
_STRIDES = Diagnosis(
    id="strides-ignored",
    text="Contiguous tensors of the same values come out right: q, K, V, the tokens, the table and the lengths have "
    "strides of their own.",
)
_ZERO = Diagnosis(
    id="stride-of-zero",
    text="Contiguous tensors of the same values come out right: take a stride of 0 (an expanded tensor) as it is.",
)
_HISTORY = Diagnosis(id="call-depends-on-history", text="Calls with equal inputs give different bits.")
# kept-from-students-7ac11dc39b6f8a77

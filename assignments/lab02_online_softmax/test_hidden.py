"""Hidden checks of lab02."""

from __future__ import annotations

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.png import PngError, inspect_png
from grader.judge.softmax import attention, exact, states, streams, table

MIB = 1 << 20


def judge_stream(submission: Submission, judge: Judge, x: np.ndarray, widths: tuple[int, ...], what: str) -> None:
    blocks = streams.cut(x, widths)
    result = streams.run_stream(submission, judge, "online_softmax_stats", blocks)
    streams.judge_stats(judge, blocks, result, f"online_softmax_stats, {what}")


# Streams


@check("extreme-rows")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_statistics_of_rows_far_from_zero(submission: Submission, judge: Judge, dtype: str) -> None:
    """All -1e3, all +1e3, all -1e12 (-1e35): no constant may be subtracted, none may stand for -inf."""
    x = judge.rng().standard_normal((6, 90))
    far = 1e12 if dtype == "float64" else 1e35
    x += np.array([-1e3, 1e3, -6e4, 6e4, 0, 0])[:, None]
    x[4] = -far * (1 + np.arange(90) % 3)
    x[5, :45] -= 2e3
    judge_stream(submission, judge, x.astype(dtype), (16,), "rows far from zero")


@check("extreme-rows")
def test_statistics_of_half_precision_extremes(submission: Submission, judge: Judge) -> None:
    """float16 scores around -6e4 and +6e4, near the largest that the format has."""
    x = judge.rng().uniform(-64, 64, (4, 90)) + np.array([-6e4, 6e4, -6.4e4, 0])[:, None]
    x[3] = np.where(np.arange(90) % 2, 6e4, -6e4)
    judge_stream(submission, judge, x.astype(np.float16), (16,), "float16 extremes")


@check("extreme-rows")
def test_softmax_of_extremes(submission: Submission, judge: Judge) -> None:
    """The same for `softmax`: weights depend on differences only."""
    x = judge.rng().standard_normal((4, 50)) + np.array([-1e3, 1e3, -6e4, 6e4])[:, None]
    states.judge_softmax(judge, x, -1, submission.call("softmax", x), "softmax of rows far from zero")


@check("masked-stream")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_statistics_of_masked_streams(submission: Submission, judge: Judge, dtype: str) -> None:
    """-inf in the first blocks, in a middle block, at the end, everywhere but once, everywhere."""
    x = judge.rng().standard_normal((7, 96)) * 2
    x[0, :40] = -np.inf
    x[1, 32:64] = -np.inf
    x[2, 64:] = -np.inf
    x[3, 1:] = -np.inf
    x[4, :-1] = -np.inf
    x[5] = -np.inf
    judge_stream(submission, judge, x.astype(dtype), (16, 5), "masked streams")
    judge_stream(submission, judge, np.full((3, 40), -np.inf, dtype), (8,), "nothing but -inf")


@check("masked-stream")
def test_masked_input_raises_no_warning(submission: Submission, judge: Judge) -> None:
    """A warning is a NaN or a division by zero on its way, even where its result is thrown away."""
    x = np.full((3, 40), -np.inf)
    x[2, 30:] = 1.0
    stream = streams.BlockStream(streams.cut(x, (8,)))
    q = judge.rng().standard_normal((9, 4))
    empty = states.empty_state(3, 2, x.dtype)
    streams.call_quietly(submission, judge, "softmax", x)
    streams.call_quietly(submission, judge, "online_softmax_stats", submission.host(stream, stream.METHODS))
    streams.call_quietly(submission, judge, "merge", empty, empty)
    streams.call_quietly(submission, judge, "blockwise_attention", q, q[:5], q[:5], 2, causal=True)


@check("half-sum")
def test_half_precision_stream_does_not_saturate(submission: Submission, judge: Judge) -> None:
    """16384 nearly equal float16 scores in blocks of 127: l reaches 16384, where float16 counts in steps of 8 or 16."""
    x = (judge.rng().uniform(-0.03, 0.0, (2, 16384))).astype(np.float16)
    x[:, 0] = 0.0
    judge_stream(submission, judge, x, (127,), "16k float16 scores")


@check("half-sum")
def test_half_precision_softmax_does_not_saturate(submission: Submission, judge: Judge) -> None:
    """70000 nearly equal float16 scores: their sum is beyond the largest float16."""
    x = judge.rng().uniform(-0.03, 0.0, (1, 70000)).astype(np.float16)
    states.judge_softmax(judge, x, -1, submission.call("softmax", x), "softmax of 70k float16 scores")


@check("half-sum")
@pytest.mark.parametrize("block", [61, 5000])
def test_half_precision_attention_does_not_saturate(submission: Submission, judge: Judge, block: int) -> None:
    """16384 nearly equal keys in float16, V near 1, in small blocks and in large ones."""
    rng = judge.rng()
    q, k = rng.uniform(0, 0.1, (2, 8)), rng.uniform(0, 0.1, (16384, 8))
    v = 1 + rng.standard_normal((16384, 8)) / 8
    case = attention.Case(*(x.astype(np.float16) for x in (q, k, v)), block=block)
    got = attention.run_attention(submission, judge, case, "16k float16 keys")
    attention.judge_attention(judge, case, got, "blockwise_attention, 16k float16 keys")


@check("stream-memory")
def test_stream_is_not_gathered(submission: Submission, judge: Judge) -> None:
    """A long stream; what the call allocates at its peak stays that of a few blocks."""
    long = streams.LongStream.draw(judge)
    stream = submission.host(streams.BlockStream(long.blocks), streams.BlockStream.METHODS)
    measured = submission.measured_call("online_softmax_stats", stream)
    truth = long.statistics()
    streams.judge_stats(judge, long.blocks, measured.value, "online_softmax_stats, a long stream", truth=truth)
    streams.judge_peak(judge, measured.peak_bytes, "online_softmax_stats")


# Merging


def triple(rng: np.random.Generator, dtype: str) -> list[states.State]:
    """Three states whose maxima are up to 750 apart (95 in float32), in another order in each row."""
    far = 750 if dtype == "float64" else 95
    scores, v = rng.standard_normal((8, 30)), rng.standard_normal((30, 4)) + 1
    apart = np.array([[0, 1, 2], [2, 0, -1], [0, far, 5], [far, 0, far - 10], [-far, 3, 0], [0, 0, 0]])
    apart = np.concatenate([apart, [[2 * far, far, 0], [-2 * far, -far, -3 * far]]])
    scores += np.repeat(apart, 10, axis=1)
    parts = (slice(0, 10), slice(10, 20), slice(20, 30))
    return [states.state_of(scores[:, part], v[part], np.dtype(dtype)) for part in parts]


@check("merge-algebra")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_merge_is_associative_and_commutative(submission: Submission, judge: Judge, dtype: str) -> None:
    """(ab)c, a(bc) and (cb)a against the exact merge of the three."""
    a, b, c = triple(judge.rng(), dtype)

    def merge(left: states.State, right: states.State) -> states.State:
        got = states.checked_state(judge, submission.call("merge", left, right), left, "merge")
        states.judge_merge(judge, left, right, got, states.merged(left, right), "merge")
        return got

    whole = states.merged(states.merged(a, b), c)
    bracketed = {"(ab)c": merge(merge(a, b), c), "a(bc)": merge(a, merge(b, c)), "(cb)a": merge(merge(c, b), a)}
    for name, got in bracketed.items():
        states.judge_merge(judge, a, b, got, whole, f"merge bracketed {name}")


@check("merge-algebra")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_empty_state_is_the_identity(submission: Submission, judge: Judge, dtype: str) -> None:
    """On the left, on the right, on both sides; and in some rows only."""
    state, other, _ = triple(judge.rng(), dtype)
    empty = states.empty_state(8, 4, np.dtype(dtype))
    half = tuple(part.copy() for part in other)
    for part, nothing in zip(half, empty, strict=True):
        part[::2] = nothing[::2]
    for left, right in ((empty, state), (state, empty), (empty, empty), (half, state), (half, empty)):
        got = states.checked_state(judge, submission.call("merge", left, right), state, "merge")
        states.judge_merge(judge, left, right, got, states.merged(left, right), "merge with an empty state")


# Shifts


@check("shift-invariance")
@pytest.mark.parametrize("shift", [320.0, -800.0])
def test_shift_leaves_weights_and_moves_the_maximum(submission: Submission, judge: Judge, shift: float) -> None:
    """Scores are multiples of 2**-20, so that adding the shift is exact and nothing may change but m."""
    x = np.round(judge.rng().standard_normal((5, 70)) * 2**20) / 2**20
    states.judge_softmax(judge, x + shift, -1, submission.call("softmax", x + shift), "softmax, shifted")
    judge_stream(submission, judge, x + shift, (16,), "a shifted stream")


@check("shift-invariance")
def test_shift_moves_the_log_sum_exp(submission: Submission, judge: Judge) -> None:
    """A constant component of q and k shifts every score of attention by 96: O stays, LSE moves by 96."""
    rng = judge.rng()
    q, k, v = rng.standard_normal((11, 16)), rng.standard_normal((75, 16)), rng.standard_normal((75, 16))
    q[:, 0], k[:, 0] = 24.0, 16.0
    case = attention.Case(q, k, v, block=16)
    got = attention.run_attention(submission, judge, case, "shifted scores")
    attention.judge_attention(judge, case, got, "blockwise_attention, shifted scores")


# Attention

FAMILIES = ("normal", "peaked", "far-below", "overflow", "flat")


def family_case(rng: np.random.Generator, family: str, dtype: str) -> attention.Case:
    """19 queries, 203 keys, head_dim 64, 48 keys a block: inputs on which low precision shows."""
    q, k, v = (rng.standard_normal((rows, 64)) for rows in (19, 203, 203))
    unit = np.full(64, 1 / 8)
    if family == "peaked":
        q, k = q * 4, k * 2
    elif family == "far-below":
        q, k = 40 * unit + q / 4, -40 * unit + k / 4
    elif family == "overflow":
        q, k = 300 * unit + q / 4, 300 * unit + k / 4
    elif family == "flat":
        k, v = k * 0.01, 1 + v / 8
    return attention.Case(*(x.astype(dtype) for x in (q, k, v)), block=48)


@check("attention-precision")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_attention_is_as_exact_as_an_honest_kernel(
    submission: Submission, judge: Judge, dtype: str, family: str
) -> None:
    """O and LSE within what emulated kernels of that precision reach on the same input."""
    case = family_case(judge.rng(), family, dtype)
    got = attention.run_attention(submission, judge, case, f"{family} scores")
    attention.judge_attention(judge, case, got, f"blockwise_attention, {family} scores")


@check("attention-precision")
def test_attention_keeps_float64(submission: Submission, judge: Judge) -> None:
    """float64 inputs give float64 answers: no step may pass through float32."""
    case = family_case(judge.rng(), "peaked", "float64")
    got = attention.run_attention(submission, judge, case, "float64")
    attention.judge_attention(judge, case, got, "blockwise_attention, float64")


@check("attention-masks")
def test_negative_scale_leaves_the_mask(submission: Submission, judge: Judge) -> None:
    """A masked score stays -inf whatever the scale is."""
    rng = judge.rng()
    q, k, v = (rng.standard_normal((rows, 12)) for rows in (21, 33, 33))
    case = attention.Case(q, k, v + 1, block=7, causal=True, scale=-0.5)
    got = attention.run_attention(submission, judge, case, "causal, scaled")
    attention.judge_attention(judge, case, got, "blockwise_attention, causal, scaled")


SHAPES = ((19, 53), (41, 17), (24, 24), (1, 30), (33, 8))


@check("attention-masks")
@pytest.mark.parametrize(("q_len", "k_len"), SHAPES, ids=[f"{q}x{k}" for q, k in SHAPES])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_causal_mask_is_aligned_bottom_right(
    submission: Submission, judge: Judge, q_len: int, k_len: int, dtype: str
) -> None:
    """More keys than queries, more queries than keys (rows without a key), square; blocks of 7, some wholly masked."""
    rng = judge.rng()
    q, k, v = (rng.standard_normal((rows, 12)) for rows in (q_len, k_len, k_len))
    case = attention.Case(q.astype(dtype), k.astype(dtype), (v + 1).astype(dtype), block=7, causal=True)
    got = attention.run_attention(submission, judge, case, "causal")
    attention.judge_attention(judge, case, got, "blockwise_attention, causal")


# Exactness


def exact_rows(rng: np.random.Generator) -> np.ndarray:
    """109 entries a row: spreads, rises and falls beyond exp's range, -inf here and there and everywhere.

    In the last 24 of the 34 rows the reference grows by 3 and more, up to three times, and the old terms still count.
    """
    x = rng.standard_normal((10, 109)) * np.array([1, 3, 30, 300, 1, 1, 1, 1, 1, 1])[:, None]
    ramp = np.linspace(-1, 1, 109)
    x[4] += ramp * 900
    x[5] -= ramp * 900
    x[6] += ramp * 20
    x[7, rng.random(109) < 0.5] = -np.inf
    x[8, :50] = -np.inf
    x[9] = -np.inf
    return np.concatenate([x, exact.stairs(rng, 24, 109)])


@check("exact-bits")
def test_exact_statistics_do_not_depend_on_the_blocking(submission: Submission, judge: Judge) -> None:
    """Widths 1, N, N + 1, primes and a random mixture: the same reference and the same 64 bits of l."""
    rng = judge.rng()
    x = exact_rows(rng)
    _, *whole = exact.one_shot(judge, submission.call("exact_softmax", x), x)
    runs = []
    for widths in ((1,), (7,), (53,), (109,), (110,), tuple(int(w) for w in rng.integers(1, 40, 12))):
        blocks = streams.cut(x, widths)
        result = streams.run_stream(submission, judge, "exact_softmax_stats", blocks)
        runs.append((blocks, exact.stats_pair(judge, result, len(x), "exact_softmax_stats")))
    exact.judge_bits(judge, x, runs, (whole[0], whole[1]))


@check("exact-bits")
def test_exact_stream_is_not_gathered(submission: Submission, judge: Judge) -> None:
    """Exactness must not be bought with memory."""
    long = streams.LongStream.draw(judge)
    stream = submission.host(streams.BlockStream(long.blocks), streams.BlockStream.METHODS)
    measured = submission.measured_call("exact_softmax_stats", stream)
    exact.stats_pair(judge, measured.value, len(long.wide), "exact_softmax_stats")
    streams.judge_peak(judge, measured.peak_bytes, "exact_softmax_stats")


@check("exact-truth")
def test_exact_statistics_are_right(submission: Submission, judge: Judge) -> None:
    """150 entries a row, near 0, around +-1e3 and +-6e4 and spread over exp's whole range, against 50 digits."""
    rng = judge.rng()
    x = rng.standard_normal((6, 150))
    x += np.array([0, 1e3, -1e3, 6e4, -6e4, 0])[:, None]
    x[5] = rng.uniform(-700, 700, 150)
    p, *whole = exact.one_shot(judge, submission.call("exact_softmax", x), x)
    exact.judge_truth(judge, x, (whole[0], whole[1]), "exact_softmax")
    blocks = streams.cut(x, (32,))
    result = streams.run_stream(submission, judge, "exact_softmax_stats", blocks)
    exact.judge_truth(judge, x, exact.stats_pair(judge, result, 6, "exact_softmax_stats"), "exact_softmax_stats")
    states.judge_softmax(judge, x, -1, p, "the p of exact_softmax")


# Artifacts


@check("table-numbers")
def test_table_is_what_the_script_measures(submission: Submission, judge: Judge) -> None:
    """make_table() runs again; file and run agree, and both lie near what emulated kernels measure."""
    raw = submission.read_file("tolerance.csv")
    if raw is None:
        judge.fail("tolerance.csv is missing.")
    try:
        written = table.read_table(raw)
        again = table.table_of(submission.call("make_table", module="tolerance"))
    except table.TableError as error:
        judge.fail(f"tolerance.csv, or the table that make_table returns: {error}.")
    table.judge_tables(judge, written, again)


@check("table-numbers")
def test_measure_works_off_the_grid(submission: Submission, judge: Judge) -> None:
    """A point that no table holds: the numbers are measured, not remembered."""
    rng = judge.rng()
    point = ("bfloat16", "working", int(rng.integers(20, 60)), int(rng.integers(200, 500)))
    try:
        got = table.measured_point(submission.call("measure", *point, module="tolerance"))
    except table.TableError as error:
        judge.contract(f"{error}.")
    wrong = table.implausible({point: got}, {point: table.expected_at(point)}, judge.thresholds["factor"])
    if wrong:
        judge.fail(f"measure off the grid: {wrong}.")


@check("tolerance-plot")
def test_plot_is_a_picture_of_something(submission: Submission, judge: Judge) -> None:
    """A whole PNG of sufficient size that is neither blank nor noise."""
    raw = submission.read_file("tolerance.png")
    if raw is None:
        judge.fail("tolerance.png is missing.")
    try:
        facts = inspect_png(raw)
    except PngError as error:
        judge.fail(f"tolerance.png can't be read: {error}.")
    need = judge.thresholds
    if facts.width < need["min_width"] or facts.height < need["min_height"]:
        judge.fail(f"tolerance.png is {facts.width} x {facts.height} pixels; too small to read.")
    if facts.distinct_rows < need["min_rows"] or not need["min_ink"] <= facts.ink <= need["max_ink"]:
        judge.fail("tolerance.png shows nothing that looks like lines and axes.")


# kept-from-students-23d766d6f134fdc4

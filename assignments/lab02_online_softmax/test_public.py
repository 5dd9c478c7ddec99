"""Public checks of lab02."""

from __future__ import annotations

import numpy as np
import pytest

from grader.judge import Judge, Submission, check
from grader.judge.softmax import attention, exact, states, streams, table


@check("softmax")
@pytest.mark.parametrize(("dtype", "axis"), [("float64", 1), ("float32", -1), ("float16", 0)])
def test_softmax_matches_along_any_axis(submission: Submission, judge: Judge, dtype: str, axis: int) -> None:
    """Scores up to a few hundred (a few thousand in float64), some masked, one slice wholly masked."""
    spread = {"float64": 1000.0, "float32": 120.0, "float16": 30.0}[dtype]
    x = (judge.rng().standard_normal((5, 23, 7)) * spread).astype(dtype)
    x[1:3, 4:9, 2] = -np.inf
    masked = [3, 11, 4]
    x[tuple(slice(None) if i == axis % 3 else masked[i] for i in range(3))] = -np.inf
    got = submission.call("softmax", x, axis=axis)
    states.judge_softmax(judge, x, axis, got, f"softmax along axis {axis}")


@check("stream-stats")
@pytest.mark.parametrize(("dtype", "widths"), [("float64", (7, 16, 3)), ("float32", (32,)), ("float64", (1,))])
def test_stream_statistics_match_the_whole_row(
    submission: Submission, judge: Judge, dtype: str, widths: tuple[int, ...]
) -> None:
    """Rows of spread 3, rising and falling, so that the maximum moves late, early and often; one far below zero."""
    rng = judge.rng()
    length = 203 if widths[0] > 1 else 67
    x = rng.standard_normal((6, length)) * 3
    x[1] += np.linspace(-60, 60, length)
    x[2] += np.linspace(60, -60, length)
    x[3, 3 * length // 4 :] += 8
    x[4] -= 40
    blocks = streams.cut(x.astype(dtype), widths)
    result = streams.run_stream(submission, judge, "online_softmax_stats", blocks)
    streams.judge_stats(judge, blocks, result, f"online_softmax_stats, blocks of {widths[0]}")


@check("merge")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_merge_of_two_halves_is_the_whole(submission: Submission, judge: Judge, dtype: str) -> None:
    """Two sets of 40 and 29 keys; in half of the rows the larger maximum is on the left, in half on the right."""
    rng = judge.rng()
    scores, v = rng.standard_normal((8, 69)) * 2, rng.standard_normal((69, 5)) + 1
    scores[:4, :40] += 3
    scores[4:, 40:] += 3
    a, b = (states.state_of(scores[:, part], v[part], np.dtype(dtype)) for part in (slice(40), slice(40, None)))
    got = states.checked_state(judge, submission.call("merge", a, b), a, "merge")
    states.judge_merge(judge, a, b, got, states.merged(a, b), "merge")


@check("merge")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_merge_of_far_states_stays_finite(submission: Submission, judge: Judge, dtype: str) -> None:
    """Maxima far apart and far from zero, beyond what exp can follow in that dtype; either side the larger one."""
    a, b = states.far_states(judge.rng(), np.dtype(dtype))
    got = states.checked_state(judge, submission.call("merge", a, b), a, "merge of far states")
    states.judge_merge(judge, a, b, got, states.merged(a, b), "merge of far states")


@check("attention")
@pytest.mark.parametrize(
    ("block", "scale"),
    [(32, None), (1, None), (500, 0.5), (29, 0.75), (32, 0.0), (32, -0.25)],
    ids=["ragged", "single", "one-block", "scaled", "zero", "negative"],
)
def test_attention_matches_float64(submission: Submission, judge: Judge, block: int, scale: float | None) -> None:
    """One head, 37 queries, 203 keys; the scores rise along the keys, so that the maximum moves in every block."""
    rng = judge.rng()
    q, k, v = rng.standard_normal((37, 24)), rng.standard_normal((203, 24)), rng.standard_normal((203, 24)) + 0.5
    q[:, 0] = 2.0
    k[:, 0] += np.linspace(-6, 6, 203)
    case = attention.Case(q, k, v, block, scale=scale)
    what = f"blockwise_attention, block {block}, scale {scale}"
    attention.judge_attention(judge, case, attention.run_attention(submission, judge, case, what), what)


@check("attention-causal")
@pytest.mark.parametrize(("q_len", "k_len"), [(9, 9), (5, 14), (14, 5)], ids=["square", "more-keys", "more-queries"])
def test_causal_attention_of_a_few_rows(submission: Submission, judge: Judge, q_len: int, k_len: int) -> None:
    """4 keys a block; with more queries than keys the first rows see none."""
    rng = judge.rng()
    q, k, v = rng.standard_normal((q_len, 6)), rng.standard_normal((k_len, 6)), rng.standard_normal((k_len, 6)) + 1
    case = attention.Case(q, k, v, block=4, causal=True)
    what = f"blockwise_attention, causal, {q_len} queries, {k_len} keys"
    attention.judge_attention(judge, case, attention.run_attention(submission, judge, case, what), what)


@check("empty")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("q_len", "k_len"), [(0, 5), (5, 0), (0, 0)], ids=["no-queries", "no-keys", "nothing"])
def test_attention_of_nothing(submission: Submission, judge: Judge, q_len: int, k_len: int, causal: bool) -> None:
    """No queries: empty results. No keys: O = 0 and LSE = -inf, as of rows that see no key."""
    rng = judge.rng()
    q, k, v = (rng.standard_normal((rows, 6)) for rows in (q_len, k_len, k_len))
    case = attention.Case(q, k, v, block=4, causal=causal)
    what = f"blockwise_attention, {q_len} queries, {k_len} keys"
    o, lse = attention.run_attention(submission, judge, case, what)
    if o.any() or not np.isneginf(lse).all():
        judge.fail(f"{what}: O must be 0 and LSE -inf in every row.")


@check("exact-small")
def test_exact_statistics_keep_their_bits(submission: Submission, judge: Judge) -> None:
    """61 entries a row, streamed one at a time, three at a time and all at once; the reference often grows."""
    rng = judge.rng()
    x = rng.standard_normal((5, 61)) * np.array([1, 4, 20, 60, 1])[:, None]
    x[1] = np.sort(x[1])
    x[2, :20] = -np.inf
    x[4] = -np.inf
    x = np.concatenate([x, exact.stairs(rng, 8, 61)])
    _, *whole = exact.one_shot(judge, submission.call("exact_softmax", x), x)
    runs = []
    for width in (1, 3, 61):
        blocks = streams.cut(x, (width,))
        result = streams.run_stream(submission, judge, "exact_softmax_stats", blocks)
        runs.append((blocks, exact.stats_pair(judge, result, len(x), "exact_softmax_stats")))
    exact.judge_bits(judge, x, runs, (whole[0], whole[1]))


@check("table-format")
def test_table_has_every_point_of_the_grid(submission: Submission, judge: Judge) -> None:
    """tolerance.csv: the columns, 36 points, each once, errors finite and not negative."""
    raw = submission.read_file("tolerance.csv")
    if raw is None:
        judge.fail("tolerance.csv is missing. Run `python tolerance.py` in the lab's folder and hand the file in.")
    try:
        table.read_table(raw)
    except table.TableError as error:
        judge.fail(f"tolerance.csv: {error}.")

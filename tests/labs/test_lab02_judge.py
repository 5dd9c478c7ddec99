"""lab02's judge: exactness holds as the handout says, comparisons reject what they must, artifacts are read warily."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest

from grader.judge.png import PngError, inspect_png
from grader.judge.softmax import attention, exact, mistakes, states, streams, table

WIDTHS = (1, 7, 53, 211, 212, 64)
ROWS = 10
LENGTH = 211


def study_rows(seed: int) -> np.ndarray:
    """Ten inputs: spreads 1 to 300, ramps beyond exp's range, -inf scattered, leading, everywhere."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, LENGTH)) * np.array([1, 3, 30, 300, 1, 1, 1, 1, 1, 1])[:, None]
    ramp = np.linspace(-1, 1, LENGTH)
    x[4] += 1000 * ramp
    x[5] -= 1000 * ramp
    x[6] += 375 * ramp
    x[7, rng.random(LENGTH) < 0.5] = -np.inf
    x[8, :100] = -np.inf
    x[9] = -np.inf
    return x


# The exactness study


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(5))
def test_power_of_two_rescale_bits_do_not_depend_on_the_width(seed: int, width: int) -> None:
    x = study_rows(seed)
    reference, row_sum = exact.stream_sums([x])
    got_reference, got_sum = exact.stream_sums(streams.cut(x, (width,)))
    np.testing.assert_array_equal(got_reference, reference)
    np.testing.assert_array_equal(got_sum.view(np.uint64), row_sum.view(np.uint64))


@pytest.mark.parametrize("name", sorted(exact.SUMS))
def test_other_ways_of_adding_bits_depend_on_the_width(name: str) -> None:
    x = study_rows(0)
    whole = exact.stream_sums([x])[1]
    streamed = exact.stream_sums(streams.cut(x, (53,)), exact.SUMS[name])[1]
    assert (streamed[:9] != whole[:9]).sum() >= 2
    np.testing.assert_allclose(streamed, whole, rtol=1e-13)


def test_classic_rescale_bits_depend_on_the_width() -> None:
    x = study_rows(0)[:4]
    sums = [streams.recurrence(streams.cut(x, (width,)))[1] for width in (1, 7, LENGTH)]
    assert all((a != b).any() for a, b in ((sums[0], sums[1]), (sums[1], sums[2])))
    np.testing.assert_allclose(sums[0], sums[2], rtol=1e-14)


@pytest.mark.parametrize("centre", [0.0, 1e3, -1e3, 6e4, -6e4, 1e5])
def test_cody_waite_split_is_within_16_ulp_and_others_are_not(centre: float) -> None:
    x = np.random.default_rng(3).standard_normal((2, 150)) + centre
    truth = [exact.decimal_sum(row) for row in x]

    def worst(cut: exact.Split) -> float:
        pairs = zip(*exact.stream_sums([x], cut=cut), truth, strict=True)
        return max(abs(exact.signed_error_ulp(int(r), float(s), t)) for r, s, t in pairs)

    assert worst(exact.split) <= 16
    if centre:
        assert worst(exact.split_base_two) > 50
        assert worst(exact.split_single) > 50


def test_decimal_sum_matches_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath")
    row = np.random.default_rng(1).uniform(-700, 700, 50)
    with mpmath.workdps(60):
        ours, theirs = mpmath.mpf(str(exact.decimal_sum(row))), mpmath.fsum(mpmath.exp(mpmath.mpf(x)) for x in row)
        assert abs(ours / theirs - 1) < mpmath.mpf(10) ** -45


# Comparisons


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0, 0.0])
def test_ulp_error_of_a_wrong_value_is_large(bad: float) -> None:
    want = np.array([1.0, 3.0])
    assert mistakes.ulp_error(np.array([1.0, bad]), want) > 1e6
    assert mistakes.ulp_error(want.copy(), want) == 0


def test_ulp_error_counts_units_in_the_dtype_of_the_answer() -> None:
    want = np.array([1.0])
    assert mistakes.ulp_error(np.nextafter(np.float32(1), np.float32(2), dtype=np.float32).reshape(1), want) == 1
    assert mistakes.ulp_error(np.nextafter(want, 2), want) == 1


def test_diagnose_of_an_unknown_error_is_none() -> None:
    blocks = streams.cut(np.random.default_rng(0).standard_normal((4, 50)), (16,))
    want = streams.stats_truth(np.concatenate(blocks, axis=1))
    got = (want[0], want[1] * np.array([1.3, 0.8, 1.1, 2.0]))
    assert mistakes.diagnose(streams.stream_mistakes(blocks), got, want) is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("family", ["normal", "peaked"])
def test_attention_breaches_accepts_kernels_and_rejects_means_and_zeros(dtype: str, family: str) -> None:
    rng = np.random.default_rng(5)
    spread = 4 if family == "peaked" else 1
    q, k, v = (rng.standard_normal((rows, 32)) for rows in (19, 203, 203))
    case = attention.Case((q * spread).astype(dtype), k.astype(dtype), v.astype(dtype), block=48)
    want = attention.truth(case)
    for width in (16, 48, 203):
        assert attention.breaches(case, attention.emulate(case, width=width), want) == []
    mean = np.broadcast_to(case.v.mean(axis=0), want[0].shape)
    for wrong in (np.zeros_like(want[0]), mean, want[0] * 1.02, np.full_like(want[0], np.nan)):
        assert attention.breaches(case, (wrong.astype(dtype), want[1].astype(np.float32)), want)
    assert attention.breaches(case, (want[0].astype(dtype), want[1] + 0.01), want)


def test_merged_empty_state_is_the_identity() -> None:
    rng = np.random.default_rng(0)
    state = states.state_of(rng.standard_normal((5, 9)), rng.standard_normal((9, 3)), np.dtype(np.float64))
    empty = states.empty_state(5, 3, np.dtype(np.float64))
    for got in (states.merged(state, empty), states.merged(empty, state)):
        assert states.state_error_ulp(tuple(got), state) == 0
    assert states.state_error_ulp(tuple(states.merged(empty, empty)), empty) == 0


# The table


def csv_of(change: Callable[[list[list[str]]], None] = lambda rows: None) -> bytes:
    rows = [list(table.COLUMNS), *([*map(str, point), "1e-3", "1e-4", "1e-6"] for point in table.GRID)]
    change(rows)
    return "\n".join(",".join(row) for row in rows).encode()


def test_read_table_of_a_whole_grid_has_every_point() -> None:
    assert set(table.read_table(csv_of())) == set(table.GRID)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0].reverse(), "first line"),
        (lambda rows: rows.pop(5), "is missing"),
        (lambda rows: rows.append(rows[3]), "more than"),
        (lambda rows: rows.__setitem__(5, rows[4]), "there twice"),
        (lambda rows: rows[4].__setitem__(0, "float8"), "not on the grid"),
        (lambda rows: rows[4].__setitem__(4, "nan"), "not finite"),
        (lambda rows: rows[4].__setitem__(5, "-1"), "negative"),
        (lambda rows: rows[4].__setitem__(6, "=cmd()"), "text where a number"),
        (lambda rows: rows[4].pop(), "lacks a column"),
    ],
)
def test_read_table_of_a_broken_file_names_the_fault(change: Callable[[list[list[str]]], None], message: str) -> None:
    with pytest.raises(table.TableError, match=message):
        table.read_table(csv_of(change))


def test_implausible_table_of_one_value_everywhere_is_found() -> None:
    expected = {point: table.expected_at(point) for point in table.sample_points(np.random.default_rng(0))}
    assert table.implausible(table.read_table(csv_of()), expected, 3.0)


# Pictures


def png(rows: np.ndarray, *, spoil: bool = False, declared: int | None = None) -> bytes:
    """A grey PNG of `rows` (height, width) uint8, unfiltered."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body) ^ spoil)

    height, width = rows.shape
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, declared or height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_inspect_png_tells_blank_from_noise() -> None:
    blank = inspect_png(png(np.zeros((300, 500), np.uint8)))
    noise = inspect_png(png(np.random.default_rng(0).integers(0, 256, (300, 500), dtype=np.uint8)))
    assert (blank.width, blank.height, blank.ink, blank.distinct_rows) == (500, 300, 0.0, 1)
    assert noise.ink > 0.9
    assert noise.distinct_rows == 300


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a", "signature"),
        (png(np.zeros((3, 3), np.uint8))[:-6], "cut off|no end"),
        (png(np.zeros((3, 3), np.uint8), spoil=True), "damaged"),
        (png(np.zeros((3, 3), np.uint8), declared=9), "ends after"),
        (png(np.zeros((3, 3), np.uint8), declared=2**31), "header"),
    ],
)
def test_inspect_png_of_a_broken_file_says_why(data: bytes, message: str) -> None:
    with pytest.raises(PngError, match=message):
        inspect_png(data)


STREAMS = {
    "single columns": (np.zeros((6, 67)), (1,), [16, 16, 16, 16, 2, 1]),
    "by bytes": (np.zeros((8, 1001)), (50,), [2] * 10 + [1]),
    "large": (np.zeros((1024, 192)), (64,), [1, 1, 1]),
    "two": (np.zeros((2, 2)), (1,), [1, 1]),
    "one": (np.zeros((2, 2)), (2,), [1]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_block_stream_small_blocks_cross_together_and_the_last_alone(name: str) -> None:
    x, widths, expected = STREAMS[name]
    blocks = streams.cut(x, widths)
    stream = streams.BlockStream(blocks)
    crossed: list[np.ndarray] = []
    sizes = []
    while batch := stream.next_blocks():
        sizes.append(len(batch))
        crossed += batch
        assert stream.taken == len(crossed)
        assert len(batch) == 1 or sum(block.nbytes for block in batch) <= streams.BYTES_AT_ONCE
    assert sizes == expected
    assert [id(block) for block in crossed] == [id(block) for block in blocks]
    assert stream.next_blocks() == []


class Stopping:
    """Takes the first message of a stream and answers what is right for the whole."""

    def host(self, stream: streams.BlockStream, methods: tuple[str, ...]) -> streams.BlockStream:
        return stream

    def call(self, function: str, stream: streams.BlockStream) -> str:
        stream.next_blocks()
        return "right"


def test_run_stream_that_ends_before_the_last_block_fails() -> None:
    judge = JudgeThatRaises()
    with pytest.raises(AssertionError, match="stopped before the last of the 2 blocks"):
        streams.run_stream(Stopping(), judge, "f", [np.zeros((1, 1))] * 2)  # type: ignore[arg-type]
    assert streams.run_stream(Stopping(), judge, "f", [np.zeros((1, 1))]) == "right"  # type: ignore[arg-type]


class JudgeThatRaises:
    def fail(self, message: str) -> None:
        raise AssertionError(message)

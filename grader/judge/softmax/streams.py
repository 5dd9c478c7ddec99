"""Statistics of a stream of blocks: the hosted stream, the truth, known mistakes.

A stream is a list of blocks (rows, width); statistics are (rows,).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.memo import kept
from grader.judge.softmax.mistakes import (
    Array,
    Mistake,
    Pair,
    diagnose,
    expect_arrays,
    shift_of,
    statistics_dtype,
    ulp_error,
)
from grader.report.model import Diagnosis
from grader.sandbox.failures import SubmissionRaised

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

SENTINELS = (-1e4, -3e4, -65504.0, -1e5, -1e6, -1e9, -1e10, -1e20, -1e30, float(np.finfo(np.float32).min))

BLOCKS_AT_ONCE = 16
BYTES_AT_ONCE = 1 << 13
"""Small blocks cross together, up to so many: a message costs more than they do."""


class BlockStream:
    """A stream that the judge hosts: the worker iterates over it, and each block crosses once.

    Attributes:
        taken: blocks that have crossed so far.
    """

    METHODS = ("next_blocks",)

    def __init__(self, blocks: Sequence[Array]) -> None:
        self._blocks = blocks
        self.taken = 0

    def next_blocks(self) -> list[Array]:
        """The next block, or several small ones; nothing after the last.

        The last crosses by itself, so `taken` tells who stopped before it.
        """
        last = len(self._blocks) - 1
        stop = min(self.taken + 1, last + 1)
        size = sum(block.nbytes for block in self._blocks[self.taken : stop])
        while stop < min(last, self.taken + BLOCKS_AT_ONCE):
            size += self._blocks[stop].nbytes
            if size > BYTES_AT_ONCE:
                break
            stop += 1
        crossing = list(self._blocks[self.taken : stop])
        self.taken = stop
        return crossing


def run_stream(submission: Submission, judge: Judge, function: str, blocks: Sequence[Array]) -> object:
    """What `function` returns for a hosted stream of `blocks`; fails the check when it left blocks behind."""
    stream = BlockStream(blocks)
    result = submission.call(function, submission.host(stream, stream.METHODS))
    if stream.taken < len(blocks):
        judge.fail(f"{function} stopped before the last of the {len(blocks)} blocks of its stream.")
    return result


def cut(x: Array, widths: Sequence[int]) -> list[Array]:
    """Blocks of `x` (rows, n): the widths in turn, over and over, the last block ragged."""
    blocks, start, turn = [], 0, 0
    while start < x.shape[1]:
        width = widths[turn % len(widths)]
        blocks.append(np.ascontiguousarray(x[:, start : start + width]))
        start, turn = start + width, turn + 1
    return blocks


# Right answers


def stats_truth(x: Array) -> Pair:
    """(m, l) of each row of `x` (rows, n), float64; l is good to a unit in the last place."""
    return kept("stream statistics", x, lambda: _extended(x))


def _extended(x: Array) -> Pair:
    values = x.astype(np.float64)
    row_max = values.max(axis=1)
    terms = np.exp(values.astype(np.longdouble) - shift_of(row_max)[:, None])
    return row_max, terms.sum(axis=1).astype(np.float64)


def log_sum_exp(row_max: Array, row_sum: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.where(row_sum > 0, row_max + np.log(row_sum), -np.inf)


# Known mistakes with streams


def recurrence(
    blocks: Sequence[Array],
    *,
    start: float = -np.inf,
    rescale: Callable[[Array, Array], Array] | None = None,
    safe: bool = True,
    own_max: bool = False,
    rescale_new: bool = False,
    keep: Callable[[Array], Array] = lambda row_sum: row_sum,
) -> Pair:
    """The online recurrence in float64, with one part changed."""
    row_max = np.full(blocks[0].shape[0], start)
    row_sum = np.zeros(blocks[0].shape[0])
    for block in blocks:
        scores = block.astype(np.float64)
        new_max = np.maximum(row_max, scores.max(axis=1))
        shift = shift_of(new_max) if safe else new_max
        factor = np.exp(row_max - shift) if rescale is None else rescale(row_max, shift)
        base = shift_of(scores.max(axis=1)) if own_max else shift
        block_sum = np.exp(scores - base[:, None]).sum(axis=1)
        row_sum = keep(row_sum * factor + block_sum * (factor if rescale_new else 1))
        row_max = new_max
    return row_max, row_sum


def _quotient(dtype: np.dtype[Any]) -> Callable[[Array, Array], Array]:
    """exp(old) / exp(new) in the statistics dtype of `dtype`."""
    own = statistics_dtype(dtype)
    return lambda old, new: np.exp(old.astype(own)) / np.exp(new.astype(own))


def _unshifted(blocks: Sequence[Array]) -> list[Pair]:
    x = np.concatenate(blocks, axis=1)
    with np.errstate(over="ignore"):
        sums = np.exp(x.astype(statistics_dtype(x.dtype))).sum(axis=1)
    row_max = stats_truth(x)[0]
    return [(row_max, sums), (np.zeros_like(row_max), sums)]


def stream_mistakes(blocks: Sequence[Array]) -> list[Mistake]:
    dtype = blocks[0].dtype

    def rounded(row_sum: Array) -> Array:
        return row_sum.astype(dtype).astype(np.float64)

    full = [block for block in blocks if block.shape[1] == blocks[0].shape[1]]
    return [
        Mistake(
            "rescale-missing",
            "l equals a sum in which the old terms were never brought to the new maximum.",
            lambda: [recurrence(blocks, rescale=lambda old, new: np.ones_like(old))],
        ),
        Mistake(
            "rescale-of-exponentials",
            "The factor is exp(old max) / exp(new max): far from zero either over- or underflows.",
            lambda: [recurrence(blocks, rescale=_quotient(dtype))],
        ),
        Mistake(
            "rescale-inverted",
            "l equals a sum rescaled by exp(new max - old max): the sign of the exponent is turned round.",
            lambda: [
                recurrence(blocks, rescale=lambda old, new: np.exp(new - old)),
                recurrence(blocks, rescale=lambda old, new: np.where(np.isneginf(old), 0, np.exp(new - old))),
            ],
        ),
        Mistake(
            "new-terms-rescaled",
            "The new block's terms are multiplied by exp(old max - new max) too: only the old sum needs it.",
            lambda: [recurrence(blocks, rescale_new=True)],
        ),
        Mistake(
            "block-max-kept",
            "l equals a sum in which each block's terms stay relative to that block's own maximum.",
            lambda: [recurrence(blocks, own_max=True)],
        ),
        Mistake(
            "nan-on-all-masked",
            "The NaNs are those of -inf - (-inf): a maximum of -inf was subtracted from scores of -inf.",
            lambda: [recurrence(blocks, safe=False)],
        ),
        Mistake(
            "sentinel-finite",
            "The result is that of a finite number standing in for -inf at the start.",
            lambda: [recurrence(blocks, start=value) for value in SENTINELS],
        ),
        Mistake(
            "no-max-subtraction",
            "l equals the sum of exp(x) itself: the maximum was not subtracted.",
            lambda: _unshifted(blocks),
        ),
        Mistake(
            "sum-in-input-dtype",
            f"l equals a sum that was rounded to {dtype.name} after each block.",
            lambda: [recurrence(blocks, keep=rounded)],
        ),
        Mistake(
            "last-block-dropped",
            "The result is that of the stream without its last blocks.",
            lambda: [stats_truth(np.concatenate(part, axis=1)) for part in (full, blocks[:-1]) if part],
        ),
    ]


def _maxima(blocks: Sequence[Array]) -> list[Mistake]:
    """What m may be in place of the maximum, whatever l is relative to."""
    x = np.concatenate(blocks, axis=1).astype(np.float64)
    maxima = np.stack([block.astype(np.float64).max(axis=1, initial=-np.inf) for block in blocks])
    row_max = maxima.max(axis=0)
    filled = np.where(np.isneginf(x), np.inf, x)
    found: list[tuple[str, str, Callable[[], Sequence[Array]]]] = [
        ("maximum-of-last-block", "m is the last block's maximum: it isn't compared with that of the blocks before.",
         lambda: [maxima[-1]]),
        ("maximum-of-first-block", "m is the first block's maximum: later blocks don't raise it.", lambda: [maxima[0]]),
        ("maximum-one-block-late", "m is the maximum before the last block: the old one is returned, not the new one.",
         lambda: [maxima[:-1].max(axis=0, initial=-np.inf)]),
        ("maximum-of-all-rows", "m is one maximum for all rows; each row has its own.",
         lambda: [np.full_like(row_max, row_max.max())]),
        ("maximum-starts-at-0", "m is never below 0: the running maximum starts at 0, not at -inf.",
         lambda: [np.maximum(row_max, 0)]),
        ("masked-maximum-0", "m is 0 in rows of nothing but -inf: what is subtracted there was returned as m.",
         lambda: [shift_of(row_max)]),
        ("maximum-is-log-sum-exp", "m holds m + log l, the log-sum-exp.", lambda: [log_sum_exp(*_extended(x))]),
        ("maximum-of-magnitudes", "m is the largest |x|, not the largest x.",
         lambda: [np.abs(filled).max(axis=1), np.where(np.isneginf(x), 0, np.abs(x)).max(axis=1)]),
        ("maximum-is-minimum", "m is the smallest entry, not the largest.", lambda: [filled.min(axis=1)]),
        ("maximum-rounded", "m was rounded to a narrower dtype on the way.",
         lambda: [row_max.astype(narrow).astype(np.float64) for narrow in (np.float16, np.float32)]),
        ("sentinel-finite", "The result is that of a finite number standing in for -inf at the start.",
         lambda: [np.maximum(row_max, value) for value in SENTINELS]),
    ]  # fmt: skip
    return [Mistake(name, text, functools.partial(_alone, results)) for name, text, results in found]


def _alone(results: Callable[[], Sequence[Array]]) -> list[tuple[Array, ...]]:
    return [(row_max,) for row_max in results()]


def _with_maximum(row_max: Array, mistakes: Sequence[Mistake]) -> list[Mistake]:
    """The mistakes, with those results whose m is exactly `row_max`: no step rounds a maximum."""

    def agreeing(mistake: Mistake) -> list[tuple[Array, ...]]:
        same = functools.partial(np.array_equal, row_max, equal_nan=True)
        return [result for result in mistake.results() if same(result[0].astype(row_max.dtype))]

    return [replace(mistake, results=functools.partial(agreeing, mistake)) for mistake in mistakes]


def judge_stats(judge: Judge, blocks: Sequence[Array], result: object, what: str, *, truth: Pair | None = None) -> None:
    """Hold (m, l) of a stream to the truth: m exactly, l to the check's `ulp`.

    Ends the check through `judge` when the types, shapes or values are wrong.

    Args:
        truth: known already; by default it is computed from the whole stream in extended precision.
    """
    dtype = statistics_dtype(blocks[0].dtype)
    rows = blocks[0].shape[0]
    row_max, row_sum = expect_arrays(judge, result, ("m", "l"), [(rows,), (rows,)], [dtype, dtype], what)
    want_max, want_sum = truth or stats_truth(np.concatenate(blocks, axis=1))
    max_error, sum_error = ulp_error(row_max, want_max.astype(dtype)), ulp_error(row_sum, want_sum)
    judge.measure("l_error_ulp", sum_error)
    allowed = judge.thresholds["ulp"]
    if max_error == 0 and sum_error <= allowed:
        return
    diagnosis = diagnose(_with_maximum(row_max, stream_mistakes(blocks)), (row_max, row_sum), (want_max, want_sum))
    if diagnosis is None and max_error:
        diagnosis = diagnose(_with_maximum(row_max, _maxima(blocks)), (row_max,), (want_max,))
    wrong = "m differs from the maximum" if max_error else f"l is off by {sum_error:.3g} ulp, allowed {allowed:g}"
    judge.fail(f"{what}: {wrong} ({dtype.name}).", diagnosis=diagnosis)


# Warnings and memory


def call_quietly(submission: Submission, judge: Judge, function: str, *args: Any, **options: Any) -> object:
    """What `function` returns; fails the check when it emits a warning on the way."""
    try:
        return submission.call(function, *args, forbid_warnings=True, **options)
    except SubmissionRaised as raised:
        if not raised.type_name.endswith("Warning"):
            raise
        text = "An invalid operation (-inf - (-inf), 0 / 0 or log 0) was carried out on a masked row."
        diagnosis = Diagnosis(id="warning-emitted", text=text)
        judge.fail(f"{function} emits a {raised.type_name} on masked input.", diagnosis=diagnosis)


@dataclass(frozen=True, eq=False)
class LongStream:
    """A float64 stream of `stream_mib` in blocks of `block_mib`, many rows and few columns.

    The blocks are windows of one random matrix whose columns rise, each a column further than the last, so that a
    stream costs the judge the memory of a few blocks.

    Attributes:
        wide: (rows, width + count - 1).
    """

    wide: Array
    width: int
    count: int

    @classmethod
    def draw(cls, judge: Judge) -> LongStream:
        rows = 1024
        count = round(judge.thresholds["stream_mib"] / judge.thresholds["block_mib"])
        width = round(judge.thresholds["block_mib"] * (1 << 20) / (8 * rows))
        columns = width + count - 1
        return cls(judge.rng().standard_normal((rows, columns)) + 0.05 * np.arange(columns), width, count)

    @property
    def blocks(self) -> list[Array]:
        return [self.wide[:, turn : turn + self.width] for turn in range(self.count)]

    def statistics(self) -> Pair:
        """(m, l) of each row, float64; l is good to some units in the last place."""
        return kept("long stream", self, lambda: recurrence(self.blocks))


def judge_peak(judge: Judge, peak_bytes: int, function: str) -> None:
    """Hold the peak of what a call allocated to the check's `peak_mib`."""
    peak_mib = peak_bytes / (1 << 20)
    judge.measure("peak_mib", round(peak_mib, 1))
    allowed = judge.thresholds["peak_mib"]
    if peak_mib > allowed:
        gathered = peak_mib > 0.9 * judge.thresholds["stream_mib"]
        text = "The call held as much memory as the whole stream takes: its blocks were gathered, not used up."
        judge.fail(
            f"{function} held {peak_mib:.0f} MiB at its peak; a few blocks take less than {allowed:g} MiB.",
            diagnosis=Diagnosis(id="gathers-stream", text=text) if gathered else None,
        )

"""One head of blockwise attention (lab02): oracle, comparison, known mistakes.

The oracle works in float64 on the inputs as rounded to the working dtype. What an answer below float64 may be off by
comes from emulated kernels on the same input, never from a fixed tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from grader.judge.compare import absolute_error
from grader.judge.memo import kept
from grader.judge.oracle import AttentionCase, RowView
from grader.judge.softmax.mistakes import (
    Array,
    Mistake,
    Pair,
    diagnose,
    expect_arrays,
    shift_of,
    statistics_dtype,
)
from grader.judge.softmax.streams import SENTINELS, log_sum_exp
from grader.judge.tolerance import forward_bounds

if TYPE_CHECKING:
    from grader.judge.recorder import Judge
    from grader.sandbox.submission import Submission

FLOAT64_ULPS = 256.0
"""Allowed in float64, relative to the largest |V| and |LSE|: a few hundred keys, in any order."""


@dataclass(frozen=True, eq=False)
class Case:
    """What `blockwise_attention` is called with.

    Attributes:
        q: (Sq, d). k, v: (Sk, d). All of one dtype.
        block: keys a step. scale: None means 1/sqrt(d).
    """

    q: Array
    k: Array
    v: Array
    block: int
    causal: bool = False
    scale: float | None = None

    @property
    def factor(self) -> float:
        return 1.0 / float(np.sqrt(self.q.shape[1])) if self.scale is None else self.scale

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.q.dtype

    def visible(self, *, offset: int | None = None) -> Array:
        """(Sq, Sk): row i sees j <= i + offset; by default bottom-right, everything when not causal."""
        q_len, k_len = self.q.shape[0], self.k.shape[0]
        if not self.causal:
            return np.ones((q_len, k_len), dtype=bool)
        offset = k_len - q_len if offset is None else offset
        return np.asarray(np.arange(k_len)[None, :] <= np.arange(q_len)[:, None] + offset)


def scores_of(case: Case, factor: float | None = None) -> Array:
    factor = case.factor if factor is None else factor
    return np.asarray(case.q.astype(np.float64) @ case.k.astype(np.float64).T * factor)


def attend(scores: Array, visible: Array, v: Array, hidden: float = -np.inf) -> Pair:
    """(O, LSE) in float64 from scores, with `hidden` in the place of what is masked."""
    masked = np.where(visible, scores, hidden)
    row_max = masked.max(axis=1, initial=-np.inf)
    weights = np.exp(masked - shift_of(row_max)[:, None])
    row_sum = weights.sum(axis=1)
    o = (weights @ v.astype(np.float64)) / np.where(row_sum == 0, 1, row_sum)[:, None]
    return o, log_sum_exp(row_max, row_sum)


def truth(case: Case) -> Pair:
    return kept("softmax attention", case, lambda: attend(scores_of(case), case.visible(), case.v))


def emulate(
    case: Case,
    *,
    width: int | None = None,
    weights_dtype: np.dtype[Any] | None = None,
    state_dtype: np.dtype[Any] | None = None,
    scores_dtype: np.dtype[Any] | None = None,
    rescale_output: bool = True,
    rescale_sum: bool = True,
    rescale_new: bool = False,
    rescale_base: float = np.e,
    divide_always: bool = False,
    sum_dtype: np.dtype[Any] | None = None,
) -> Pair:
    """A tiled kernel in the statistics dtype: what it rounds, and what it forgets, can be chosen.

    Args:
        width: keys a step, the case's own by default.
        weights_dtype, state_dtype, scores_dtype: what P, (l, o) after each block, and S are rounded to.
        sum_dtype: what a block's weights are added up in.
        rescale_new: the new block's terms are multiplied by the factor too. rescale_base: of the factor's power.
        divide_always: o is divided by l after every block.
    """
    dtype = statistics_dtype(case.dtype)
    width = width or case.block
    q, visible = case.q.astype(dtype), case.visible()
    row_max = np.full(q.shape[0], -np.inf, dtype)
    row_sum = np.zeros(q.shape[0], dtype)
    acc = np.zeros((q.shape[0], case.v.shape[1]), dtype)
    for start in range(0, case.k.shape[0], width):
        tile = slice(start, start + width)
        scores = q @ case.k[tile].astype(dtype).T * dtype.type(case.factor)
        if scores_dtype is not None:
            scores = scores.astype(scores_dtype).astype(dtype)
        scores = np.where(visible[:, tile], scores, dtype.type(-np.inf))
        new_max = np.maximum(row_max, scores.max(axis=1))
        shift = shift_of(new_max).astype(dtype)
        rescale = np.exp((row_max - shift) * dtype.type(np.log(rescale_base)))
        weights = np.exp(scores - shift[:, None])
        weights = weights * rescale[:, None] if rescale_new else weights
        narrow = weights if weights_dtype is None else weights.astype(weights_dtype).astype(dtype)
        added = weights if sum_dtype is None else weights.astype(sum_dtype)
        row_sum = row_sum * (rescale if rescale_sum else dtype.type(1)) + added.sum(axis=1, dtype=sum_dtype).astype(
            dtype
        )
        acc = acc * (rescale[:, None] if rescale_output else dtype.type(1)) + narrow @ case.v[tile].astype(dtype)
        if divide_always:
            acc = acc / np.where(row_sum == 0, 1, row_sum)[:, None]
        if state_dtype is not None:
            row_sum, acc = row_sum.astype(state_dtype).astype(dtype), acc.astype(state_dtype).astype(dtype)
        row_max = new_max
    o = acc.astype(case.dtype)
    if not divide_always:
        o = (acc / np.where(row_sum == 0, 1, row_sum)[:, None]).astype(case.dtype)
    return o, log_sum_exp(row_max, row_sum).astype(dtype)


# Comparison


def breaches(case: Case, got: Pair, want: Pair) -> list[str]:
    """Every rule that (O, LSE) breaks: units in the last place for float64, emulated kernels below (`tolerance.py`)."""
    if case.dtype == np.float64:
        allowed = FLOAT64_ULPS * float(np.finfo(np.float64).eps)
        finite = np.abs(want[1][np.isfinite(want[1])])
        peaks = (float(np.abs(case.v).max()), max(1.0, float(finite.max(initial=0.0))))
        worst = [float(absolute_error(g, w).max()) / peak for g, w, peak in zip(got, want, peaks, strict=True)]
        return [
            f"{name} is off by {error:.2e} of its largest value, allowed {allowed:.2e}"
            for name, error in zip(("O", "LSE"), worst, strict=True)
            if not error <= allowed
        ]
    q, k, v = (x[None, None] for x in (case.q, case.k, case.v))
    view = RowView.whole(AttentionCase(q, k, v, case.dtype.name, causal=case.causal, scale=case.scale))
    bounds = forward_bounds(view, (want[0][None], want[1][None]))
    return [str(breach) for breach in bounds.breaches(got[0][None], got[1][None])]


def run_attention(submission: Submission, judge: Judge, case: Case, what: str) -> Pair:
    """Call `blockwise_attention`; ends the check with `contract` when the result's types or shapes are off."""
    options: dict[str, Any] = {}
    if case.causal:
        options["causal"] = True
    if case.scale is not None:
        options["scale"] = case.scale
    result = submission.call("blockwise_attention", case.q, case.k, case.v, case.block, **options)
    shapes = [(case.q.shape[0], case.v.shape[1]), (case.q.shape[0],)]
    o, lse = expect_arrays(judge, result, ("O", "LSE"), shapes, [case.dtype, statistics_dtype(case.dtype)], what)
    return o, lse


def judge_attention(judge: Judge, case: Case, got: Pair, what: str) -> None:
    """Hold (O, LSE) to the oracle."""
    want = truth(case)
    judge.measure("o_error", float(absolute_error(got[0], want[0]).max()))
    judge.measure("lse_error", float(absolute_error(got[1], want[1]).max()))
    found = breaches(case, got, want)
    if found:
        diagnosis = diagnose(attention_mistakes(case), got, want)
        judge.fail(f"{what} ({case.dtype.name}): {found[0]}.", diagnosis=diagnosis)


# Known mistakes


def attention_mistakes(case: Case) -> list[Mistake]:
    scores, visible = scores_of(case), case.visible()
    right_o, right_lse = attend(scores, visible, case.v)
    k_len = case.k.shape[0]
    whole = k_len // case.block * case.block
    working, own = case.dtype, statistics_dtype(case.dtype)
    offset = k_len - case.q.shape[0]

    def dense(factor: float | None = None, mask: Array | None = None, hidden: float = -np.inf) -> Pair:
        return attend(scores_of(case, factor), visible if mask is None else mask, case.v, hidden)

    def narrow(**options: Any) -> Sequence[Pair]:
        return [emulate(case, weights_dtype=weights, **options) for weights in (None, working)]

    def without_tail() -> Sequence[Pair]:
        return [attend(scores[:, :whole], visible[:, :whole], case.v[:whole])] if whole < k_len else []

    def base_two() -> Sequence[Pair]:
        """2**s in place of exp(s)."""
        o, lse = dense(case.factor * float(np.log(2)))
        return [(o, lse), (o, row_max + (lse - row_max * float(np.log(2)))), (o, lse / float(np.log(2)))]

    def overlapping() -> Sequence[Pair]:
        """The last block, moved back to full width, counts some keys twice."""
        twice = np.zeros(k_len)
        twice[max(k_len - case.block, 0) : whole] = np.log(2)
        return [attend(scores + twice, visible, case.v)]

    def v_of_block(start_at_zero: Array) -> Pair:
        return attend(scores, visible, case.v[start_at_zero])[0], right_lse

    def unnormalised() -> Pair:
        _, row_sum = right_lse, np.exp(right_lse - shift_of(np.where(visible, scores, -np.inf).max(axis=1)))
        return right_o * row_sum[:, None], right_lse

    row_max = np.where(visible, scores, -np.inf).max(axis=1)
    plain = replace(case, scale=None).factor
    return [
        Mistake(
            "mask-top-left",
            "Your output equals attention with the causal mask aligned top-left (j <= i).",
            lambda: [dense(mask=case.visible(offset=0))],
        ),
        Mistake(
            "mask-off-by-one",
            "Your output equals attention with the causal mask one key too narrow or too wide.",
            lambda: [dense(mask=case.visible(offset=offset + step)) for step in (-1, 1)],
        ),
        Mistake(
            "mask-missing",
            "Your output equals attention without the causal mask.",
            lambda: [dense(mask=np.ones_like(visible))],
        ),
        Mistake(
            "masked-rows-averaged",
            "Rows that see no key hold the mean of V: masked scores are a finite number, not -inf.",
            lambda: [(dense(hidden=value)[0], dense(hidden=value)[1]) for value in SENTINELS],
        ),
        Mistake(
            "scale-missing",
            "Your output equals attention whose scores were not scaled.",
            lambda: [dense(1.0)],
        ),
        Mistake(
            "scale-zero-is-none",
            "scale = 0 was taken for None: your output equals attention scaled by 1/sqrt(d).",
            lambda: [dense(plain)] if case.scale == 0 else [],
        ),
        Mistake(
            "scale-sign-lost",
            "Your output equals attention with |scale|: a negative scale was made positive.",
            lambda: [dense(abs(case.factor))] if case.factor < 0 else [],
        ),
        Mistake(
            "mask-before-scale",
            "The mask's -inf was multiplied by the scale: 0 makes NaN of it, a negative one +inf.",
            lambda: _masked_first(case) if case.causal and case.factor <= 0 else [],
        ),
        Mistake(
            "scale-ignored",
            "Your output equals attention scaled by 1/sqrt(d), whatever `scale` says.",
            lambda: [dense(plain)],
        ),
        Mistake(
            "tail-dropped",
            "Your output equals attention over whole blocks only: the ragged last block of keys is missing.",
            without_tail,
        ),
        Mistake(
            "scale-wrong",
            "Your output equals attention whose scores are scaled by another power of d, or by the length.",
            lambda: [dense(x) for x in (plain**2, 1 / plain, 1 / float(np.sqrt(max(k_len, 1))), 1 / max(k_len, 1))],
        ),
        Mistake(
            "exponential-base-2",
            "Your output equals a softmax by 2**s: exp2 needs scores times log2(e).",
            base_two,
        ),
        Mistake(
            "exp-and-exp2-mixed",
            "The weights are powers of e, the factor that rescales old terms is a power of 2.",
            lambda: [emulate(case, rescale_base=2.0)],
        ),
        Mistake(
            "new-terms-rescaled",
            "The new block's terms are multiplied by exp(old max - new max) too: only the old sums need it.",
            lambda: [emulate(case, rescale_new=True)],
        ),
        Mistake(
            "divided-every-block",
            "o is divided by l after every block, and new terms are added to what is normalised already.",
            lambda: [emulate(case, divide_always=True)],
        ),
        Mistake(
            "last-block-overlaps",
            "Keys count twice: the last block is moved back to full width.",
            lambda: overlapping() if 0 < whole < k_len else [],
        ),
        Mistake(
            "v-of-another-block",
            "The weights meet rows of V from another block: V is indexed from the block's own start.",
            lambda: [v_of_block(np.arange(k_len) % case.block)] if case.block < k_len else [],
        ),
        Mistake("lse-base-2", "LSE is in base 2; natural logarithms are asked for.", lambda: _base_two(case)),
        Mistake(
            "lse-without-max",
            "LSE equals log(l): the maximum was not added back.",
            lambda: [(right_o, right_lse - shift_of(row_max))],
        ),
        Mistake(
            "output-not-divided",
            "O equals the unnormalised sum: it was not divided by l.",
            lambda: [unnormalised()],
        ),
        Mistake(
            "rescale-missing",
            "Your output equals attention whose accumulators were not all rescaled when the maximum grew.",
            lambda: [
                emulate(case, rescale_output=output, rescale_sum=row_sum)
                for output, row_sum in ((False, True), (True, False), (False, False))
            ],
        ),
        Mistake(
            "scores-in-working-dtype",
            f"The error is that of scores rounded to {working.name} before the softmax.",
            lambda: narrow(scores_dtype=working) if working != own else [],
        ),
        Mistake(
            "row-sum-in-working-dtype",
            f"The error is that of a block's weights added up in {working.name}: the denominator needs {own.name}.",
            lambda: narrow(sum_dtype=working) if working != own else [],
        ),
        Mistake(
            "accumulators-in-working-dtype",
            f"The error is that of l and O kept in {working.name} from block to block.",
            lambda: narrow(state_dtype=working) if working != own else [],
        ),
    ]


def _masked_first(case: Case) -> list[Pair]:
    """(O, LSE) of scores that are masked before they are scaled; an LSE that is NaN may have been put to -inf."""
    masked = np.where(case.visible(), scores_of(case, 1.0), -np.inf) * case.factor
    row_max = masked.max(axis=1, initial=-np.inf)
    weights = np.exp(masked - shift_of(row_max)[:, None])
    row_sum = weights.sum(axis=1)
    o, lse = (weights @ case.v.astype(np.float64)) / row_sum[:, None], row_max + np.log(row_sum)
    return [(o, lse), (o, np.where(np.isnan(lse), -np.inf, lse))]


def _base_two(case: Case) -> list[Pair]:
    o, lse = truth(case)
    row_max = shift_of(np.where(case.visible(), scores_of(case), -np.inf).max(axis=1))
    log_sum = lse - row_max
    two = np.log(2.0)
    return [(o, lse / two), (o, row_max + log_sum / two), (o, row_max / two + log_sum)]

"""Known mistakes of a backward pass, each as the steps that it goes wrong in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from grader.judge.backward.steps import Steps, right_weights
from grader.judge.oracle import AttentionCase, RowView, visible_keys, window_bounds
from grader.judge.precision import LN_2, LOG2_E, Array, round_mantissa

TF32_BITS = 10
BLOCKS = (16, 32, 64, 128)
EXACT = Steps(rounds=False, block=1 << 30)
"""The right steps without rounding: what predictions start from."""


@dataclass(frozen=True, eq=False)
class GradientMistake:
    """One known mistake.

    Attributes:
        text: a sentence for the student.
        variants: steps that give what the mistake gives, one for each tile size or flavour.
        shows: whether it can be visible on a case at all.
        group: mistakes that predict the same numbers, told as the first of them.
        noisy: one of rounding, so that predictions follow the answer less closely.
    """

    id: str
    text: str
    variants: tuple[Steps, ...]
    shows: Callable[[AttentionCase], bool] = lambda case: True
    group: str = ""
    noisy: bool = False


def _no_delta(grad_o: Array, o: Array) -> Array:
    return np.zeros((o.shape[0], 1), dtype=o.dtype)


def _delta_of_grad_o(grad_o: Array, o: Array) -> Array:
    return np.asarray(grad_o.sum(axis=1, keepdims=True))


def _delta_mean(grad_o: Array, o: Array) -> Array:
    return np.asarray((grad_o * o).mean(axis=1, keepdims=True))


def _delta_of_grad_o_squared(grad_o: Array, o: Array) -> Array:
    return np.asarray((grad_o * grad_o).sum(axis=1, keepdims=True))


def _of_grad_scores(weights: Array, grad_scores: Array) -> Array:
    return grad_scores


def _unnormalised(scores: Array, lse: Array) -> Array:
    """exp(scores - row maximum), never divided by the row sum."""
    top = scores.max(axis=1, keepdims=True)
    return np.asarray(np.exp(scores - np.where(np.isneginf(top), 0.0, top)), scores.dtype)


def _delta_added(weights: Array, grad_weights: Array, delta: Array) -> Array:
    return np.asarray(weights * (grad_weights + delta))


def _delta_outside(weights: Array, grad_weights: Array, delta: Array) -> Array:
    return np.asarray(weights * grad_weights - delta)


def one(case: AttentionCase) -> float:
    """The scale left out."""
    return 1.0


def default_scale(case: AttentionCase) -> float:
    """The default where the call gives another."""
    return float(case.head_dim**-0.5)


def squared_scale(case: AttentionCase) -> float:
    return float(case.softmax_scale**2)


def _size_of_scale(case: AttentionCase) -> float:
    return abs(case.softmax_scale)


def mask_with(view: RowView, *, top_left: bool = False, by: int = 0, causal: bool = True) -> Array:
    """The case's mask moved, aligned top-left, or without its causal side."""
    case = view.case
    diagonal = (0 if top_left else case.diagonal) + by
    return visible_keys(view.rows, case.k_len, diagonal, window_bounds(case.causal and causal, case.window))


def rows_before(view: RowView, block: int) -> Array:
    """The mask without the last, partial tile of query rows."""
    whole = view.case.q_len // block * block
    return np.asarray(view.visible() & (view.rows < (whole or view.case.q_len))[..., None])


def keys_before(view: RowView, block: int) -> Array:
    """The mask without the last, partial tile of keys."""
    whole = view.case.k_len // block * block
    return np.asarray(view.visible() & (np.arange(view.case.k_len) < (whole or view.case.k_len)))


def base_two_weights(scores: Array, lse: Array) -> Array:
    """exp2 of scores that weren't multiplied by log2 e, with a natural LSE."""
    return np.asarray(np.exp2(scores - np.where(np.isneginf(lse), 0.0, lse).astype(scores.dtype)))


def mixed_base_weights(scores: Array, lse: Array) -> Array:
    """exp2 of scores in base 2 with an LSE that is left in base e."""
    return np.asarray(np.exp2(scores * LOG2_E - np.where(np.isneginf(lse), 0.0, lse)), scores.dtype)


def base_e_of_base_two(scores: Array, lse: Array) -> Array:
    """exp of natural scores with an LSE that was brought to base 2."""
    return np.asarray(np.exp(scores - np.where(np.isneginf(lse), 0.0, lse / LN_2)), scores.dtype)


def nan_without_keys(scores: Array, lse: Array) -> Array:
    """exp(-inf - (-inf)) = NaN in rows that see no key."""
    return np.where(np.isneginf(lse), np.nan, right_weights(scores, lse)).astype(scores.dtype)


def one_without_keys(scores: Array, lse: Array) -> Array:
    """Weights of 1/k_len in rows that see no key, as a finite mask value gives them."""
    return np.where(np.isneginf(lse), 1.0 / scores.shape[1], right_weights(scores, lse)).astype(scores.dtype)


def _one_member(case: AttentionCase, kv_head: int, place: int) -> range:
    head = kv_head * case.group + place % case.group
    return range(head, head + 1)


def tiled_members(case: AttentionCase, kv_head: int) -> range:
    return range(kv_head, case.q_heads, case.kv_heads)


def tiled_head(case: AttentionCase, head: int) -> int:
    return head % case.kv_heads


def _grouped(case: AttentionCase) -> bool:
    return case.group > 1


def _several_kv_heads(case: AttentionCase) -> bool:
    return case.group > 1 and case.kv_heads > 1


def _offset_causal(case: AttentionCase) -> bool:
    return case.causal and case.diagonal != 0


def _empty_rows(case: AttentionCase) -> bool:
    return case.causal and case.diagonal < 0


def _float32(case: AttentionCase) -> bool:
    return case.dtype == "float32"


def _causal(case: AttentionCase) -> bool:
    return case.causal


CATALOGUE: tuple[GradientMistake, ...] = (
    GradientMistake(
        "delta-missing",
        "Your gradients equal those with dS = P * dP: Delta = rowsum(dO * O) is not subtracted.",
        (replace(EXACT, delta=_no_delta),),
    ),
    GradientMistake(
        "delta-added",
        "Your gradients equal those with dS = P * (dP + Delta); Delta is subtracted.",
        (replace(EXACT, score_gradient=_delta_added),),
    ),
    GradientMistake(
        "delta-not-weighted",
        "Your gradients equal those with dS = P * dP - Delta; the difference is weighted: P * (dP - Delta).",
        (replace(EXACT, score_gradient=_delta_outside),),
    ),
    GradientMistake(
        "delta-without-o",
        "Your gradients equal those with Delta = rowsum(dO), or with its mean; it is rowsum(dO * O).",
        (replace(EXACT, delta=_delta_of_grad_o), replace(EXACT, delta=_delta_mean)),
    ),
    GradientMistake(
        "delta-of-grad-o",
        "Your gradients equal those with Delta = rowsum(dO * dO); it is rowsum(dO * O).",
        (replace(EXACT, delta=_delta_of_grad_o_squared),),
    ),
    GradientMistake(
        "dv-of-score-gradient",
        "Your dV equals dS^T dO; it is P^T dO.",
        (replace(EXACT, dv_operand=_of_grad_scores),),
    ),
    GradientMistake(
        "weights-not-normalised",
        "Your gradients equal those with P = exp(S - max), which isn't divided by the row sum; P is exp(S - LSE).",
        (replace(EXACT, weights=_unnormalised),),
    ),
    GradientMistake(
        "scale-sign-lost",
        "Your gradients equal those with the scale's sign dropped: a scale may be negative.",
        (replace(EXACT, score_scale=_size_of_scale, dq_scale=_size_of_scale, dk_scale=_size_of_scale),),
        lambda case: case.softmax_scale < 0,
    ),
    GradientMistake(
        "scale-zero-is-none",
        "Your gradients equal those with the default scale although the call says scale=0: `scale or default` takes 0 "
        "for None.",
        (replace(EXACT, score_scale=default_scale, dq_scale=default_scale, dk_scale=default_scale),),
        lambda case: case.scale == 0,
        group="scale",
    ),
    GradientMistake(
        "scale-ignored",
        "Your gradients equal those with the default scale although the call gives another.",
        (
            replace(EXACT, score_scale=default_scale, dq_scale=default_scale, dk_scale=default_scale),
            replace(EXACT, score_scale=default_scale),
            replace(EXACT, dq_scale=default_scale, dk_scale=default_scale),
        ),
        lambda case: case.scale is not None,
        group="scale",
    ),
    GradientMistake(
        "dq-scale-missing",
        "Your dQ lacks the factor `scale`: dQ = scale * dS K. The scale multiplies the scores, so it multiplies their "
        "derivative too.",
        (replace(EXACT, dq_scale=one),),
        group="gradient-scale",
    ),
    GradientMistake(
        "dk-scale-missing",
        "Your dK lacks the factor `scale`: dK = scale * dS^T Q. The scale multiplies the scores, so it multiplies "
        "their derivative too.",
        (replace(EXACT, dk_scale=one),),
        group="gradient-scale",
    ),
    GradientMistake(
        "gradient-scale-missing",
        "Your dQ and dK lack the factor `scale`.",
        (replace(EXACT, dq_scale=one, dk_scale=one),),
        group="gradient-scale",
    ),
    GradientMistake(
        "gradient-scale-twice",
        "Your dQ or dK has the factor `scale` twice.",
        (
            replace(EXACT, dq_scale=squared_scale),
            replace(EXACT, dk_scale=squared_scale),
            replace(EXACT, dq_scale=squared_scale, dk_scale=squared_scale),
        ),
    ),
    GradientMistake(
        "mask-top-left",
        "Your gradients equal those of a backward whose causal mask is aligned top-left; it is aligned bottom-right "
        "(j <= i + seq_k - seq_q), as in the forward.",
        (replace(EXACT, visible=partial(mask_with, top_left=True)),),
        _offset_causal,
        group="diagonal",
    ),
    GradientMistake(
        "causal-ignored",
        "Your gradients equal those of a backward without the causal mask.",
        (replace(EXACT, visible=partial(mask_with, causal=False)),),
        _causal,
    ),
    GradientMistake(
        "causal-off-by-one",
        "Your gradients equal those of a backward whose causal mask is off by one.",
        (
            replace(EXACT, visible=partial(mask_with, by=-1)),
            replace(EXACT, visible=partial(mask_with, by=1)),
        ),
        _causal,
        group="diagonal",
    ),
    GradientMistake(
        "group-not-summed",
        "Your dK and dV hold one query head's share; they are sums over all query heads of the group.",
        (
            replace(EXACT, members=partial(_one_member, place=-1)),
            replace(EXACT, members=partial(_one_member, place=0)),
        ),
        _grouped,
    ),
    GradientMistake(
        "gqa-tiled",
        "Your gradients treat query head h as one of KV head h % kv_heads; heads are grouped, so it is "
        "h // (q_heads / kv_heads).",
        (
            replace(EXACT, members=tiled_members, kv_head=tiled_head),
            replace(EXACT, members=tiled_members),
            replace(EXACT, kv_head=tiled_head),
        ),
        _several_kv_heads,
    ),
    GradientMistake(
        "lse-bases-mixed",
        "Your gradients equal those with P from a score and an LSE of different bases: with exp2 both take log2 e.",
        (
            replace(EXACT, weights=mixed_base_weights),
            replace(EXACT, weights=base_e_of_base_two),
            replace(EXACT, weights=base_two_weights),
        ),
    ),
    GradientMistake(
        "masked-row-nan",
        "Rows that see no key make your gradients NaN: their LSE is -inf, and -inf - (-inf) is NaN. Their P is 0.",
        (replace(EXACT, weights=nan_without_keys),),
        _empty_rows,
    ),
    GradientMistake(
        "last-query-tile-skipped",
        "Your gradients leave out the last, partial tile of query rows.",
        tuple(replace(EXACT, visible=partial(rows_before, block=block)) for block in BLOCKS),
        lambda case: any(case.q_len % block for block in BLOCKS),
    ),
    GradientMistake(
        "last-key-tile-skipped",
        "Your gradients leave out the last, partial tile of keys.",
        tuple(replace(EXACT, visible=partial(keys_before, block=block)) for block in BLOCKS),
        lambda case: any(case.k_len % block for block in BLOCKS),
    ),
    GradientMistake(
        "tf32",
        'Your gradients have TF32\'s precision: a float32 dot must be told to keep float32 (input_precision="ieee").',
        tuple(
            replace(EXACT, operand=partial(round_mantissa, bits=TF32_BITS, truncate=truncate))
            for truncate in (False, True)
        ),
        _float32,
        noisy=True,
    ),
    GradientMistake(
        "group-partials-low-precision",
        "Your dK or dV adds up query heads' parts that are stored in half precision; keep them in float32.",
        tuple(Steps(share=dtype) for dtype in ("float16", "bfloat16")),
        _grouped,
        noisy=True,
        group="sums",
    ),
    GradientMistake(
        "low-precision-accumulator",
        "Your gradients equal sums that are kept in half precision from tile to tile; keep them in float32.",
        tuple(
            Steps(block=block, accumulator=dtype) for dtype in ("float16", "bfloat16") for block in (16, 32, 64, 128)
        ),
        lambda case: not _float32(case),
        noisy=True,
        group="sums",
    ),
    *(
        GradientMistake(
            f"{id}-low-precision",
            f"Your gradients equal those with {name} rounded to half precision; keep it in float32.",
            tuple(Steps(low=dtype, lowered=(what,)) for dtype in ("float16", "bfloat16")),
            noisy=True,
        )
        for id, what, name in (
            ("scores", "scores", "S"),
            ("dp", "grad_weights", "dP"),
            ("delta", "delta", "Delta"),
        )
    ),
)


def by_id(mistake_id: str) -> GradientMistake:
    """The mistake called `mistake_id`.

    Raises:
        KeyError: none is called that.
    """
    for mistake in CATALOGUE:
        if mistake.id == mistake_id:
            return mistake
    raise KeyError(mistake_id)

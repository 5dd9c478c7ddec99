"""Kernels that a validation harness is tried on: right ones of many kinds, and broken ones.

A right kernel passes the judge's own bounds; a broken one breaks them on the shapes of `trial.shapes`, with inputs that
a careful harness draws. `needs` says what a harness has to do to see the mistake.

A broken kernel is one of the right ones, drawn by chance, with a mistake in it: where the mistake doesn't show, its
bits are those of any right kernel, and tell a harness nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from grader.judge import honest, mistakes
from grader.judge.backward import mistakes as gradient_mistakes
from grader.judge.backward.hosted import Behaviour, Forward
from grader.judge.backward.steps import Backward, Steps, compute
from grader.judge.gradients import Gradients
from grader.judge.mistakes import Variant
from grader.judge.oracle import AttentionCase, Result, RowView
from grader.judge.precision import LN_2, Array, round_mantissa, round_to

FEW_BITS = 4
"""Mantissa bits of weights that are kept far too coarsely."""
Make = Callable[[np.random.Generator], Behaviour]
Group = Literal["right", "forward", "gradients", "rare"]


@dataclass(frozen=True)
class Specimen:
    """One kernel to try a harness on.

    Attributes:
        text: what is special about it, for the student.
        needs: what a harness has to look at to see it; empty for right ones.
        make: a fresh kernel; it may keep state between its calls.
    """

    id: str
    group: Group
    text: str
    needs: str
    make: Make


def honest_forward(recipe: honest.Recipe, rng: np.random.Generator) -> Forward:
    """(O, LSE) of a right kernel of that recipe."""

    def forward(case: AttentionCase) -> Result:
        return _whole(case, honest.compute(RowView.whole(case), recipe, rng))

    return forward


def _whole(case: AttentionCase, found: Result) -> Result:
    o, lse = found
    return o.reshape(case.q.shape), lse.reshape(case.q.shape[:3])


def _right(recipe: honest.Recipe, steps: Steps) -> Make:
    def make(rng: np.random.Generator) -> Behaviour:
        return Behaviour(honest_forward(recipe, rng), lambda given: compute(given, steps, rng))

    return make


APPROXIMATE = 2.0**-22
KINDS = (
    ("tiles of 64", honest.Recipe(""), Steps()),
    ("tiles of 16", honest.Recipe("", 16), Steps(block=16)),
    ("tiles of 128 read from the end", honest.Recipe("", 128, backwards=True), Steps(block=128, backwards=True)),
    ("lazy rescaling", honest.Recipe("", 32, lazy=8.0), Steps(block=32)),
    ("split keys", honest.Recipe("", 16, splits=3), Steps(block=32, backwards=True)),
    ("P and dS in float32", honest.Recipe("", p_float32=True), Steps(rounds=False)),
    ("a natural exp", honest.Recipe("", 32, base_e=True), Steps(block=16, backwards=True)),
    ("an approximate exp2", honest.Recipe("", exp_error=APPROXIMATE), Steps(exp_error=APPROXIMATE, block=48)),
)
"""Right kernels: what is special, its forward, its backward."""

RIGHT = tuple(
    Specimen(f"right-{name.replace(' ', '-')}", "right", f"a right kernel with {name}", "", _right(recipe, steps))
    for name, recipe, steps in KINDS
)


def any_kind(rng: np.random.Generator) -> tuple[honest.Recipe, Steps]:
    """Forward and backward of some right kernel."""
    return KINDS[int(rng.integers(len(KINDS)))][1:]


def any_right(rng: np.random.Generator) -> Behaviour:
    """Some right kernel."""
    return _right(*any_kind(rng))(rng)


def with_mistake(mistaken: Steps, kind: Steps) -> Steps:
    """The mistake's steps at the rounding, tiles and order of a kind."""
    return replace(mistaken, rounds=kind.rounds, block=kind.block, backwards=kind.backwards, exp_error=kind.exp_error)


def _forward_mistake(mistake_id: str, pick: Callable[[tuple[Variant, ...]], Variant] | None = None) -> Make:
    """A kernel whose forward makes a catalogued mistake; its backward is right, from its own O and LSE."""
    known = mistakes.by_id(mistake_id)
    variant = known.variants[0] if pick is None else pick(known.variants)

    def make(rng: np.random.Generator) -> Behaviour:
        plain = any_right(rng)

        def forward(case: AttentionCase) -> Result:
            if not known.shows(case):
                return plain.forward(case)
            o, lse = _whole(case, RowView.whole(case).map(variant))
            # A mistake that says nothing about the LSE leaves it right.
            return o, plain.forward(case)[1] if np.isnan(lse).all() else lse

        return Behaviour(forward, plain.backward)

    return make


def _with_block(block: int) -> Callable[[tuple[Variant, ...]], Variant]:
    def pick(variants: tuple[Variant, ...]) -> Variant:
        return next(v for v in variants if isinstance(v, partial) and v.keywords.get("block") == block)

    return pick


def _gradient_mistake(mistake_id: str, place: int = 0) -> Make:
    """A kernel whose backward makes a catalogued mistake."""
    known = gradient_mistakes.by_id(mistake_id)

    def make(rng: np.random.Generator) -> Behaviour:
        recipe, right = any_kind(rng)
        wrong = with_mistake(known.variants[place], right)
        return Behaviour(
            honest_forward(recipe, rng),
            lambda given: compute(given, wrong if known.shows(given.case) else right, rng),
        )

    return make


def altered(
    forward: Callable[[AttentionCase, Array, Array], Result] | None = None,
    backward: Callable[[Backward, Gradients], Gradients] | None = None,
) -> Make:
    """A right kernel whose results are changed before they are returned."""

    def make(rng: np.random.Generator) -> Behaviour:
        plain = any_right(rng)

        def change_forward(case: AttentionCase) -> Result:
            o, lse = plain.forward(case)
            return (o, lse) if forward is None else forward(case, o, lse)

        def change_backward(given: Backward) -> Gradients:
            found = plain.backward(given)
            return found if backward is None else backward(given, found)

        return Behaviour(change_forward, change_backward)

    return make


def with_steps(steps: Steps) -> Make:
    """A right forward and a backward with the mistake of `steps`."""

    def make(rng: np.random.Generator) -> Behaviour:
        recipe, right = any_kind(rng)
        return _right(recipe, with_mistake(steps, right))(rng)

    return make


def _empty(lse: Array) -> Array:
    return np.asarray(np.isneginf(lse))


def _masked_output_nan(case: AttentionCase, o: Array, lse: Array) -> Result:
    return np.where(_empty(lse)[..., None], np.nan, o), lse


def _masked_lse_finite(case: AttentionCase, o: Array, lse: Array) -> Result:
    return o, np.where(_empty(lse), -1e30, lse)


def _lse_in_half(case: AttentionCase, o: Array, lse: Array) -> Result:
    return o, round_to(lse, "float16")


def _coarse(values: Array) -> Array:
    return round_mantissa(values.astype(np.float32), FEW_BITS)


def _coarse_output(case: AttentionCase, o: Array, lse: Array) -> Result:
    """As from weights with few bits: the mean error of a row of them."""
    return o + (_coarse(o) - o) * 0.5, lse


def _coarse_scores(weights: Array, grad_weights: Array, delta: Array) -> Array:
    return _coarse(weights * (grad_weights - delta)).astype(weights.dtype)


def _base_two_lse(rng: np.random.Generator) -> Behaviour:
    """The LSE is stored in base 2, and the backward takes it for that: only the LSE itself is wrong."""
    plain = any_right(rng)

    def forward(case: AttentionCase) -> Result:
        o, lse = plain.forward(case)
        return o, lse / LN_2

    return Behaviour(forward, lambda given: plain.backward(replace(given, lse=given.lse * LN_2)))


FORWARD = tuple(
    Specimen(name, "forward", text, needs, make)
    for name, text, needs, make in (
        ("forward-top-left", "a causal mask aligned top-left", "lengths", _forward_mistake("mask-top-left")),
        ("forward-off-by-one", "a causal mask off by one", "mask", _forward_mistake("causal-off-by-one")),
        ("forward-no-mask", "no causal mask", "mask", _forward_mistake("causal-ignored")),
        ("forward-unscaled", "scores without the scale", "values", _forward_mistake("scale-missing")),
        (
            "forward-default-scale",
            "the default scale where another is asked",
            "scale",
            _forward_mistake("scale-ignored"),
        ),
        ("forward-tail", "padded keys in the row sum", "ragged", _forward_mistake("tail-unmasked", _with_block(32))),
        (
            "forward-no-rescale",
            "an accumulator that isn't rescaled",
            "values",
            _forward_mistake("accumulator-not-rescaled", _with_block(16)),
        ),
        ("forward-tiled-heads", "KV heads taken in turn instead of by group", "heads", _forward_mistake("gqa-tiled")),
        (
            "forward-last-tile",
            "the last key tile left out",
            "ragged",
            _forward_mistake("last-kv-tile-skipped", _with_block(16)),
        ),
        ("forward-lse-base-2", "an LSE in base 2, its backward consistent with that", "lse", _base_two_lse),
        ("forward-lse-maximum", "the row maximum for an LSE", "lse", _forward_mistake("lse-is-row-max")),
        ("forward-lse-half", "an LSE rounded to float16", "lse", altered(forward=_lse_in_half)),
        ("forward-masked-nan", "NaN in rows that see no key", "masked rows", altered(forward=_masked_output_nan)),
        (
            "forward-masked-lse",
            "a finite LSE in rows that see no key",
            "masked rows",
            altered(forward=_masked_lse_finite),
        ),
        ("forward-coarse", "weights with four bits of mantissa", "tolerance", altered(forward=_coarse_output)),
    )
)

GRADIENTS = tuple(
    Specimen(name, "gradients", text, needs, make)
    for name, text, needs, make in (
        ("no-delta", "dS without Delta", "values", _gradient_mistake("delta-missing")),
        ("delta-added", "Delta added instead of subtracted", "values", _gradient_mistake("delta-added")),
        ("delta-outside", "Delta outside of the product with P", "values", _gradient_mistake("delta-not-weighted")),
        ("delta-of-do", "Delta without O", "values", _gradient_mistake("delta-without-o")),
        ("dq-unscaled", "dQ without the scale", "values", _gradient_mistake("dq-scale-missing")),
        ("dk-unscaled", "dK without the scale", "values", _gradient_mistake("dk-scale-missing")),
        ("dk-scaled-twice", "dK with the scale twice", "values", _gradient_mistake("gradient-scale-twice", 1)),
        ("top-left", "a top-left mask in the backward only", "lengths", _gradient_mistake("mask-top-left")),
        ("no-mask", "no causal mask in the backward", "mask", _gradient_mistake("causal-ignored")),
        ("off-by-one", "a causal mask off by one in the backward", "mask", _gradient_mistake("causal-off-by-one", 1)),
        ("last-head-wins", "dK and dV of the group's last head", "heads", _gradient_mistake("group-not-summed")),
        ("tiled-heads", "dK and dV summed over the wrong heads", "heads", _gradient_mistake("gqa-tiled", 1)),
        (
            "mixed-bases",
            "P from a score in base 2 and an LSE in base e",
            "values",
            _gradient_mistake("lse-bases-mixed"),
        ),
        ("masked-nan", "NaN from rows that see no key", "masked rows", _gradient_mistake("masked-row-nan")),
        (
            "masked-mean",
            "weights of 1/n in rows that see no key",
            "masked rows",
            with_steps(Steps(weights=gradient_mistakes.one_without_keys)),
        ),
        ("last-rows", "the last, partial query tile left out", "ragged", _gradient_mistake("last-query-tile-skipped")),
        ("last-keys", "the last, partial key tile left out", "ragged", _gradient_mistake("last-key-tile-skipped")),
        ("coarse-ds", "dS with four bits of mantissa", "tolerance", with_steps(Steps(score_gradient=_coarse_scores))),
    )
)

"""Broken kernels that are right on most shapes, values or calls."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from grader.judge import mistakes
from grader.judge.backward.hosted import Behaviour
from grader.judge.backward.mistakes import TF32_BITS
from grader.judge.backward.specimens import (
    Make,
    Specimen,
    altered,
    any_kind,
    any_right,
    honest_forward,
    with_mistake,
    with_steps,
)
from grader.judge.backward.steps import Backward, Steps, compute
from grader.judge.gradients import Gradients
from grader.judge.oracle import AttentionCase, Result, RowView
from grader.judge.precision import Array, round_mantissa

CLIP = 200.0


def _adds_up(rng: np.random.Generator) -> Behaviour:
    """dK and dV are added to what the last call of that shape left."""
    plain, kept = any_right(rng), dict[tuple[int, ...], Gradients]()

    def backward(given: Backward) -> Gradients:
        found, old = plain.backward(given), kept.get(given.case.k.shape)
        if old is not None:
            found = Gradients(found.dq, found.dk + old.dk, found.dv + old.dv)
        kept[given.case.k.shape] = found
        return found

    return Behaviour(plain.forward, backward)


def _stale(rng: np.random.Generator) -> Behaviour:
    """dQ is that of the last call of that shape, if there was one with other inputs."""
    plain, kept = any_right(rng), dict[tuple[int, ...], Gradients]()

    def backward(given: Backward) -> Gradients:
        found = plain.backward(given)
        old = kept.setdefault(given.case.q.shape, found)
        return Gradients(old.dq, found.dk, found.dv)

    return Behaviour(plain.forward, backward)


def _first_call_only(rng: np.random.Generator) -> Behaviour:
    """Every backward after the first returns zeros for dV."""
    plain, calls = any_right(rng), list[int]()

    def backward(given: Backward) -> Gradients:
        found = plain.backward(given)
        calls.append(1)
        return found if len(calls) == 1 else replace(found, dv=np.zeros_like(found.dv))

    return Behaviour(plain.forward, backward)


def _changes_input(method: str, name: str) -> Make:
    """One input is scaled in its place."""

    def changes(called: str, inputs: dict[str, Array]) -> dict[str, Array]:
        return {name: inputs[name] * 0.125} if called == method else {}

    def make(rng: np.random.Generator) -> Behaviour:
        return replace(any_right(rng), changes=changes)

    return make


def _first_batch_only(rng: np.random.Generator) -> Behaviour:
    """dQ of every batch entry past the first uses the first one's LSE."""
    plain = any_right(rng)

    def backward(given: Backward) -> Gradients:
        found = plain.backward(given)
        lse = np.broadcast_to(given.lse[:1], given.lse.shape)
        return replace(found, dq=plain.backward(replace(given, lse=lse)).dq)

    return Behaviour(plain.forward, backward)


def _rows_of_q_only(given: Backward, found: Gradients) -> Gradients:
    """dK and dV have as many rows as Q; the rest stays zero."""
    dk, dv = found.dk.copy(), found.dv.copy()
    dk[:, :, given.case.q_len :] = 0.0
    dv[:, :, given.case.q_len :] = 0.0
    return Gradients(found.dq, dk, dv)


def _contiguous_grad_o(rng: np.random.Generator) -> Behaviour:
    """dO is read as if it were contiguous; past its own memory lie zeros."""
    plain = any_right(rng)

    def backward(given: Backward) -> Gradients:
        if given.strides is None:
            return plain.backward(given)
        shape = given.grad_o.shape
        axes = np.ogrid[tuple(slice(n) for n in shape)]
        places = sum(axis * stride for axis, stride in zip(axes, given.strides, strict=True))
        storage = np.zeros(max(int(np.max(places)) + 1, given.grad_o.size))
        storage[places] = given.grad_o
        return plain.backward(replace(given, grad_o=storage[: given.grad_o.size].reshape(shape)))

    return Behaviour(plain.forward, backward)


def _clipped(weights: Array, grad_weights: Array, delta: Array) -> Array:
    """dP is kept in a format that ends at 200."""
    return np.asarray(weights * (np.clip(grad_weights, -CLIP, CLIP) - np.clip(delta, -CLIP, CLIP)))


def _unshifted_weights(scores: Array, lse: Array) -> Array:
    """exp(S) / exp(LSE): right while neither leaves float32's range."""
    total = np.exp(lse)
    return np.asarray(np.exp(scores) / np.where(total == 0.0, 1.0, total)).astype(scores.dtype)


def _one_nan(given: Backward, found: Gradients) -> Gradients:
    dv = found.dv.copy()
    dv[-1, -1, -1, -1] = np.nan
    return replace(found, dv=dv)


def _one_wrong(given: Backward, found: Gradients) -> Gradients:
    """One element of dQ, in the last head's last row, is that of its neighbour."""
    dq = found.dq.copy()
    dq[-1, -1, -1, -1] = -dq[-1, -1, -1, 0] - np.abs(found.dq).max()
    return replace(found, dq=dq)


def _power_of_two(given: Backward, found: Gradients) -> Gradients:
    """Columns past the largest power of two in head_dim aren't written in dK."""
    dk = found.dk.copy()
    dk[..., 1 << (given.case.head_dim.bit_length() - 1) :] = 0.0
    return found if given.case.head_dim & (given.case.head_dim - 1) == 0 else replace(found, dk=dk)


def _maximum_from_zero(rng: np.random.Generator) -> Behaviour:
    """The running maximum starts at 0: rows far below zero underflow."""
    known, plain = mistakes.by_id("max-initialised-to-zero"), any_right(rng)

    def forward(case: AttentionCase) -> Result:
        o, lse = RowView.whole(case).map(known.variants[1])
        return o.reshape(case.q.shape), lse.reshape(case.q.shape[:3])

    return Behaviour(forward, plain.backward)


def _half_scores(rng: np.random.Generator) -> Behaviour:
    """Scores are rounded to half precision in the forward: coarse where they are large."""
    known, plain = mistakes.by_id("scores-low-precision"), any_right(rng)
    variant = next(v for v in known.variants if isinstance(v, partial) and v.keywords["dtype"] == "float16")

    def forward(case: AttentionCase) -> Result:
        o, lse = RowView.whole(case).map(variant)
        _, right_lse = plain.forward(case)
        told = np.isnan(lse).all()
        return o.reshape(case.q.shape), right_lse if told else lse.reshape(right_lse.shape)

    return Behaviour(forward, plain.backward)


def _tf32(rng: np.random.Generator) -> Behaviour:
    """Products of float32 operands cut to TF32, in the backward."""
    recipe, right = any_kind(rng)
    coarse = with_mistake(Steps(operand=lambda values: round_mantissa(values, TF32_BITS).astype(np.float32)), right)

    def backward(given: Backward) -> Gradients:
        return compute(given, coarse if given.case.dtype == "float32" else right, rng)

    return Behaviour(honest_forward(recipe, rng), backward)


def _bfloat16_as_float16(rng: np.random.Generator) -> Behaviour:
    """In bfloat16 dO passes through float16 and is cut off at what a third of that range holds."""
    plain = any_right(rng)

    def backward(given: Backward) -> Gradients:
        if given.case.dtype != "bfloat16":
            return plain.backward(given)
        return plain.backward(replace(given, grad_o=np.clip(given.grad_o, -60.0, 60.0)))

    return Behaviour(plain.forward, backward)


def _noisy(rng: np.random.Generator) -> Behaviour:
    """dQ of the float16 kernel carries noise of four ulp of its largest value."""
    plain = any_right(rng)

    def backward(given: Backward) -> Gradients:
        found = plain.backward(given)
        if given.case.dtype != "float16":
            return found
        size = 2.0**-8 * np.abs(found.dq).max()
        return replace(found, dq=found.dq + size * rng.choice([-1.0, 1.0], found.dq.shape))

    return Behaviour(plain.forward, backward)


RARE = tuple(
    Specimen(name, "rare", text, needs, make)
    for name, text, needs, make in (
        ("adds-up", "dK and dV of the last call are added", "second call", _adds_up),
        ("stale", "dQ of an earlier call is returned", "second call", _stale),
        ("first-call-only", "every backward but the first is wrong", "second call", _first_call_only),
        ("changes-grad-o", "dO is changed in place", "inputs", _changes_input("backward", "grad_o")),
        ("changes-q", "Q is scaled in place", "inputs", _changes_input("forward", "q")),
        ("first-batch-only", "dQ wrong past the first batch entry", "batch", _first_batch_only),
        ("rows-of-q", "dK and dV with as many rows as Q", "lengths", altered(backward=_rows_of_q_only)),
        ("contiguous-grad-o", "dO taken to be contiguous", "layout", _contiguous_grad_o),
        ("clipped", "dP cut off at 200", "large dO", with_steps(Steps(score_gradient=_clipped))),
        ("unshifted", "P as exp(S) / exp(LSE)", "far scores", with_steps(Steps(weights=_unshifted_weights))),
        ("maximum-from-zero", "a running maximum that starts at 0", "far scores", _maximum_from_zero),
        ("half-scores", "scores rounded to float16", "far scores", _half_scores),
        ("one-nan", "a single NaN in dV", "NaN", altered(backward=_one_nan)),
        ("one-wrong", "a single wrong number in dQ", "every element", altered(backward=_one_wrong)),
        ("power-of-two", "dK unwritten past a power of two of columns", "head_dim", altered(backward=_power_of_two)),
        ("tf32", "TF32 products in float32", "dtype", _tf32),
        ("bfloat16-range", "bfloat16's dO cut off", "large dO", _bfloat16_as_float16),
        ("noisy-dq", "dQ in float16 off by four ulp", "tolerance", _noisy),
    )
)

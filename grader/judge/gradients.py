"""Gradients of attention in float64, and the bounds around them from emulated backward kernels.

With P the weights, dO the gradient of the output and D = rowsum(dO * O) (FlashAttention-2, algorithm 2):
dV = Pᵀ dO, dP = dO Vᵀ, dS = P * (dP - D), dQ = scale · dS K, dK = scale · dSᵀ Q; dK and dV add up over the query heads
of a group. An emulated kernel recomputes P from the float32 LSE, rounds P and dS to the working dtype before their
products, adds tile by tile in float32 and rounds the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grader.judge.compare import Breach, Errors
from grader.judge.oracle import AttentionCase, RowView, forward_view, softmax_attention
from grader.judge.precision import LOG2_E, ULP, Array, round_to
from grader.judge.tolerance import TILINGS, TensorBounds, Tiling, emulate, score_noise, scores_log2, tensor_bounds

NAMES = ("dQ", "dK", "dV")
CANCELLATION = Errors(max=2.0, row_rms=1.0, mean=0.5)
"""Added to the bounds, in `cancellation_noise`."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """dq (batch, q_heads, q_len, head_dim); dk, dv (batch, kv_heads, k_len, head_dim)."""

    dq: Array
    dk: Array
    dv: Array

    def named(self) -> dict[str, Array]:
        return dict(zip(NAMES, (self.dq, self.dk, self.dv), strict=True))


def _slices(case: AttentionCase) -> list[RowView]:
    """One view a (batch, head) slice."""
    every = RowView.whole(case)
    return [
        RowView(case, every.batches[index : index + 1], every.heads[index : index + 1], every.rows)
        for index in range(every.slices)
    ]


def gradients(case: AttentionCase, grad_o: Array) -> Gradients:
    """Exact gradients of sum(grad_o * O).

    Args:
        grad_o: (batch, q_heads, q_len, head_dim), values representable in the working dtype.
    """
    found = Gradients(*(np.zeros(values.shape) for values in (case.q, case.k, case.v)))
    for view in _slices(case):
        b, h = int(view.batches[0]), int(view.heads[0])
        kv = h // case.group
        q, k, v = view.q()[0], view.k()[0], view.v()[0]
        visible = view.visible()[0]
        scores = np.where(visible, q @ k.T * case.softmax_scale, -np.inf)
        o, lse = softmax_attention(scores, visible, v)
        weights = np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[:, None])  # (q_len, k_len)
        upstream = np.asarray(grad_o[b, h], dtype=np.float64)
        delta = (upstream * o).sum(axis=1, keepdims=True)
        grad_scores = weights * (upstream @ v.T - delta) * case.softmax_scale
        found.dq[b, h] = grad_scores @ k
        found.dk[b, kv] += grad_scores.T @ q
        found.dv[b, kv] += weights.T @ upstream
    return found


def _added_by_tile(left: Array, right: Array, block: int) -> Array:
    """left @ right in float32, adding runs of `block` of the inner dimension one after the other."""
    total = np.zeros((left.shape[0], right.shape[1]), dtype=np.float32)
    for start in range(0, left.shape[1], block):
        total = total + left[:, start : start + block] @ right[start : start + block]
    return total


def emulate_gradients(
    case: AttentionCase, grad_o: Array, tiling: Tiling, stored: tuple[Array, Array] | None = None
) -> Gradients:
    """Gradients of an emulated kernel, rounded to the working dtype.

    Args:
        stored: the O and LSE that it starts from; its own forward's when None.
    """
    found = Gradients(*(np.zeros(values.shape, dtype=np.float32) for values in (case.q, case.k, case.v)))
    scale = np.float32(case.softmax_scale)
    for view in _slices(case):
        b, h = int(view.batches[0]), int(view.heads[0])
        kv = h // case.group
        q, k, v = (values[0].astype(np.float32) for values in (view.q(), view.k(), view.v()))
        o, lse = emulate(view, tiling) if stored is None else (each[b, h][None] for each in stored)
        shift = np.where(np.isneginf(lse[0]), 0.0, lse[0] * LOG2_E).astype(np.float32)[:, None]
        weights = np.exp2(scores_log2(view, scaled_q=tiling.scaled_q)[0] - shift)
        upstream = np.asarray(grad_o[b, h], dtype=np.float32)
        delta = (upstream * o[0].astype(np.float32)).sum(axis=1, keepdims=True)
        grad_scores = round_to(weights * (upstream @ v.T - delta), case.dtype)
        found.dq[b, h] = _added_by_tile(grad_scores, k, tiling.block_k) * scale
        found.dk[b, kv] += _added_by_tile(grad_scores.T, q, tiling.block_k) * scale
        found.dv[b, kv] += _added_by_tile(round_to(weights, case.dtype).T, upstream, tiling.block_k)
    return Gradients(*(round_to(values, case.dtype).astype(np.float64) for values in (found.dq, found.dk, found.dv)))


@dataclass(frozen=True, eq=False)
class GradientBounds:
    """The exact gradients and the bounds of each."""

    exact: Gradients
    bounds: dict[str, TensorBounds]

    def breaches(self, found: Gradients) -> list[Breach]:
        """Every rule that `found` breaks, in the order dQ, dK, dV."""
        expected = self.exact.named()
        return [
            breach
            for name, values in found.named().items()
            for breach in self.bounds[name].breaches(np.asarray(values, dtype=np.float64), expected[name])
        ]

    def ratio(self, name: str, values: Array) -> float:
        """Error of one gradient over what is allowed; see `TensorBounds.ratio`."""
        return self.bounds[name].ratio(values, self.exact.named()[name])


def cancellation_noise(case: AttentionCase, grad_o: Array) -> dict[str, float]:
    """How far the order of additions in dO · V moves dQ and dK: the largest standard deviation of an element.

    dP and Delta are float32 sums of head_dim products each, off by about a float32 ulp of the sum of their sizes. Where
    they cancel (a row that sees one key has dS = 0) nothing else is left, and the emulators, which add in one order,
    don't span it.
    """
    dq, dk = 0.0, np.zeros(case.k.shape)
    for view in _slices(case):
        b, h = int(view.batches[0]), int(view.heads[0])
        q, k, v = view.q()[0], view.k()[0], view.v()[0]
        visible = view.visible()[0]
        scores = np.where(visible, q @ k.T * case.softmax_scale, -np.inf)
        _, lse = softmax_attention(scores, visible, v)
        weights = np.exp(scores - np.where(np.isneginf(lse), 0.0, lse)[:, None])
        off = np.square(weights * (np.abs(grad_o[b, h]) @ np.abs(v).T) * (ULP["float32"] * case.softmax_scale))
        dq = max(dq, float((off @ np.square(k)).max()))
        dk[b, h // case.group] += off.T @ np.square(q)
    return {"dQ": float(np.sqrt(dq)), "dK": float(np.sqrt(dk.max())), "dV": 0.0}


def gradient_bounds(case: AttentionCase, grad_o: Array, tilings: Sequence[Tiling] = TILINGS) -> GradientBounds:
    """Bounds of the gradients of a case, by the rules of the forward pass, and room for `cancellation_noise`.

    Args:
        tilings: of the emulated kernels; each takes seconds for a thousand queries and keys.
    """
    exact = gradients(case, grad_o)
    noise = score_noise(forward_view(RowView.whole(case))[1])
    emulated = [emulate_gradients(case, grad_o, tiling).named() for tiling in tilings]
    # A kernel that is given an exact LSE recomputes scores with roundings that this LSE doesn't share.
    stored = output_and_lse(case)
    emulated += [emulate_gradients(case, grad_o, tiling, stored).named() for tiling in tilings[:2]]
    cancelled = cancellation_noise(case, grad_o)
    bounds = {}
    for name, expected in exact.named().items():
        found = tensor_bounds(name, case.dtype, expected, [each[name] for each in emulated], noise)
        extra = cancelled[name]
        allowed = Errors(
            found.allowed.max + CANCELLATION.max * extra,
            found.allowed.row_rms + CANCELLATION.row_rms * extra,
            found.allowed.mean + CANCELLATION.mean * extra,
        )
        bounds[name] = replace(found, allowed=allowed)
    return GradientBounds(exact, bounds)


def output_and_lse(case: AttentionCase) -> tuple[Array, Array]:
    """The forward pass that a backward kernel starts from, rounded as it stores it: O in the dtype, LSE in float32."""
    o, lse = forward_view(RowView.whole(case))
    shape = (case.batch, case.q_heads, case.q_len)
    stored = lse.astype(np.float32).astype(np.float64)
    return round_to(o, case.dtype).reshape(*shape, -1), stored.reshape(shape)

"""What some rows of a timed call's outputs must hold: attention, its gradients.

A timed call is right or it did other work than it was asked to: an answer kept from another call, a head left out, half
the precision. The rules of `grader.judge.tolerance` judge numerics elsewhere, at every shape and input family; here a
row may be off by a few roundings of the working dtype and no more, so that no honest kernel is ever refused on one of
thousands of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grader.judge.oracle import Window, softmax_attention, visible_keys, window_bounds
from grader.judge.speed.model import Array, Drawn, Picks

ALLOWED = {"bfloat16": 2.0**-5, "float16": 2.0**-7, "float32": 2.0**-10, "float64": 2.0**-20}
"""RMS of the error over RMS of the rows. A right kernel in half precision is off by some 2^-9 (2^-11) of them, a
gradient by a few times that; another call's answer by 1.4, FP8 arithmetic by 2^-5 and more. float32 leaves room for
TF32, which is a matter of the checks on precision."""
LSE_ALLOWED = 0.02
ROWS = 4


def off_by(name: str, taken: Array, wanted: Array, dtype: str) -> str:
    """How rows differ from what they should be, as a phrase; empty when they don't."""
    if taken.shape != wanted.shape:
        return f"{name} has rows of shape {taken.shape[1:]}, expected {wanted.shape[1:]}"
    found = np.asarray(taken, dtype=np.float64)
    if not np.isfinite(found).all():
        return f"{name} has values that aren't finite"
    size = float(np.sqrt(np.mean(wanted**2)))
    error = float(np.sqrt(np.mean((found - wanted) ** 2)))
    if error <= ALLOWED[dtype] * size:
        return ""
    return f"{name} is off by {error / size:.2g} of its size" if size > 0 else f"{name} isn't zero where it must be"


@dataclass(frozen=True)
class AttentionShape:
    """Of a timed attention; q (batch, q_heads, q_len, head_dim), k and v (batch, kv_heads, k_len, head_dim)."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int
    dtype: str
    causal: bool = False
    scale: float | None = None
    window: Window | None = None

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def visible(self, rows: Array) -> Array:
        """bool (rows, k_len)."""
        return visible_keys(rows, self.k_len, self.k_len - self.q_len, window_bounds(self.causal, self.window))

    def head(self, rng: np.random.Generator) -> tuple[int, int]:
        return int(rng.integers(self.batch)), int(rng.integers(self.q_heads))


def _indices(batch: int, head: int, rows: Array) -> Array:
    return np.stack([np.full(len(rows), batch), np.full(len(rows), head), rows], axis=1)


@dataclass(frozen=True)
class AttentionRows:
    """Rows of O, output 0, and of the LSE, output 1 where there is one; inputs ``q``, ``k``, ``v``."""

    shape: AttentionShape
    with_lse: bool = True

    def choose(self, rng: np.random.Generator) -> Picks:
        batch, head = self.shape.head(rng)
        indices = _indices(batch, head, rng.integers(0, self.shape.q_len, size=ROWS))
        return {0: indices, 1: indices} if self.with_lse else {0: indices}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        shape = self.shape
        batch, head, rows = int(picks[0][0, 0]), int(picks[0][0, 1]), picks[0][:, 2]
        q, kv_head = drawn.take("q", batch, head)[rows], head // shape.group
        k, v = drawn.take("k", batch, kv_head), drawn.take("v", batch, kv_head)
        o, lse = softmax_attention(q @ k.T * shape.softmax_scale, shape.visible(rows), v)
        problem = off_by("O", taken[0], o, shape.dtype)
        if problem or not self.with_lse:
            return problem
        if taken[1].shape != lse.shape or not np.allclose(taken[1], lse, rtol=0.0, atol=LSE_ALLOWED):
            return "the LSE is wrong"
        return ""


@dataclass(frozen=True)
class GradientRows:
    """Rows of dQ, dK, dV, outputs 0 to 2; inputs ``q``, ``k``, ``v`` and the cotangent ``do``.

    dK and dV need every query of a whole group of heads, which costs a second where dQ costs a hundredth: one call in
    `every` is asked for them.
    """

    shape: AttentionShape
    every: int = 8

    def choose(self, rng: np.random.Generator) -> Picks:
        shape = self.shape
        batch, head = shape.head(rng)
        if rng.integers(self.every):
            return {0: _indices(batch, head, rng.integers(0, shape.q_len, size=ROWS))}
        keys = _indices(batch, head // shape.group, rng.integers(0, shape.k_len, size=ROWS))
        return {1: keys, 2: keys}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        shape = self.shape
        if 0 in picks:
            batch, head, rows = int(picks[0][0, 0]), int(picks[0][0, 1]), picks[0][:, 2]
            kv_head = head // shape.group
            k, v = drawn.take("k", batch, kv_head), drawn.take("v", batch, kv_head)
            grad_scores, _, _, _ = self._scores(drawn, batch, head, rows, k, v)
            return off_by("dQ", taken[0], grad_scores @ k, shape.dtype)
        batch, kv_head, keys = int(picks[1][0, 0]), int(picks[1][0, 1]), picks[1][:, 2]
        k, v = drawn.take("k", batch, kv_head), drawn.take("v", batch, kv_head)
        dk, dv = np.zeros((len(keys), shape.head_dim)), np.zeros((len(keys), v.shape[1]))
        for head in range(kv_head * shape.group, (kv_head + 1) * shape.group):
            for first in range(0, shape.q_len, 256):
                rows = np.arange(first, min(first + 256, shape.q_len))
                grad_scores, weights, q, upstream = self._scores(drawn, batch, head, rows, k, v, keys)
                dk += grad_scores.T @ q
                dv += weights.T @ upstream
        return off_by("dK", taken[1], dk, shape.dtype) or off_by("dV", taken[2], dv, shape.dtype)

    def _scores(
        self,
        drawn: Drawn,
        batch: int,
        head: int,
        rows: Array,
        k: Array,
        v: Array,
        keys: Array | slice = slice(None),
    ) -> tuple[Array, Array, Array, Array]:
        """(dS times the scale, P, Q, dO) of some query rows: (rows, keys) twice, (rows, head_dim) twice."""
        shape, scale = self.shape, self.shape.softmax_scale
        numbers = (batch * shape.q_heads + head) * shape.q_len + rows
        q, upstream = drawn.take_rows("q", numbers), drawn.take_rows("do", numbers)
        visible = shape.visible(rows)
        scores = q @ k.T * scale
        o, lse = softmax_attention(scores, visible, v)
        scores, v, visible = scores[:, keys], v[keys], visible[:, keys]
        shift = np.where(np.isneginf(lse), 0.0, lse)[:, None]
        weights = np.exp(np.where(visible, scores, -np.inf) - shift)
        delta = (upstream * o).sum(axis=1, keepdims=True)
        return weights * (upstream @ v.T - delta) * scale, weights, q, upstream

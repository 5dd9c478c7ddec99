"""The test that goes with every row: outputs of calls at that very shape against float64, and how far they may be off.

Allowed is twice the error of an honest kernel on the same rows (scores and sums in float32, P and dS rounded to the
working dtype before their products, the output rounded) plus one unit in the last place of the largest value: what the
labs' own `benchmark.py` allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grader.judge.precision import ULP, Array, round_to
from grader.judge.speed.decode import DecodeRows, DecodeShape
from grader.judge.speed.model import Drawn, Picks
from grader.judge.speed.oracles import AttentionShape

ROWS = 16
LARGE = 1e38
"""Stands in a table for an error that isn't finite."""


@dataclass
class Worst:
    """The largest error over what was allowed, of all rows that were looked at; `asked` counts calls picked."""

    error: float = 0.0
    allowed: float = 0.0
    looks: int = 0
    asked: int = 0

    @property
    def right(self) -> bool:
        return self.looks > 0 and self.error <= self.allowed

    def note(self, error: float, allowed: float) -> str:
        """Keep the worse of this and what was seen before; a phrase when this one is over."""
        error = error if np.isfinite(error) else LARGE
        if self.looks == 0 or error * self.allowed >= self.error * allowed:
            self.error, self.allowed = error, allowed
        self.looks += 1
        return "" if error <= allowed else f"off by {error:.3g}, {allowed:.3g} are allowed"

    def compare(self, taken: Array, exact: Array, honest: Array, dtype: str) -> str:
        if taken.shape != exact.shape:
            return self.note(LARGE, 0.0) and f"rows of shape {taken.shape[1:]}, expected {exact.shape[1:]}"
        error = float(np.max(np.abs(np.asarray(taken, dtype=np.float64) - exact)))
        slack = ULP[dtype] * float(np.abs(exact).max())
        return self.note(error, 2.0 * float(np.abs(honest - exact).max()) + slack)


def _working(dtype: str | None) -> np.dtype[Any]:
    """What sums are held in: float64 for the exact answer (None), float32 in a kernel."""
    return np.dtype(np.float64 if dtype is None else np.float32)


def attended(q: Array, k: Array, v: Array, visible: Array, scale: float, dtype: str | None) -> tuple[Array, Array]:
    """(O, LSE) of rows q (rows, d) over k, v (keys, d): exact in float64, or as an honest kernel with that dtype."""
    working = _working(dtype)
    q, k, v = (values.astype(working) for values in (q, k, v))
    scores = np.where(visible, q @ k.T * working.type(scale), -np.inf)
    row_max = scores.max(axis=1, keepdims=True)
    p = np.exp(scores - row_max)
    row_sum = p.sum(axis=1, keepdims=True)
    o = (p if dtype is None else round_to(p, dtype)) @ v / row_sum
    return (o if dtype is None else round_to(o, dtype)), (row_max + np.log(row_sum))[:, 0]


def _indices(batch: int, head: int, rows: Array) -> Array:
    return np.stack([np.full(len(rows), batch), np.full(len(rows), head), rows], axis=1)


@dataclass(frozen=True)
class ForwardTest:
    """Random rows of one head of O, output 0. An `OutputOracle` that keeps what it saw in `worst`."""

    shape: AttentionShape
    worst: Worst = field(default_factory=Worst)

    def choose(self, rng: np.random.Generator) -> Picks:
        batch, head = self.shape.head(rng)
        return {0: _indices(batch, head, rng.integers(0, self.shape.q_len, size=ROWS))}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        shape = self.shape
        batch, head, rows = int(picks[0][0, 0]), int(picks[0][0, 1]), picks[0][:, 2]
        kv_head = head // shape.group
        q = drawn.take("q", batch, head)[rows]
        k, v = drawn.take("k", batch, kv_head), drawn.take("v", batch, kv_head)
        visible = shape.visible(rows)
        exact, honest = (
            attended(q, k, v, visible, shape.softmax_scale, dtype)[0].astype(np.float64)
            for dtype in (None, shape.dtype)
        )
        problem = self.worst.compare(taken[0], exact, honest, shape.dtype)
        return problem and f"O is {problem}"


@dataclass(frozen=True)
class GradientTest:
    """Rows of dQ, dK and dV of one head, outputs 0 to 2; as many query heads as KV heads.

    A row of dK or dV needs every query of its head, so the first call alone is asked for them: that one is tested
    before anything is timed.
    """

    shape: AttentionShape
    worst: Worst = field(default_factory=Worst)

    def choose(self, rng: np.random.Generator) -> Picks:
        batch, head = self.shape.head(rng)
        picks = {0: _indices(batch, head, rng.integers(0, self.shape.q_len, size=ROWS))}
        if self.worst.asked == 0:
            picks[1] = picks[2] = _indices(batch, head, rng.integers(0, self.shape.k_len, size=ROWS))
        self.worst.asked += 1
        return picks

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        batch, head = int(picks[0][0, 0]), int(picks[0][0, 1])
        rows, keys = picks[0][:, 2], picks[1][:, 2] if 1 in picks else None
        q, k, v, do = (drawn.take(name, batch, head) for name in ("q", "k", "v", "do"))
        exact, honest = (self._gradients(q, k, v, do, rows, keys, dtype) for dtype in (None, self.shape.dtype))
        found = ""
        for output, name in enumerate(("dQ", "dK", "dV")[: len(exact)]):
            problem = self.worst.compare(taken[output], exact[output], honest[output], self.shape.dtype)
            found = found or (problem and f"{name} is {problem}")
        return found

    def _gradients(
        self, q: Array, k: Array, v: Array, do: Array, rows: Array, keys: Array | None, dtype: str | None
    ) -> list[Array]:
        """dQ of `rows`, and dK and dV of `keys`, in float64; of an honest kernel with `dtype`, exact with None."""
        working = _working(dtype)
        scale = working.type(self.shape.softmax_scale)
        q, k, v, do = (values.astype(working) for values in (q, k, v, do))
        _, ds = self._scores(q[rows], k, v, do[rows], rows, dtype)
        gradients: list[Array] = [ds @ k * scale]
        if keys is not None:
            dk: Array = np.zeros((len(keys), k.shape[1]), working)
            dv: Array = np.zeros((len(keys), v.shape[1]), working)
            for first in range(0, self.shape.q_len, 512):
                block = np.arange(first, min(first + 512, self.shape.q_len))
                p, ds = self._scores(q[block], k, v, do[block], block, dtype, keys)
                dk += ds.T @ q[block]
                dv += p.T @ do[block]
            gradients += [dk * scale, dv]
        rounded = gradients if dtype is None else [round_to(values, dtype) for values in gradients]
        return [values.astype(np.float64) for values in rounded]

    def _scores(
        self,
        q: Array,
        k: Array,
        v: Array,
        do: Array,
        rows: Array,
        dtype: str | None,
        keys: Array | slice = slice(None),
    ) -> tuple[Array, Array]:
        """P and dS (without the scale), (rows, keys), rounded as a kernel rounds them before their products."""
        scale, visible = self.shape.softmax_scale, self.shape.visible(rows)
        o, lse = attended(q, k, v, visible, scale, dtype)
        k, v, visible = k[keys], v[keys], visible[:, keys]
        p = np.where(visible, np.exp(q @ k.T * q.dtype.type(scale) - lse[:, None]), 0.0).astype(q.dtype)
        ds = p * (do @ v.T - (do * o).sum(axis=1, keepdims=True))
        return (p, ds) if dtype is None else (round_to(p, dtype), round_to(ds, dtype))


@dataclass(frozen=True)
class DecodeTest:
    """Heads of one sequence of a decode step's O, output 0."""

    rows: DecodeRows
    worst: Worst = field(default_factory=Worst)

    @property
    def shape(self) -> DecodeShape:
        return self.rows.shape

    def choose(self, rng: np.random.Generator) -> Picks:
        return self.rows.choose(rng)

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        shape, batch = self.shape, int(picks[0][0, 0])
        heads = picks[0][:, 1]
        q, kv_head = drawn.take("q", batch)[heads], int(heads[0]) // shape.group
        k, v = (self.rows.tokens(drawn, name, batch, kv_head) for name in ("k_cache", "v_cache"))
        visible = np.ones((len(heads), shape.context), dtype=bool)
        exact, honest = (
            attended(q, k, v, visible, shape.softmax_scale, dtype)[0].astype(np.float64)
            for dtype in (None, shape.dtype)
        )
        problem = self.worst.compare(taken[0], exact, honest, shape.dtype)
        return problem and f"O is {problem}"

"""Attention in float64 from the rounded inputs: what an answer is compared with.

Everything here works on a `RowView`: some query rows of some (batch, head) slices of a case. A whole output is the
view of all rows; at GPU sizes a view samples a few rows of every slice, and the oracle stays exact on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from grader.judge.precision import Array

BLOCK_ELEMENTS = 1 << 21
"""Scores held at once (16 MiB in float64)."""

Window = tuple[int, int]
Result = tuple[Array, Array]
"""(O, LSE) of a view: (slices, rows, head_dim) and (slices, rows)."""


@dataclass(frozen=True, eq=False)
class AttentionCase:
    """One attention call as the judge sees it.

    Attributes:
        q: (batch, q_heads, q_len, head_dim); values representable in `dtype`, held in float64.
        k, v: (batch, kv_heads, k_len, head_dim).
        dtype: working dtype of the tensors that the submission gets.
        causal: row i sees keys j ≤ i + k_len - q_len (bottom-right alignment).
        scale: factor of the scores; None means head_dim^-½.
        window: (left, right), both inclusive around i + k_len - q_len; -1 is unbounded. None is no window.
        layouts: memory layout of q, k, v (see `grader.judge.layouts`).
        family: where the values came from.
    """

    q: Array
    k: Array
    v: Array
    dtype: str
    causal: bool = False
    scale: float | None = None
    window: Window | None = None
    layouts: tuple[str, str, str] = ("contiguous", "contiguous", "contiguous")
    family: str = "given"

    @property
    def batch(self) -> int:
        return int(self.q.shape[0])

    @property
    def q_heads(self) -> int:
        return int(self.q.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.k.shape[1])

    @property
    def q_len(self) -> int:
        return int(self.q.shape[2])

    @property
    def k_len(self) -> int:
        return int(self.k.shape[2])

    @property
    def head_dim(self) -> int:
        return int(self.q.shape[3])

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def diagonal(self) -> int:
        """Key position that query row 0 is aligned with: k_len - q_len."""
        return self.k_len - self.q_len


def window_bounds(causal: bool, window: Window | None) -> tuple[int | None, int | None]:
    """(left, right) reach of a row around its aligned key, None where unbounded; causal bounds the right by 0."""
    left, right = window if window is not None else (-1, -1)
    reach_left = None if left < 0 else left
    reach_right = None if right < 0 else right
    if causal:
        reach_right = 0
    return reach_left, reach_right


def visible_keys(
    rows: Array, k_len: int, diagonal: int, reach: tuple[int | None, int | None], k_start: int = 0
) -> Array:
    """Which keys each query row sees.

    Args:
        rows: query positions, any shape.
        k_len: number of keys.
        diagonal: key aligned with query 0.
        reach: from `window_bounds`.
        k_start: position of the first key.

    Returns:
        bool, rows.shape + (k_len,).
    """
    distance = np.arange(k_start, k_start + k_len) - (rows[..., None] + diagonal)  # key minus aligned key
    seen = np.ones(distance.shape, dtype=bool)
    left, right = reach
    if left is not None:
        seen &= distance >= -left
    if right is not None:
        seen &= distance <= right
    return seen


@dataclass(frozen=True, eq=False)
class RowView:
    """Query rows of (batch, head) slices.

    Attributes:
        batches, heads: (slices,) which batch entry and query head.
        rows: (slices, n) or (1, n) query positions.
    """

    case: AttentionCase
    batches: Array
    heads: Array
    rows: Array

    @classmethod
    def whole(cls, case: AttentionCase) -> RowView:
        """Every row of every slice, slices in (batch, head) order."""
        batches = np.repeat(np.arange(case.batch), case.q_heads)
        heads = np.tile(np.arange(case.q_heads), case.batch)
        return cls(case, batches, heads, np.arange(case.q_len)[None])

    @classmethod
    def sample(
        cls, case: AttentionCase, rng: np.random.Generator, *, slices: int | None = None, tile: int = 64
    ) -> RowView:
        """One random row of every tile of `tile` rows, and always the first and last row, in `slices` random slices.

        Slices are all of them by default; each slice has rows of its own.
        """
        every = cls.whole(case)
        total = every.batches.size
        chosen = np.arange(total)
        if slices is not None and slices < total:
            chosen = np.sort(rng.choice(total, size=slices, replace=False))
        starts = np.arange(0, case.q_len, tile)
        stops = np.minimum(starts + tile, case.q_len)
        inner = rng.integers(starts, stops, size=(chosen.size, starts.size))
        ends = np.broadcast_to(np.array([0, case.q_len - 1]), (chosen.size, 2))
        rows = np.sort(np.concatenate([inner, ends], axis=1), axis=1)
        return cls(case, every.batches[chosen], every.heads[chosen], rows)

    @property
    def slices(self) -> int:
        return int(self.batches.size)

    @property
    def is_whole(self) -> bool:
        return self.rows.shape == (1, self.case.q_len) and self.slices == self.case.batch * self.case.q_heads

    def blocks(self, extra: int = 1) -> Iterator[RowView]:
        """The view cut into pieces whose scores (times `extra`) stay under BLOCK_ELEMENTS."""
        keys = self.case.k_len * extra
        count = self.rows.shape[1]
        rows_at_once = max(1, min(count, BLOCK_ELEMENTS // keys))
        slices_at_once = max(1, BLOCK_ELEMENTS // (rows_at_once * keys))
        for first in range(0, self.slices, slices_at_once):
            part = slice(first, first + slices_at_once)
            for start in range(0, count, rows_at_once):
                own = self.rows if self.rows.shape[0] == 1 else self.rows[part]
                yield replace(
                    self,
                    batches=self.batches[part],
                    heads=self.heads[part],
                    rows=own[:, start : start + rows_at_once],
                )

    def map(self, compute: Callable[[RowView], Result]) -> Result:
        """`compute` over `blocks`, put together again."""
        count = self.rows.shape[1]
        o = np.empty((self.slices, count, self.case.v.shape[3]))
        lse = np.empty((self.slices, count))
        first = start = 0
        for block in self.blocks():
            slices, rows = slice(first, first + block.slices), slice(start, start + block.rows.shape[1])
            o[slices, rows], lse[slices, rows] = compute(block)
            start += block.rows.shape[1]
            if start == count:
                first, start = first + block.slices, 0
        return o, lse

    def take(self, tensor: Array) -> Array:
        """The view's rows of an output (batch, q_heads, q_len, ...), as float64 (slices, n, ...)."""
        picked = tensor[self.batches[:, None], self.heads[:, None], self.rows]
        return np.asarray(picked, dtype=np.float64)

    def q(self) -> Array:
        """(slices, n, head_dim) float64."""
        return self.take(self.case.q)

    def k(self, kv_heads: Array | None = None) -> Array:
        """(slices, k_len, head_dim) float64; of the grouped kv head, or of the kv heads given a slice."""
        return self._keys(self.case.k, kv_heads)

    def v(self, kv_heads: Array | None = None) -> Array:
        """Like `k`, of V."""
        return self._keys(self.case.v, kv_heads)

    def _keys(self, tensor: Array, kv_heads: Array | None) -> Array:
        heads = self.heads // self.case.group if kv_heads is None else kv_heads
        return np.asarray(tensor[self.batches, heads], dtype=np.float64)

    def visible(self) -> Array:
        """bool, (slices or 1, n, k_len)."""
        case = self.case
        return visible_keys(self.rows, case.k_len, case.diagonal, window_bounds(case.causal, case.window))


def softmax_attention(scores: Array, visible: Array, v: Array) -> Result:
    """O and LSE of scaled scores (slices, n, keys), where a row without a visible key gives 0 and -inf."""
    masked = np.where(visible, scores, -np.inf)
    row_max = masked.max(axis=-1, keepdims=True)
    shift = np.where(np.isneginf(row_max), 0.0, row_max)
    weights = np.exp(masked - shift)
    row_sum = weights.sum(axis=-1, keepdims=True)
    empty = row_sum == 0.0
    o = (weights @ v) / np.where(empty, 1.0, row_sum)
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(row_sum))[..., 0]
    return o, lse


def forward_view(view: RowView) -> Result:
    """Exact O (slices, n, head_dim) and LSE (slices, n) of a view."""

    def block(part: RowView) -> Result:
        scores = part.q() @ np.swapaxes(part.k(), -1, -2) * part.case.softmax_scale
        return softmax_attention(scores, part.visible(), part.v())

    return view.map(block)


def forward(case: AttentionCase) -> Result:
    """Exact O (batch, q_heads, q_len, head_dim) and LSE (batch, q_heads, q_len), natural log, in float64."""
    o, lse = forward_view(RowView.whole(case))
    shape = (case.batch, case.q_heads, case.q_len)
    return o.reshape(*shape, -1), lse.reshape(shape)

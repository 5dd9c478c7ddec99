"""The workload of a decode step: one query row a sequence against a paged KV cache, pages in a row or anywhere.

q (batch, q_heads, head_dim); caches (pages, page_size, kv_heads, head_dim); block_table (batch, pages a sequence) and
context_lens (batch,), int32. Every sequence has the same context, and pages that are full but for its last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grader.judge.oracle import softmax_attention
from grader.judge.speed.model import Array, Drawn, InputSpec, Picks, Workload
from grader.judge.speed.oracles import off_by
from grader.worker.wire import ITEM_SIZES

HEADS = 4
"""Query heads on one kv head of one sequence that are looked at in one call: its K and V are read once for all."""


@dataclass(frozen=True)
class DecodeShape:
    """Sizes of a decode step; `page_size` = `context` is a contiguous cache."""

    batch: int
    q_heads: int
    kv_heads: int
    context: int
    head_dim: int
    page_size: int
    dtype: str
    scale: float | None = None

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def pages(self) -> int:
        """Of one sequence."""
        return -(-self.context // self.page_size)

    @property
    def least_bytes(self) -> int:
        """K and V of every token once a kv head, Q and O once, table and lengths apart."""
        rows = self.context * self.kv_heads + self.q_heads
        return 2 * self.batch * self.head_dim * rows * ITEM_SIZES[self.dtype]

    @property
    def flops(self) -> float:
        """Two products of 2·head_dim a (query head, key)."""
        return 4.0 * self.batch * self.q_heads * self.context * self.head_dim

    def table(self, rng: np.random.Generator | None = None) -> Array:
        """Block table, int32 (batch, pages): in order, or shuffled over the whole cache by `rng`."""
        pages = np.arange(self.batch * self.pages, dtype=np.int32)
        if rng is not None:
            pages = rng.permutation(pages)
        return pages.reshape(self.batch, self.pages)


def some_heads(rng: np.random.Generator, batch: int, q_heads: int, kv_heads: int) -> Array:
    """`HEADS` pairs (sequence, query head), int (HEADS, 2): one sequence, one kv head."""
    group = q_heads // kv_heads
    heads = rng.integers(kv_heads) * group + rng.integers(0, group, size=HEADS)
    return np.stack([np.full(HEADS, rng.integers(batch)), heads], axis=1)


@dataclass(frozen=True, eq=False)
class DecodeRows:
    """Some heads of one sequence of O, output 0; inputs ``q``, ``k_cache``, ``v_cache``."""

    shape: DecodeShape
    table: Array

    def choose(self, rng: np.random.Generator) -> Picks:
        return {0: some_heads(rng, self.shape.batch, self.shape.q_heads, self.shape.kv_heads)}

    def tokens(self, drawn: Drawn, name: str, batch: int, kv_head: int) -> Array:
        """K or V of one sequence and kv head, (context, head_dim)."""
        shape = self.shape
        slots = self.table[batch].astype(np.int64)[:, None] * shape.page_size + np.arange(shape.page_size)
        return drawn.take_rows(name, slots.ravel()[: shape.context] * shape.kv_heads + kv_head)

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        shape, batch, heads = self.shape, int(picks[0][0, 0]), picks[0][:, 1]
        kv_head = int(heads[0]) // shape.group
        k, v = (self.tokens(drawn, name, batch, kv_head) for name in ("k_cache", "v_cache"))
        scores = drawn.take("q", batch)[heads] @ k.T * shape.softmax_scale
        wanted, _ = softmax_attention(scores, np.ones_like(scores, dtype=bool), v)
        return off_by("O", taken[0], wanted, shape.dtype)


def decode(
    shape: DecodeShape, table: Array, *, function: str = "paged_decode", module: str | None = None, label: str = ""
) -> Workload:
    """`function(q, k_cache, v_cache, block_table, context_lens)` at a shape, its calls replayed from a CUDA graph.

    Args:
        table: from `DecodeShape.table`.
        label: what the pages are, e.g. ``paged``.
    """
    cache = (shape.batch * shape.pages, shape.page_size, shape.kv_heads, shape.head_dim)
    lengths = np.full(shape.batch, shape.context, dtype=np.int32)
    kwargs = {} if shape.scale is None else {"scale": shape.scale}
    output_bytes = shape.batch * shape.q_heads * (shape.head_dim * ITEM_SIZES[shape.dtype] + 4)
    return Workload(
        label=f"({shape.batch}, {shape.q_heads}/{shape.kv_heads}, {shape.context}, {shape.head_dim}) {label}".rstrip(),
        function=function,
        inputs=(
            InputSpec("q", (shape.batch, shape.q_heads, shape.head_dim), shape.dtype),
            InputSpec("k_cache", cache, shape.dtype),
            InputSpec("v_cache", cache, shape.dtype),
            InputSpec("block_table", table.shape, "int32", kind="fixed", value=table),
            InputSpec("context_lens", lengths.shape, "int32", kind="fixed", value=lengths),
        ),
        flops=shape.flops,
        bytes=float(shape.least_bytes + table.nbytes + lengths.nbytes),
        output_bytes=float(output_bytes),
        dtype=shape.dtype,
        oracle=DecodeRows(shape, table),
        module=module,
        kwargs=kwargs,
    )

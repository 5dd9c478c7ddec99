"""A paged KV cache as the judge sees it: draws one, tells what each sequence holds, makes the submission's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from grader.judge import families, layouts
from grader.judge.oracle import AttentionCase
from grader.judge.precision import Array, numpy_dtype, round_to
from grader.sandbox.wire import Tensor

Order = Literal["permuted", "ordered"]
NearAndFar = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""A call's tensors as they usually lie, and with values far out in memory."""
NO_PAGE = -1
"""What a table entry holds that no key needs, unless a check says otherwise."""


@dataclass(frozen=True, eq=False)
class DecodeCase:
    """One call of `paged_decode`.

    Attributes:
        q: (batch, q_heads, head_dim); values representable in `dtype`, held in float64.
        k_cache, v_cache: (pages, page_size, kv_heads, head_dim); slots that no sequence uses hold stale values, or NaN.
        table: (batch, max_pages) int64; entries that no token needs are `NO_PAGE`, or name a page that no one uses.
        lens: tokens of each sequence.
        dtype: working dtype of q and the caches.
        scale, num_splits: passed to the call unless None.
        family: where the values came from.
    """

    q: Array
    k_cache: Array
    v_cache: Array
    table: Array
    lens: tuple[int, ...]
    dtype: str
    scale: float | None = None
    num_splits: int | None = None
    family: str = "given"

    @property
    def batch(self) -> int:
        return len(self.lens)

    @property
    def q_heads(self) -> int:
        return int(self.q.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.k_cache.shape[2])

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.q_heads // self.kv_heads

    @property
    def page_size(self) -> int:
        return int(self.k_cache.shape[1])

    @property
    def pages(self) -> int:
        return int(self.k_cache.shape[0])

    @property
    def head_dim(self) -> int:
        return int(self.q.shape[2])

    @property
    def itemsize(self) -> int:
        return int(numpy_dtype(self.dtype).itemsize)

    def pages_of(self, sequence: int) -> int:
        """Pages that the sequence's tokens lie in."""
        return -(-self.lens[sequence] // self.page_size)

    def live(self) -> Array:
        """bool (pages, page_size): slots that hold a token of some sequence."""
        used = np.zeros((self.pages, self.page_size), dtype=bool)
        for sequence, length in enumerate(self.lens):
            at, slot = self.place(self.table[sequence], np.arange(length))
            used[at, slot] = True
        return used

    def place(self, row: Array, positions: Array) -> tuple[Array, Array]:
        """(page, slot) of token positions by one row of the table."""
        page, slot = np.divmod(positions, self.page_size)
        return np.asarray(row[page], dtype=np.int64), slot

    def attention(self, sequence: int) -> AttentionCase:
        """The sequence's own attention, one query row over its tokens; it has at least one."""
        at, slot = self.place(self.table[sequence], np.arange(self.lens[sequence]))
        k, v = (np.swapaxes(cache[at, slot], 0, 1)[None] for cache in (self.k_cache, self.v_cache))
        q = self.q[sequence][None, :, None]
        return AttentionCase(q, k, v, self.dtype, scale=self.scale, family=self.family)


def case(
    rng: np.random.Generator,
    *,
    lens: Sequence[int],
    page_size: int = 16,
    q_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: str = "float16",
    family: str = "normal",
    order: Order = "permuted",
    spare: int = 3,
    room: int = 0,
    shared: int = 0,
    idle: int = 0,
    margin: int = 0,
    scale: float | None = None,
    num_splits: int | None = 1,
) -> DecodeCase:
    """Fresh values in a fresh cache.

    Args:
        lens: tokens of each sequence; 0 is an empty one.
        order: where the pages lie: anywhere, or one sequence after the other in ascending order.
        spare: pages that no sequence owns.
        room: tokens beyond each length that the table has pages for.
        idle: further columns of the table; they and what no token needs name a spare page, as when pages are reserved.
        shared: so many first pages of sequence 0 are also the first pages of every other (as far as it has pages).
        margin: so many pages at either end of the cache are among the spare ones.
    """
    longest = max([*lens, 1])
    shape = families.AttentionShape(len(lens), q_heads, kv_heads, 1, longest, head_dim)
    drawn = families.draw(family, rng, shape, dtype)
    table, pages = _allocate(rng, [-(-(n + room) // page_size) for n in lens], order, spare, shared, margin)
    size = (pages, page_size, kv_heads, head_dim)
    if idle:
        table = np.pad(table, ((0, 0), (0, idle)), constant_values=NO_PAGE)
        taken = np.setdiff1d(np.arange(pages), table)
        table = np.where(table == NO_PAGE, rng.choice(taken, table.shape), table)
    # Stale values are of another size than live ones, so that a single one that's read shows.
    k_cache, v_cache = (round_to(3.0 * rng.standard_normal(size), dtype) for _ in "kv")
    made = DecodeCase(drawn.q[:, :, 0], k_cache, v_cache, table, tuple(lens), dtype, scale, num_splits, family)
    for cache, values in ((k_cache, drawn.k), (v_cache, drawn.v)):
        for sequence in reversed(range(len(lens))):  # what is shared holds the first sequence's tokens
            at, slot = made.place(table[sequence], np.arange(lens[sequence]))
            cache[at, slot] = np.swapaxes(values[sequence], 0, 1)[: lens[sequence]]
    return made


def _allocate(
    rng: np.random.Generator, counts: list[int], order: Order, spare: int, shared: int, margin: int
) -> tuple[Array, int]:
    """(table, pages of the cache) for so many pages a sequence."""
    own = [count if i == 0 else max(0, count - shared) for i, count in enumerate(counts)]
    pages = sum(own) + spare
    usable = np.arange(margin, pages - margin)
    pool = rng.permutation(usable) if order == "permuted" else usable
    table = np.full((len(counts), max([*counts, 1]) + 1), NO_PAGE, dtype=np.int64)
    taken = 0
    for sequence, count in enumerate(counts):
        common = 0 if sequence == 0 else min(shared, count)
        table[sequence, :common] = table[0, :common]
        table[sequence, common:count] = pool[taken : taken + count - common]
        taken += count - common
    return table, pages


def poisoned(case: DecodeCase, k: bool, v: bool) -> DecodeCase:
    """The case with NaN in every slot and page of K, of V, or of both, that no sequence uses."""
    dead = ~case.live()
    k_cache, v_cache = case.k_cache.copy(), case.v_cache.copy()
    for cache, chosen in ((k_cache, k), (v_cache, v)):
        if chosen:
            cache[dead] = np.nan
    return replace(case, k_cache=k_cache, v_cache=v_cache)


def reordered(case: DecodeCase, rng: np.random.Generator) -> DecodeCase:
    """The same tokens with every page moved to another place in the cache."""
    moved = rng.permutation(case.pages)
    k_cache, v_cache = np.empty_like(case.k_cache), np.empty_like(case.v_cache)
    k_cache[moved], v_cache[moved] = case.k_cache, case.v_cache
    table = np.where(case.table == NO_PAGE, NO_PAGE, moved[case.table])
    return replace(case, k_cache=k_cache, v_cache=v_cache, table=table)


def without_sequences(case: DecodeCase) -> DecodeCase:
    """The case's caches and no sequence that uses them: a batch of 0."""
    return replace(case, q=case.q[:0], table=case.table[:0], lens=())


def renumbered(case: DecodeCase, numbers: Array, pages: int) -> DecodeCase:
    """The same tokens in a cache of so many pages, page p under `numbers[p]`; every slot of a page holds its first one.

    With K and V expanded along a page's slots a cache of any number of pages takes little memory.
    """
    caches = []
    for values in (case.k_cache, case.v_cache):
        first = np.zeros((pages, 1, *values.shape[2:]))
        first[numbers] = values[:, :1]
        caches.append(np.broadcast_to(first, (pages, *values.shape[1:])))
    table = np.where(case.table == NO_PAGE, NO_PAGE, numbers[case.table])
    return replace(case, k_cache=caches[0], v_cache=caches[1], table=table)


@dataclass(frozen=True)
class Memory:
    """How the tensors of a call lie in memory.

    Attributes:
        k_cache, v_cache: names of `layouts.LAYOUTS`; ``transposed`` is (pages, kv_heads, page_size, head_dim) memory.
            A broadcast layout makes the values equal along its axis (see `shared_along`).
        q: ``fused`` is a slice of rows that hold q, k and v of all heads, ``expanded`` one row for all sequences.
        integers: dtype of the table and the lengths.
        table: ``wide`` is a slice of a wider table, ``columns`` is (max_pages, batch) memory, ``expanded`` one row for
            all sequences.
        lens: ``wide`` are every other number of theirs, ``expanded`` one number for all sequences.
        unused: what stands in table entries that no key needs.
    """

    k_cache: str = "contiguous"
    v_cache: str = "contiguous"
    q: Literal["dense", "fused", "expanded"] = "dense"
    integers: str = "int32"
    table: Literal["dense", "wide", "columns", "expanded"] = "dense"
    lens: Literal["dense", "wide", "expanded"] = "dense"
    unused: int = NO_PAGE


PLAIN = Memory()


def shared_along(case: DecodeCase, memory: Memory) -> DecodeCase:
    """The case with values made equal along the axes that `memory` expands, so that they fit it.

    An expanded table needs sequences that share their pages, the first the longest; expanded lengths need equal ones.
    """
    k_cache, v_cache = (
        layouts.share_broadcast(values, layout)
        for values, layout in ((case.k_cache, memory.k_cache), (case.v_cache, memory.v_cache))
    )
    q = np.broadcast_to(case.q[:1], case.q.shape) if memory.q == "expanded" else case.q
    table = np.broadcast_to(case.table[:1], case.table.shape) if memory.table == "expanded" else case.table
    return replace(case, q=q, k_cache=k_cache, v_cache=v_cache, table=table)


def to_tensors(case: DecodeCase, device: str = "cpu", memory: Memory = PLAIN) -> tuple[Tensor, ...]:
    """q, k_cache, v_cache, block_table, context_lens as the submission gets them."""
    row = (case.q_heads + 2 * case.kv_heads) * case.head_dim
    outer = {"dense": None, "fused": row, "expanded": 0}[memory.q]
    strides = None if outer is None else (outer, case.head_dim, 1)
    q = Tensor(_typed(case.q, case.dtype), device=device, strides=strides)
    k_cache = cache_tensor(case.k_cache, case.dtype, memory.k_cache, device)
    v_cache = cache_tensor(case.v_cache, case.dtype, memory.v_cache, device)
    return (q, k_cache, v_cache, *index_tensors(case, device, memory))


def cache_tensor(values: Array, dtype: str, layout: str, device: str) -> Tensor:
    """A cache (pages, page_size, kv_heads, head_dim) in a layout of four axes."""
    strides, offset = layouts.describe(values.shape, layout)
    axis = layouts.LAYOUTS[layout].broadcast_axis
    kept = values if axis is None else np.take(values, [0], axis=axis)
    return Tensor(np.broadcast_to(_typed(kept, dtype), values.shape), device=device, strides=strides, offset=offset)


def index_tensors(case: DecodeCase, device: str, memory: Memory) -> tuple[Tensor, Tensor]:
    """block_table and context_lens."""
    table = np.where(case.table == NO_PAGE, memory.unused, case.table).astype(memory.integers)
    lens = np.array(case.lens, dtype=memory.integers)
    rows, columns = table.shape
    strides = {"dense": None, "wide": (columns + 5, 1), "columns": (1, rows), "expanded": (0, 1)}[memory.table]
    step = {"dense": None, "wide": (2,), "expanded": (0,)}[memory.lens]
    return (
        Tensor(np.ascontiguousarray(table), device=device, strides=strides),
        Tensor(lens, device=device, strides=step),
    )


def _typed(values: Array, dtype: str) -> Array:
    return np.ascontiguousarray(values.astype(numpy_dtype(dtype)))

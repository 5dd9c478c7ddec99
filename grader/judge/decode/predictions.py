"""What a mistake of paged decoding is, and the pieces that its prediction is put together from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.judge.decode.cache import DecodeCase
from grader.judge.precision import Array

Answer = tuple[Array, Array | None]
"""(O, LSE) of one sequence: (q_heads, head_dim) and (q_heads,). An LSE of None says nothing."""
Variant = Callable[[DecodeCase, int], Answer]
"""The answer that a mistaken kernel gives for one sequence of a case."""


@dataclass(frozen=True, eq=False)
class Mistake:
    """One known mistake: name, sentence for the student, what it produces in each flavour, where it can show.

    `nan` says that NaN alone is what it is recognised by; where caches hold NaN any other must predict a number.
    """

    id: str
    text: str
    variants: tuple[Variant, ...]
    shows: Callable[[DecodeCase], bool] = lambda case: True
    nan: bool = False


def walk(case: DecodeCase, row: Array, count: int, page_size: int | None = None) -> tuple[Array, Array]:
    """K and V (count, kv_heads, head_dim) of the first `count` positions by one table row.

    A page outside of the cache reads as NaN. With another `page_size` a slot may run into the page behind.
    """
    positions = np.arange(count)
    index, slot = np.divmod(positions, page_size or case.page_size)
    known = index < row.size
    page = np.where(known, row[np.minimum(index, row.size - 1)], -1)
    return gather(case, page * case.page_size + slot, known & (page >= 0))


def gather(case: DecodeCase, slots: Array, known: Array) -> tuple[Array, Array]:
    """K and V (count, kv_heads, head_dim) of slots counted through the cache; NaN where unknown or outside of it."""
    inside = known & (slots < case.pages * case.page_size)
    at = np.where(inside, slots, 0)
    flat = (cache.reshape(-1, case.kv_heads, case.head_dim) for cache in (case.k_cache, case.v_cache))
    k, v = (np.where(inside[:, None, None], cache[at], np.nan) for cache in flat)
    return k, v


def scores(case: DecodeCase, index: int, k: Array) -> Array:
    """Scaled scores (q_heads, keys)."""
    factor = case.head_dim**-0.5 if case.scale is None else case.scale
    q = case.q[index].reshape(case.kv_heads, case.group, case.head_dim)
    grouped = np.einsum("hgd,nhd->hgn", q, k) * factor
    return np.asarray(grouped.reshape(case.q_heads, -1))


def weigh(case: DecodeCase, weights: Array, v: Array) -> Array:
    """weights (q_heads, keys) times V (keys, kv_heads, head_dim)."""
    grouped = weights.reshape(case.kv_heads, case.group, -1)
    return np.asarray(np.einsum("hgn,nhd->hgd", grouped, v).reshape(case.q_heads, case.head_dim))


def attend(case: DecodeCase, index: int, k: Array, v: Array) -> tuple[Array, Array]:
    """Attention of a sequence's query over the keys given; 0 and -inf without any."""
    if not len(k):
        return np.zeros((case.q_heads, case.head_dim)), np.full(case.q_heads, -np.inf)
    found = scores(case, index, k)
    top = found.max(axis=1, keepdims=True)
    weights = np.exp(found - top)
    total = weights.sum(axis=1, keepdims=True)
    return weigh(case, weights / total, v), (top + np.log(total))[:, 0]

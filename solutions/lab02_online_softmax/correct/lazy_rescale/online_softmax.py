"""Online softmax with a lazy reference: l and o are rescaled only when the maximum has run far ahead of it.

Terms may then be as large as 2**8, which float32 holds with room to spare; the true maximum is brought in at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal, localcontext

import numpy as np

State = tuple[np.ndarray, np.ndarray, np.ndarray]
LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
THRESHOLD = 8 * LN2


def statistics_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


def usable(reference: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(reference), reference.dtype.type(0), reference)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    scores = x.astype(statistics_dtype(x.dtype))
    p = np.exp(scores - usable(np.max(scores, axis=axis, keepdims=True)))
    p /= np.maximum(np.sum(p, axis=axis, keepdims=True), np.finfo(p.dtype).tiny)
    return p.astype(x.dtype)


def advance(reference: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The reference that a block is added to: the old one unless the block's maximum is far above it."""
    top = scores.max(axis=1)
    return np.where(top > reference + THRESHOLD, top, reference).astype(scores.dtype)


def online_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    state: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    for block in blocks:
        scores = block.astype(statistics_dtype(block.dtype))
        if state is None:
            nothing = np.full(len(scores), -np.inf, scores.dtype)
            state = nothing, nothing, np.zeros(len(scores), scores.dtype)
        reference, top, total = state
        new = advance(reference, scores)
        total = total * np.exp(reference - usable(new)) + np.exp(scores - usable(new)[:, None]).sum(axis=1)
        state = new, np.maximum(top, scores.max(axis=1)), total
    if state is None:
        raise ValueError("empty stream")
    reference, top, total = state
    return top, total * np.exp(usable(reference) - usable(top))


def merge(a: State, b: State) -> State:
    swap = a[0] < b[0]
    high = [np.where(swap.reshape(-1, *[1] * (x.ndim - 1)), y, x) for x, y in zip(a, b, strict=True)]
    low = [np.where(swap.reshape(-1, *[1] * (x.ndim - 1)), x, y) for x, y in zip(a, b, strict=True)]
    factor = np.exp(low[0] - usable(high[0]))
    return high[0], high[1] + low[1] * factor, high[2] + low[2] * factor[:, None]


def blockwise_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    block: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    accumulate: np.dtype | type | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    dtype = statistics_dtype(q.dtype)
    (q_len, head_dim), k_len = q.shape, k.shape[0]
    factor = dtype.type((head_dim**-0.5 if scale is None else scale) * LOG2_E)
    reference = np.full(q_len, -np.inf, dtype)
    total = np.zeros(q_len, dtype)
    output = np.zeros((q_len, v.shape[1]), dtype)
    for start in range(0, k_len, block):
        scores = q.astype(dtype) @ k[start : start + block].astype(dtype).T * factor
        if causal:
            key = start + np.arange(scores.shape[1])
            scores[np.arange(q_len)[:, None] < key + q_len - k_len] = -np.inf
        top = scores.max(axis=1)
        new = np.where(top > reference + 8, top, reference).astype(dtype)
        p = np.exp2(scores - usable(new)[:, None])
        rescale = np.exp2(reference - usable(new))
        total = total * rescale + p.sum(axis=1)
        output = output * rescale[:, None] + p.astype(v.dtype).astype(dtype) @ v[start : start + block].astype(dtype)
        if accumulate is not None:
            total, output = total.astype(accumulate).astype(dtype), output.astype(accumulate).astype(dtype)
        reference = new
    empty = total == 0
    safe = np.where(empty, 1, total).astype(dtype)
    lse = ((usable(reference) + np.log2(safe)) * dtype.type(LN2)).astype(dtype)
    lse[empty] = -np.inf
    return (output / safe[:, None]).astype(q.dtype), lse


HIGH = round(LN2 * 2**32) / 2**32
with localcontext() as _context:
    _context.prec = 60
    LOW = float(Decimal(2).ln() - Decimal(HIGH))
STEP = 64
NEVER = -(2**40)


def terms_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen = x > -np.inf
    value = np.where(seen, x, 0)
    n = np.round(value / LN2)
    return np.where(seen, n, NEVER).astype(np.int64), np.where(seen, np.exp(value - n * HIGH - n * LOW), 0.0)


def coarse(n: np.ndarray) -> np.ndarray:
    """The smallest multiple of STEP that isn't below n."""
    return -(-n // STEP) * STEP


def lowered(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return np.ldexp(x, np.clip(exponent, -4000, 0).astype(np.int32))


def exact_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    reference = total = None
    for block in blocks:
        n, significand = terms_of(block)
        if reference is None or total is None:
            reference, total = np.full(len(block), coarse(np.array(NEVER))), np.zeros(len(block))
        new = np.maximum(reference, coarse(n.max(axis=1)))
        terms = lowered(significand, n - new[:, None])
        terms = np.hstack([lowered(total, reference - new)[:, None], terms])
        total, reference = np.cumsum(terms, axis=1)[:, -1].copy(), new
    return reference, total


def exact_softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, significand = terms_of(x)
    reference = coarse(n.max(axis=1))
    weights = lowered(significand, n - reference[:, None])
    total = np.cumsum(weights, axis=1)[:, -1].copy()
    return weights / np.where(total > 0, total, 1)[:, None], reference, total


# kept-from-students-6104758e95cbba1b

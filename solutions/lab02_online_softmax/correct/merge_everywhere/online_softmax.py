"""Online softmax as a monoid: every function folds states (m, l, o) with one `merge`.

The exact pair uses frexp-like bookkeeping with the floor of x / ln 2, so significands lie in [1, 2).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

State = tuple[np.ndarray, np.ndarray, np.ndarray]
LN2_HI = 2977044471.0 / 2.0**32
LN2_LO = 1.9082149292705877e-10
LOWEST = np.iinfo(np.int32).min


def statistics_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


def leaf(scores: np.ndarray, v: np.ndarray) -> State:
    """The state of one block: scores (rows, keys), v (keys, head_dim), both in the statistics dtype."""
    top = scores.max(axis=-1)
    weights = np.exp(scores - np.maximum(top, np.finfo(scores.dtype).min)[:, None])
    return top, weights.sum(axis=-1), weights @ v


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    wide = np.moveaxis(x, axis, -1).astype(statistics_dtype(x.dtype))
    top = np.maximum(wide.max(axis=-1, keepdims=True), np.finfo(wide.dtype).min)
    weights = np.exp(wide - top)
    total = weights.sum(axis=-1, keepdims=True)
    p = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.ascontiguousarray(np.moveaxis(p.astype(x.dtype), -1, axis))


def merge(a: State, b: State) -> State:
    top = np.maximum(a[0], b[0])
    floor = np.maximum(top, np.finfo(top.dtype).min)
    left, right = np.exp(a[0] - floor), np.exp(b[0] - floor)
    return top, left * a[1] + right * b[1], left[:, None] * a[2] + right[:, None] * b[2]


def online_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    # States of 1, 2, 4, ... blocks, as in a binary counter: sums stay balanced, memory logarithmic.
    stack: list[tuple[int, State]] = []
    for block in blocks:
        dtype = statistics_dtype(block.dtype)
        state, size = leaf(block.astype(dtype), np.zeros((block.shape[1], 0), dtype)), 1
        while stack and stack[-1][0] == size:
            state, size = merge(stack.pop()[1], state), 2 * size
        stack.append((size, state))
    _, state = stack.pop()
    while stack:
        state = merge(stack.pop()[1], state)
    return state[0], state[1]


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
    rows, keys = q.shape[0], k.shape[0]
    queries = q.astype(dtype) * dtype.type(q.shape[1] ** -0.5 if scale is None else scale)
    state = (np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((rows, v.shape[1]), dtype))
    for start in reversed(range(0, keys, block)):
        stop = min(start + block, keys)
        scores = queries @ k[start:stop].astype(dtype).T
        if causal:
            hidden = np.triu(np.ones((rows, keys), dtype=bool), keys - rows + 1)[:, start:stop]
            scores[hidden] = -np.inf
        top, total, output = merge(state, leaf(scores, v[start:stop].astype(dtype)))
        if accumulate is not None:
            total, output = total.astype(accumulate).astype(dtype), output.astype(accumulate).astype(dtype)
        state = (top, total, output)
    top, total, output = state
    o = np.divide(output, total[:, None], out=np.zeros_like(output), where=total[:, None] > 0)
    lse = np.full_like(top, -np.inf)
    lse[total > 0] = top[total > 0] + np.log(total[total > 0])
    return o.astype(q.dtype), lse


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    masked = x == -np.inf
    finite = np.where(masked, 0.0, x)
    n = np.floor(finite / (LN2_HI + LN2_LO))
    r = (finite - n * LN2_HI) - n * LN2_LO
    return np.where(masked, LOWEST, n).astype(np.int64), np.where(masked, 0.0, np.exp(r))


def shift_down(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.ldexp(x, -np.minimum(by, 3000).astype(np.int32))


def exact_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    reference, total = None, None
    for block in blocks:
        n, significand = split(block)
        highest = n.max(axis=1) if reference is None else np.maximum(reference, n.max(axis=1))
        terms = shift_down(significand, highest[:, None] - n)
        if total is not None:
            terms = np.column_stack([shift_down(total, highest - reference), terms])
        total, reference = np.add.accumulate(terms, axis=1)[:, -1].copy(), highest
    return reference, total


def exact_softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    reference, total = exact_softmax_stats([x])
    n, significand = split(x)
    weights = shift_down(significand, reference[:, None] - n)
    return np.divide(weights, total[:, None], out=np.zeros_like(x), where=total[:, None] > 0), reference, total


# kept-from-students-d4af59ee25a93f92

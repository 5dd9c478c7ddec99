"""Online softmax in plain loops: even and odd columns have accumulators of their own, queries are walked one by one."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np

State = tuple[np.ndarray, np.ndarray, np.ndarray]
LN2_PARTS = (float.fromhex("0x1.62e42fefa0000p-1"), float.fromhex("0x1.cf79abc9e3b3ap-40"))


def statistics_dtype(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    scores = np.array(x, dtype=statistics_dtype(x.dtype))
    top = scores.max(axis=axis, keepdims=True)
    top[top == -inf] = 0
    np.exp(scores - top, out=scores)
    total = scores.sum(axis=axis, keepdims=True)
    total[total == 0] = 1
    return (scores / total).astype(x.dtype)


def online_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    top = even = odd = None
    for block in blocks:
        scores = block.astype(statistics_dtype(block.dtype))
        if top is None:
            top = np.full(scores.shape[0], -inf, scores.dtype)
            even, odd = np.zeros_like(top), np.zeros_like(top)
        new = np.maximum(top, scores.max(axis=1))
        base = np.where(new == -inf, 0, new).astype(scores.dtype)
        weights = np.exp(scores - base[:, None])
        factor = np.exp(top - base)
        even = even * factor + weights[:, ::2].sum(axis=1)
        odd = odd * factor + weights[:, 1::2].sum(axis=1)
        top = new
    return top, even + odd


def merge(a: State, b: State) -> State:
    rows = len(a[0])
    top, total, output = np.empty_like(a[0]), np.empty_like(a[1]), np.empty_like(a[2])
    for row in range(rows):
        top[row] = max(a[0][row], b[0][row])
        if top[row] == -inf:
            total[row], output[row] = 0, 0
            continue
        left, right = np.exp(a[0][row] - top[row]), np.exp(b[0][row] - top[row])
        total[row] = a[1][row] * left + b[1][row] * right
        output[row] = a[2][row] * left + b[2][row] * right
    return top, total, output


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
    narrow = dtype if accumulate is None else accumulate
    factor = dtype.type(1 / np.sqrt(q.shape[1]) if scale is None else scale)
    o, lse = np.zeros((q.shape[0], v.shape[1]), q.dtype), np.full(q.shape[0], -inf, dtype)
    keys, values = k.astype(dtype), v.astype(dtype)
    for row, query in enumerate(q.astype(dtype)):
        visible = min(max(row + 1 + len(k) - len(q), 0), len(k)) if causal else len(k)
        top, total, output = dtype.type(-inf), dtype.type(0), np.zeros(v.shape[1], dtype)
        for start in range(0, visible, block):
            part = slice(start, min(start + block, visible))
            scores = keys[part] @ query * factor
            new = max(top, scores.max())
            weights, rescale = np.exp(scores - new), np.exp(top - new)
            total = (total * rescale + weights.sum()).astype(narrow).astype(dtype)
            output = (output * rescale + weights @ values[part]).astype(narrow).astype(dtype)
            top = new
        if visible:
            o[row], lse[row] = output / total, top + np.log(total)
    return o, lse


def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.isinf(x)
    n = np.rint(np.where(hidden, 0, x) / np.log(2))
    r = (np.where(hidden, 0, x) - n * LN2_PARTS[0]) - n * LN2_PARTS[1]
    return np.where(hidden, -(10**6), n).astype(np.int64), np.where(hidden, 0.0, np.exp(r))


def exact_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    reference = total = None
    for block in blocks:
        n, significand = split(block)
        if reference is None:
            reference, total = np.full(len(block), -(10**6)), np.zeros(len(block))
        new = np.maximum(reference, n.max(axis=1))
        total = np.ldexp(total, np.maximum(reference - new, -9999).astype(np.int32))
        for column in np.ldexp(significand, np.maximum(n - new[:, None], -9999).astype(np.int32)).T:
            total = total + column
        reference = new
    return reference, total


def exact_softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    reference, total = exact_softmax_stats([x])
    n, significand = split(x)
    weights = np.ldexp(significand, np.maximum(n - reference[:, None], -9999).astype(np.int32))
    return weights / np.where(total == 0, 1, total)[:, None], reference, total


# kept-from-students-41f7cf28ce1d0057

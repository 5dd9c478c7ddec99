"""Softmax over a stream: safe, online, mergeable, blockwise, and bit-for-bit exact.

Vocabulary: `row_max` running maximum m, (rows,); `row_sum` running denominator l, (rows,); `output_unnormalized` the
sum of exp(s - m) * v before it is divided by l, (rows, head_dim); `rescale` the factor exp(old max - new max), (rows,).
All statistics are base e. They live in the *statistics dtype*: float64 for float64 input, float32 for narrower input.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

State = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(m, l, o): running maximum (rows,), denominator (rows,), unnormalised output (rows, head_dim)."""


def statistics_dtype(dtype: np.dtype) -> np.dtype:
    """float64 for float64, float32 for float32, float16 and bfloat16."""
    return np.dtype(np.float64) if np.dtype(dtype) == np.float64 else np.dtype(np.float32)


# BEGIN SOLUTION
def finite_shift(row_max: np.ndarray) -> np.ndarray:
    """What may be subtracted from scores: `row_max`, and 0 where nothing was seen (-inf - -inf would be NaN)."""
    return np.where(np.isneginf(row_max), 0.0, row_max).astype(row_max.dtype)


# END SOLUTION
def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax of a whole array along `axis`, in the dtype of `x`; a slice of nothing but -inf gives zeros.

    Args:
        x: floating point, any shape; entries finite or -inf.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: subtract the maximum, exponentiate, divide by the sum")
    scores = x.astype(statistics_dtype(x.dtype))
    row_max = scores.max(axis=axis, keepdims=True)
    weights = np.exp(scores - finite_shift(row_max))
    row_sum = weights.sum(axis=axis, keepdims=True)
    # A row without a finite entry has the sum 0: dividing by 1 leaves its zeros, without a warning.
    return (weights / np.where(row_sum == 0, 1, row_sum)).astype(x.dtype)
    # END SOLUTION


def online_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Maximum and denominator of each row of a matrix that arrives in blocks of columns (arXiv 1805.02867, alg. 3).

    Args:
        blocks: at least one block, each (rows, width) with the same rows and dtype; each can be had once.

    Returns:
        (m, l), each (rows,) in the statistics dtype, with l = sum of exp(x - m); a row of nothing but -inf gives
        m = -inf and l = 0. Memory is that of a few blocks, however long the stream.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: keep (m, l); rescale l whenever m grows")
    row_max = row_sum = None
    for block in blocks:
        scores = block.astype(statistics_dtype(block.dtype))  # (rows, width)
        if row_max is None or row_sum is None:
            row_max = np.full(scores.shape[0], -np.inf, scores.dtype)
            row_sum = np.zeros(scores.shape[0], scores.dtype)
        new_max = np.maximum(row_max, scores.max(axis=1))
        shift = finite_shift(new_max)
        rescale = np.exp(row_max - shift)
        block_sum = np.exp(scores - shift[:, None]).sum(axis=1)
        row_sum = row_sum * rescale + block_sum
        row_max = new_max
    if row_max is None or row_sum is None:
        raise ValueError("online_softmax_stats: the stream held no block; expected at least one (rows, width) array")
    return row_max, row_sum
    # END SOLUTION


def merge(a: State, b: State) -> State:
    """The state of two sets of keys together, from their states: associative, with (-inf, 0, 0) as its identity.

    Args:
        a, b: (m, l, o), o unnormalised. Both (rows,), (rows,), (rows, head_dim) in one dtype.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: bring both to the larger maximum, then add")
    (max_a, sum_a, output_a), (max_b, sum_b, output_b) = a, b
    new_max = np.maximum(max_a, max_b)
    shift = finite_shift(new_max)
    rescale_a = np.exp(max_a - shift)
    rescale_b = np.exp(max_b - shift)
    new_sum = sum_a * rescale_a + sum_b * rescale_b
    new_output = output_a * rescale_a[:, None] + output_b * rescale_b[:, None]
    return new_max, new_sum, new_output
    # END SOLUTION


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
    """Attention of one head, keys taken `block` at a time: no (Sq, Sk) array ever exists.

    Args:
        q: (Sq, d). k, v: (Sk, d), the dtype of q. Sq and Sk may be 0.
        block: keys a step; needn't divide Sk.
        causal: row i sees the keys j <= i + Sk - Sq (aligned bottom-right).
        scale: factor of the scores, any finite number; None means 1/sqrt(d).
        accumulate: dtype that l and o are rounded to after each block; None keeps the statistics dtype.

    Returns:
        o (Sq, d) in the dtype of q, and the natural log-sum-exp (Sq,) in the statistics dtype. A row that sees no key
        gives o = 0 and lse = -inf.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: the recurrence of online_softmax_stats, with o beside l")
    dtype = statistics_dtype(q.dtype)
    state_dtype = dtype if accumulate is None else np.dtype(accumulate)
    q_len, head_dim = q.shape
    k_len = k.shape[0]
    scale = 1.0 / np.sqrt(head_dim) if scale is None else scale
    queries = q.astype(dtype)
    last_visible = np.arange(q_len) + (k_len - q_len if causal else k_len)

    row_max = np.full(q_len, -np.inf, dtype)
    row_sum = np.zeros(q_len, dtype)
    output_unnormalized = np.zeros((q_len, v.shape[1]), dtype)
    for start in range(0, k_len, block):
        keys = np.arange(start, min(start + block, k_len))
        scores = (queries @ k[keys].astype(dtype).T) * dtype.type(scale)  # (Sq, width)
        scores = np.where(keys[None, :] <= last_visible[:, None], scores, -np.inf).astype(dtype)
        new_max = np.maximum(row_max, scores.max(axis=1))
        shift = finite_shift(new_max)
        rescale = np.exp(row_max - shift)
        weights = np.exp(scores - shift[:, None])
        # A tensor core takes P in the dtype of V and adds in float32; the denominator keeps the unrounded P.
        products = weights.astype(v.dtype).astype(dtype) @ v[keys].astype(dtype)  # (Sq, d)
        row_sum = row_sum * rescale + weights.sum(axis=1)
        output_unnormalized = output_unnormalized * rescale[:, None] + products
        row_sum = row_sum.astype(state_dtype).astype(dtype)
        output_unnormalized = output_unnormalized.astype(state_dtype).astype(dtype)
        row_max = new_max

    seen = row_sum > 0
    divisor = np.where(seen, row_sum, 1)
    o = (output_unnormalized / divisor[:, None]).astype(q.dtype)
    lse = np.where(seen, row_max + np.log(divisor), -np.inf).astype(dtype)
    return o, lse
    # END SOLUTION


# BEGIN SOLUTION
# ln 2 in two parts. The first has 32 significant bits, so that n * LN2_HI is exact for |n| < 2**21.
LN2_HI = float.fromhex("0x1.62e42feep-1")
LN2_LO = float.fromhex("0x1.a39ef35793c76p-33")
LOG2_E = 1.4426950408889634
# An exponent below that of any entry, and one at which every double underflows to zero.
NO_EXPONENT = -(2**31)
UNDERFLOW_EXPONENT = -2200


def split_exponent(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(x) = significand * 2**exponent with significand in about [0.7, 1.42] (Cody and Waite).

    Returns:
        (exponent int64, significand float64), shaped like x; -inf gives (NO_EXPONENT, 0).
    """
    finite = ~np.isneginf(x)
    safe = np.where(finite, x, 0.0)
    n = np.rint(safe * LOG2_E)
    r = (safe - n * LN2_HI) - n * LN2_LO
    return np.where(finite, n, NO_EXPONENT).astype(np.int64), np.where(finite, np.exp(r), 0.0)


def scale_by_power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """x * 2**exponent for exponents <= 0, exact unless it underflows."""
    return np.ldexp(x, np.maximum(exponent, UNDERFLOW_EXPONENT).astype(np.int32))


# END SOLUTION
def exact_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Denominators of a stream whose bits don't depend on how it was cut into blocks.

    Args:
        blocks: as for `online_softmax_stats`, float64, |entry| <= 1e5 or -inf.

    Returns:
        (reference, l): int64 and float64, each (rows,), with l * 2**reference = sum of exp(x). A row of nothing but
        -inf gives l = 0 (its reference means nothing). Memory is that of a few blocks.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: rescale by powers of two only, add strictly left to right")
    reference = row_sum = None
    for block in blocks:
        exponent, significand = split_exponent(block)  # (rows, width)
        if reference is None or row_sum is None:
            reference = np.full(block.shape[0], NO_EXPONENT, np.int64)
            row_sum = np.zeros(block.shape[0], np.float64)
        new_reference = np.maximum(reference, exponent.max(axis=1))
        terms = np.empty((block.shape[0], block.shape[1] + 1))  # (rows, width + 1): the sum so far goes first
        terms[:, 0] = scale_by_power(row_sum, reference - new_reference)
        terms[:, 1:] = scale_by_power(significand, exponent - new_reference[:, None])
        # cumsum adds one after the other; sum would add pairwise, in a tree that depends on the width.
        row_sum = np.cumsum(terms, axis=1)[:, -1].copy()
        reference = new_reference
    if reference is None or row_sum is None:
        raise ValueError("exact_softmax_stats: the stream held no block; expected at least one (rows, width) array")
    return reference, row_sum
    # END SOLUTION


def exact_softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same statistics from the whole matrix at once, and the probabilities that they give.

    Args:
        x: (rows, n) float64, |entry| <= 1e5 or -inf.

    Returns:
        (p, reference, l): p (rows, n) float64, zeros in a row of nothing but -inf; reference and l as
        `exact_softmax_stats` returns them, bit for bit.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: one reference for the whole row, then the same sum")
    exponent, significand = split_exponent(x)
    reference = exponent.max(axis=1)
    weights = scale_by_power(significand, exponent - reference[:, None])
    row_sum = np.cumsum(weights, axis=1)[:, -1].copy()
    p = weights / np.where(row_sum == 0, 1, row_sum)[:, None]
    return p, reference, row_sum
    # END SOLUTION


# kept-from-students-eeb4a26a150a93c8

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


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax of a whole array along `axis`, in the dtype of `x`; a slice of nothing but -inf gives zeros.

    Args:
        x: floating point, any shape; entries finite or -inf.
    """
    raise NotImplementedError("TODO: subtract the maximum, exponentiate, divide by the sum")


def online_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Maximum and denominator of each row of a matrix that arrives in blocks of columns (arXiv 1805.02867, alg. 3).

    Args:
        blocks: at least one block, each (rows, width) with the same rows and dtype; each can be had once.

    Returns:
        (m, l), each (rows,) in the statistics dtype, with l = sum of exp(x - m); a row of nothing but -inf gives
        m = -inf and l = 0. Memory is that of a few blocks, however long the stream.
    """
    raise NotImplementedError("TODO: keep (m, l); rescale l whenever m grows")


def merge(a: State, b: State) -> State:
    """The state of two sets of keys together, from their states: associative, with (-inf, 0, 0) as its identity.

    Args:
        a, b: (m, l, o), o unnormalised. Both (rows,), (rows,), (rows, head_dim) in one dtype.
    """
    raise NotImplementedError("TODO: bring both to the larger maximum, then add")


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
    raise NotImplementedError("TODO: the recurrence of online_softmax_stats, with o beside l")


def exact_softmax_stats(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Denominators of a stream whose bits don't depend on how it was cut into blocks.

    Args:
        blocks: as for `online_softmax_stats`, float64, |entry| <= 1e5 or -inf.

    Returns:
        (reference, l): int64 and float64, each (rows,), with l * 2**reference = sum of exp(x). A row of nothing but
        -inf gives l = 0 (its reference means nothing). Memory is that of a few blocks.
    """
    raise NotImplementedError("TODO: rescale by powers of two only, add strictly left to right")


def exact_softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same statistics from the whole matrix at once, and the probabilities that they give.

    Args:
        x: (rows, n) float64, |entry| <= 1e5 or -inf.

    Returns:
        (p, reference, l): p (rows, n) float64, zeros in a row of nothing but -inf; reference and l as
        `exact_softmax_stats` returns them, bit for bit.
    """
    raise NotImplementedError("TODO: one reference for the whole row, then the same sum")

"""What lab01's checks ask for: shapes on which each known mistake changes a count."""

from __future__ import annotations

import numpy as np

from grader.judge.roofline.model import ALGORITHMS, Case, Gpu, Shape

Rng = np.random.Generator

PREFILL = Shape(4, 16, 16, 4096, 4096, 128)
DECODE = Shape(16, 32, 8, 1, 16384, 128)


def _shape(
    rng: Rng, q_len: int, k_len: int, *, group: int = 1, head_dims: tuple[int, ...] = (32, 64, 80, 96, 128)
) -> Shape:
    kv_heads = int(rng.integers(2, 6))
    return Shape(int(rng.integers(2, 6)), kv_heads * group, kv_heads, q_len, k_len, int(rng.choice(head_dims)))


def _length(rng: Rng, low: int, high: int) -> int:
    return int(rng.integers(low, high))


def public_forward(rng: Rng) -> list[Case]:
    """Squares, with and without a mask."""
    return [
        Case(_shape(rng, n, n), causal=causal) for n in (64, 200, _length(rng, 500, 2000)) for causal in (False, True)
    ]


def public_bytes(rng: Rng) -> list[Case]:
    """Both algorithms, as many heads of K as of Q, no mask, bfloat16."""
    lengths = ((128, 128), (_length(rng, 300, 1000), _length(rng, 1000, 3000)))
    return [Case(_shape(rng, *pair), algorithm) for pair in lengths for algorithm in ALGORITHMS]


def pair_lengths(rng: Rng) -> list[tuple[int, int, bool]]:
    """(q_len, k_len, causal): fewer queries than keys, more, one of either, both lengths odd, and no mask."""
    long, short = _length(rng, 400, 900), _length(rng, 50, 300)
    lengths = (
        (short, long),
        (long, short),
        (1, long),
        (long, 1),
        (short, short),
        (short, short + 1),
        (short + 1, short),
    )
    return [(q, k, causal) for q, k in lengths for causal in (True, False)]


def pairs(rng: Rng) -> list[Case]:
    """`pair_lengths` as whole shapes."""
    return [Case(_shape(rng, q, k), causal=causal) for q, k, causal in pair_lengths(rng)]


def backward(rng: Rng) -> list[Case]:
    """Forward and backward of the same shapes, both algorithms, grouped heads, masks, uneven lengths."""
    shapes = (
        _shape(rng, _length(rng, 100, 300), _length(rng, 400, 900), group=4),
        _shape(rng, 257, 129),
        _shape(rng, 512, 512, group=2),
    )
    return [
        Case(shape, algorithm, causal=causal, direction=direction)
        for shape in shapes
        for algorithm in ALGORITHMS
        for causal in (True, False)
        for direction in ("forward", "backward")
    ]


def widths(rng: Rng) -> list[Case]:
    """Every dtype, both algorithms, both directions."""
    shape = _shape(rng, _length(rng, 100, 300), _length(rng, 400, 900), group=2)
    return [
        Case(shape, algorithm, dtype, direction=direction)
        for dtype in ("float32", "float16", "bfloat16", "float8")
        for algorithm in ALGORITHMS
        for direction in ("forward", "backward")
    ]


def masked_forward(rng: Rng) -> list[Case]:
    """Causal masks under both algorithms: what is stored doesn't shrink."""
    lengths = ((300, 300), (_length(rng, 20, 90), 700), (500, 200))
    return [Case(_shape(rng, *pair), algorithm, causal=True) for pair in lengths for algorithm in ALGORITHMS]


def grouped_decode(rng: Rng) -> list[Case]:
    """One query against a long cache, groups of 1, 4, 7 and 8, two-byte dtypes."""
    return [
        Case(_shape(rng, 1, _length(rng, 9000, 20000), group=group, head_dims=(64, 128)), algorithm, dtype, causal=True)
        for group, dtype in ((1, "bfloat16"), (4, "bfloat16"), (7, "float16"), (8, "bfloat16"))
        for algorithm in ALGORITHMS
    ]


def single_query(rng: Rng) -> list[Case]:
    """One query, one key, both; with and without a mask."""
    lengths = ((1, _length(rng, 500, 3000)), (_length(rng, 500, 3000), 1), (1, 1))
    return [
        Case(_shape(rng, q, k), algorithm, causal=causal)
        for q, k in lengths
        for algorithm in ALGORITHMS
        for causal in (True, False)
    ]


def gpu(rng: Rng) -> Gpu:
    """A card that nobody sells, so that no number of it can be remembered."""
    half = float(rng.integers(200, 1500))
    # bfloat16's ridge point lies between 100 and 400 FLOP/byte, as those of real cards do.
    bandwidth = float(round(half * 1000 / rng.uniform(100, 400)))
    return Gpu(
        f"made-up-{rng.integers(100, 1000)}",
        bandwidth,
        {"float16": half + 64, "bfloat16": half, "float32": float(rng.integers(20, 90)), "float8": 2 * half + 10},
    )


def ridge_gpu(rng: Rng) -> Gpu:
    """A card of powers of two: whichever way a ridge point is computed, no step of it rounds."""
    bandwidth = 2 ** int(rng.integers(9, 12))
    return Gpu("made-up-even", float(bandwidth), {"bfloat16": bandwidth / 4, "float32": bandwidth / 64})


def at_the_ridge(rng: Rng, card: Gpu) -> list[tuple[int, int, str]]:
    """(flops, bytes, dtype) one FLOP below the ridge point, at it, and one above."""
    moved = 64 * int(rng.integers(2**20, 2**22))
    return [(int(card.ridge(dtype) * moved) + step, moved, dtype) for dtype in card.peak_tflops for step in (-1, 0, 1)]


def roof_costs(rng: Rng, card: Gpu) -> list[tuple[int, int, str]]:
    """(flops, bytes, dtype) from far below the ridge to far above it, and closely on either side."""
    return [
        (int(moved * card.ridge(dtype) * factor), moved, dtype)
        for dtype in ("bfloat16", "float32", "float8")
        for factor in (0.01, 0.3, 0.96, 1.04, 3.0, 50.0)
        for moved in (int(rng.integers(10**8, 10**9)),)
    ]


def table_shapes(rng: Rng) -> list[Shape]:
    """Prefill, a chunk behind a cache, more queries than keys, grouped decode."""
    n = _length(rng, 1500, 5000)
    return [
        _shape(rng, n, n),
        _shape(rng, _length(rng, 64, 300), n, group=4),
        _shape(rng, n, n - 37, group=2),
        _shape(rng, 1, 3 * n, group=8),
    ]

"""Toy workloads for races on a CPU: a product of matrices in NumPy, attention in torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grader.judge.speed.model import Array, Drawn, InputSpec, Picks, Rules, Workload

QUICK = Rules(window_s=0.002, rounds=8, cross_every=2, warmup=1, retries=0, alone=4, max_spread=1e9)
"""Few short windows. The spread isn't looked at: other jobs share this machine."""

MATMUL = "def product(a, b):\n    return a @ b\n"


@dataclass(frozen=True)
class MatmulRows:
    """Rows of a @ b in float32."""

    size: int

    def choose(self, rng: np.random.Generator) -> Picks:
        return {0: rng.integers(0, self.size, size=(2, 1))}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        a, b = drawn.take("a"), drawn.take("b")
        wanted = a[picks[0][:, 0]] @ b
        if taken[0].shape != wanted.shape:
            return f"rows of shape {taken[0].shape}, expected {wanted.shape}"
        error = float(np.abs(taken[0] - wanted).max())
        return "" if error <= 1e-3 * self.size**0.5 else f"off by {error:.3g}"


def matmul(size: int = 96, dtype: str = "float32") -> Workload:
    shape = (size, size)
    return Workload(
        label=f"{size} x {size}",
        function="product",
        inputs=(InputSpec("a", shape, dtype), InputSpec("b", shape, dtype)),
        flops=2.0 * size**3,
        bytes=3.0 * 4 * size**2,
        output_bytes=4.0 * size**2,
        dtype=dtype,
        oracle=MatmulRows(size),
    )

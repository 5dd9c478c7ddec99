"""The judge's own count of attention's FLOPs and HBM bytes, by the definitions of lab01's handout.

Every choice that students get wrong is a field of `Counting`, so that a known mistake is one other value of it.
Sources: FlashAttention, arXiv 2205.14135, algorithms 0 and 3 (standard attention, forward and backward);
FlashAttention-2, arXiv 2307.08691, section 4.1 (FLOPs: 2.5 times the forward's for the backward).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from grader.kernels.closed_forms import visible_pairs

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
LSE_BYTES = 4
ALGORITHMS = ("standard", "flash")


@dataclass(frozen=True)
class Shape:
    """As the `Shape` of the student's folder."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int

    def sizes(self) -> list[int]:
        return list(asdict(self).values())


@dataclass(frozen=True)
class Case:
    """One call of `attention_cost`."""

    shape: Shape
    algorithm: str = "flash"
    dtype: str = "bfloat16"
    causal: bool = False
    direction: str = "forward"

    def wire(self) -> dict[str, Any]:
        """As the provided `graded_calls.costs` takes it."""
        return {
            "shape": self.shape.sizes(),
            "algorithm": self.algorithm,
            "dtype": self.dtype,
            "causal": self.causal,
            "direction": self.direction,
        }


def exact_pairs(q_len: int, k_len: int, causal: bool) -> int:
    return visible_pairs(q_len, k_len, causal)


def _visible_pairs(case: Case) -> float:
    return exact_pairs(case.shape.q_len, case.shape.k_len, case.causal)


def _whole_matrix(case: Case) -> float:
    return case.shape.q_len * case.shape.k_len


def _no_bytes(case: Case) -> float:
    return 0.0


@dataclass(frozen=True)
class Counting:
    """How FLOPs and bytes are counted. The defaults are right.

    Attributes:
        pairs: visible pairs of one head. matrix: elements of one head's S that standard attention stores.
        flops_per_pair: by direction, in units of head_dim.
        passes: passes over S or P (or their gradients) in HBM, by direction, standard attention.
        query_tensors, key_tensors: tensors of Q's and of K's size that are moved, by direction.
        item_bytes: by dtype. lse_bytes: by dtype, of one log-sum-exp.
        kv_heads: heads whose K and V are moved. work_heads: heads that do the work.
        extra: further bytes of one case.
    """

    pairs: Callable[[Case], float] = _visible_pairs
    matrix: Callable[[Case], float] = _whole_matrix
    flops_per_pair: dict[str, float] = field(default_factory=lambda: {"forward": 4.0, "backward": 10.0})
    passes: dict[str, float] = field(default_factory=lambda: {"forward": 4.0, "backward": 7.0})
    query_tensors: dict[str, float] = field(default_factory=lambda: {"forward": 2.0, "backward": 4.0})
    key_tensors: dict[str, float] = field(default_factory=lambda: {"forward": 2.0, "backward": 4.0})
    item_bytes: Callable[[str], float] = lambda dtype: ITEM_BYTES[dtype]
    lse_bytes: Callable[[str], float] = lambda dtype: LSE_BYTES
    lse_algorithms: tuple[str, ...] = ("flash",)
    kv_heads: Callable[[Shape], int] = lambda shape: shape.kv_heads
    work_heads: Callable[[Shape], int] = lambda shape: shape.q_heads
    extra: Callable[[Case], float] = _no_bytes

    def flops(self, case: Case) -> float:
        heads = case.shape.batch * self.work_heads(case.shape)
        return self.flops_per_pair[case.direction] * heads * case.shape.head_dim * self.pairs(case)

    def bytes(self, case: Case) -> float:
        shape = case.shape
        heads = shape.batch * shape.q_heads
        elements = self.query_tensors[case.direction] * heads * shape.q_len * shape.head_dim
        keys = shape.batch * self.kv_heads(shape) * shape.k_len * shape.head_dim
        elements += self.key_tensors[case.direction] * keys
        if case.algorithm == "standard":
            elements += self.passes[case.direction] * heads * self.matrix(case)
        total = elements * self.item_bytes(case.dtype) + self.extra(case)
        if case.algorithm in self.lse_algorithms:
            total += heads * shape.q_len * self.lse_bytes(case.dtype)
        return total

    def but(self, **changes: Any) -> Counting:
        return replace(self, **changes)


EXACT = Counting()
"""The right count. Counts stay far below 2**53, so float arithmetic on them is exact."""


@dataclass(frozen=True)
class Gpu:
    """What the roofline needs of a card: GB/s (10**9 bytes), dense TFLOP/s by dtype."""

    name: str
    bandwidth_gbs: float
    peak_tflops: dict[str, float]

    def wire(self) -> dict[str, Any]:
        return asdict(self)

    def ridge(self, dtype: str) -> float:
        return self.peak_tflops[dtype] * 1e12 / (self.bandwidth_gbs * 1e9)

    def attainable(self, intensity: float, dtype: str) -> float:
        return min(self.peak_tflops[dtype], intensity * self.bandwidth_gbs * 1e9 / 1e12)

    def bound(self, intensity: float, dtype: str) -> str:
        return "memory" if intensity < self.ridge(dtype) else "compute"

    def time_us(self, flops: float, moved: float, dtype: str) -> float:
        """The longer of the two times that arithmetic and memory take."""
        return max(flops / (self.peak_tflops[dtype] * 1e12), moved / (self.bandwidth_gbs * 1e9)) * 1e6

"""The two tables that lab09 provides, and what follows from them: ratios, crossovers, fractions of a peak.

`h200.csv`: measured for this course on one NVIDIA H200, bfloat16, TFLOP/s by 4·B·H·S²·d (half when causal; backward 2.5
times). `published.csv`: the FlashAttention-3 paper's ablation and bar labels, measured by its authors on an H100 SXM5.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MEASURED, PUBLISHED = "h200.csv", "published.csv"
FA2, CUDNN, FA4, FLEX = "sdpa-flash", "sdpa-cudnn", "flash-attn-cute", "flex-attention"
KERNELS = (FA2, CUDNN, FA4, FLEX)
REPEATABILITY = 0.013
"""Twenty medians of one call lay within ±1.3 % of each other on that card."""
APART = (1 + REPEATABILITY) / (1 - REPEATABILITY)
"""Two medians further apart than this are of two speeds."""

Verdict = Literal["supported", "refuted", "within-noise", "not-in-the-data"]
VERDICTS: tuple[Verdict, ...] = ("supported", "refuted", "within-noise", "not-in-the-data")


@dataclass(frozen=True, order=True)
class Shape:
    """One shape; `causal` as the tables spell it, "yes" or "no"."""

    seqlen: int
    head_dim: int
    causal: str
    batch: int = 0
    heads: int = 0


@dataclass(frozen=True)
class Speeds:
    """TFLOP/s by (shape, kernel, direction); the shapes in the table's order."""

    tflops: Mapping[tuple[Shape, str, str], float]

    @property
    def shapes(self) -> list[Shape]:
        return list(dict.fromkeys(shape for shape, _, _ in self.tflops))

    def ratio(self, shape: Shape, kernel: str, other: str, direction: str = "forward") -> float:
        return self.tflops[shape, kernel, direction] / self.tflops[shape, other, direction]

    def ranked(self, shape: Shape, direction: str = "forward") -> list[tuple[float, str]]:
        """(TFLOP/s, kernel), the fastest first."""
        here = [(rate, kernel) for (at, kernel, way), rate in self.tflops.items() if (at, way) == (shape, direction)]
        return sorted(here, reverse=True)

    def best(self, shape: Shape, direction: str = "forward") -> str:
        """The fastest kernel; "tie" when the second lies within the repeatability."""
        first, second, *_ = self.ranked(shape, direction)
        return first[1] if first[0] > APART * second[0] else "tie"

    def holds_from(self, kernel: str, ratio: float, direction: str, other: str = FA2) -> int:
        """The smallest seqlen at which, and at every longer one, each row has at least this ratio; 0 for none."""
        found = 0
        for length in sorted({shape.seqlen for shape in self.shapes}, reverse=True):
            rows = [shape for shape in self.shapes if shape.seqlen == length]
            if not all(self.ratio(shape, kernel, other, direction) >= ratio for shape in rows):
                break
            found = length
        return found


def read(text: str) -> Speeds:
    """`h200.csv`."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return Speeds({(_shape(row), row["kernel"], row["direction"]): float(row["tflops"]) for row in rows})


@dataclass(frozen=True)
class Published:
    """`published.csv`: the ablation by kernel, and the forward speeds."""

    ablation: Mapping[str, float]
    forward: Speeds

    def crossover(self, head_dim: int, causal: str) -> int:
        """The smallest length from which on FA3 is at least as fast as cuDNN."""
        rows = [shape for shape in self.forward.shapes if (shape.head_dim, shape.causal) == (head_dim, causal)]
        at_least = Speeds({key: rate for key, rate in self.forward.tflops.items() if key[0] in rows})
        return at_least.holds_from("fa3", 1.0, "forward", other="cudnn")


def read_published(text: str) -> Published:
    rows = list(csv.DictReader(io.StringIO(text)))
    ablation = {row["kernel"]: float(row["tflops"]) for row in rows if row["figure"] == "ablation"}
    forward = {
        (_shape(row), row["kernel"], "forward"): float(row["tflops"]) for row in rows if row["figure"] != "ablation"
    }
    return Published(ablation, Speeds(forward))


def _shape(row: Mapping[str, str]) -> Shape:
    return Shape(int(row["seqlen"]), int(row["head_dim"]), row["causal"], int(row["batch"]), int(row["heads"]))


# Claims about the tables


def _compared(speeds: Speeds, kernel: str, other: str, directions: Iterable[str], shapes: Sequence[Shape]) -> Verdict:
    """Whether `kernel` is the faster at every shape: by more than the noise, by less at some, or not."""
    ratios = [speeds.ratio(shape, kernel, other, way) for shape in shapes for way in directions]
    if not ratios:
        return "not-in-the-data"
    if any(ratio < 1 / APART for ratio in ratios):
        return "refuted"
    return "supported" if all(ratio > APART for ratio in ratios) else "within-noise"


def _at(speeds: Speeds, **wanted: object) -> list[Shape]:
    return [shape for shape in speeds.shapes if all(getattr(shape, name) == value for name, value in wanted.items())]


def _between_cards(own: Speeds, paper: Published) -> Verdict:
    """Whether the H200 is the faster card: told by kernels that were timed on both, of which there may be none."""
    common = {kernel for _, kernel, _ in own.tflops} & {kernel for _, kernel, _ in paper.forward.tflops}
    pairs = [
        own.tflops[key] / paper.forward.tflops[key]
        for key in own.tflops
        if key[1] in common and key in paper.forward.tflops
    ]
    if not pairs:
        return "not-in-the-data"
    return "supported" if min(pairs) > APART else "refuted" if min(pairs) < 1 / APART else "within-noise"


BOTH = ("forward", "backward")
CLAIMS: Mapping[str, Callable[[Speeds, Published], Verdict]] = {
    "fa4-beats-fa2": lambda own, _: _compared(own, FA4, FA2, BOTH, own.shapes),
    "fa4-beats-cudnn-forward": lambda own, _: _compared(own, FA4, CUDNN, ("forward",), own.shapes),
    "fa4-beats-cudnn-backward": lambda own, _: _compared(own, FA4, CUDNN, ("backward",), own.shapes),
    "flex-beats-fa2-forward": lambda own, _: _compared(own, FLEX, FA2, ("forward",), own.shapes),
    "fa4-beats-cudnn-at-512": lambda own, _: _compared(own, FA4, CUDNN, ("forward",), _at(own, seqlen=512)),
    "fa3-beats-cudnn-at-512": lambda _, paper: _compared(
        paper.forward, "fa3", "cudnn", ("forward",), _at(paper.forward, seqlen=512)
    ),
    "fa3-beats-cudnn-at-16k": lambda _, paper: _compared(
        paper.forward, "fa3", "cudnn", ("forward",), _at(paper.forward, seqlen=16384)
    ),
    "h200-beats-h100": lambda own, paper: _between_cards(own, paper),
}
"""Claim → what the tables say of it. The handout words them."""

HOLDS: Mapping[str, tuple[str, str, float]] = {
    "fa4-forward-1.5": (FA4, "forward", 1.5),
    "fa4-forward-1.8": (FA4, "forward", 1.8),
    "fa4-backward-1.8": (FA4, "backward", 1.8),
    "fa4-backward-1.9": (FA4, "backward", 1.9),
    "cudnn-forward-1.5": (CUDNN, "forward", 1.5),
    "cudnn-backward-2.0": (CUDNN, "backward", 2.0),
}
"""Question → kernel, direction, ratio to FA2."""

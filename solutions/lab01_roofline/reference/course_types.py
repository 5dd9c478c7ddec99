"""What lab01 works on: attention shapes, costs and GPUs, and the table that everybody fills in. Provided.

Units: FLOPs and bytes are counts; `bandwidth_gbs` is in 10**9 bytes/s; `peak_tflops` is in 10**12 FLOP/s, dense.
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ALGORITHMS = ("standard", "flash")
DTYPES = ("float32", "float16", "bfloat16", "float8")
DIRECTIONS = ("forward", "backward")
COLUMNS = (
    "profile", "algorithm", "dtype", "causal", "direction", "batch", "q_heads", "kv_heads", "q_len", "k_len",
    "head_dim", "flops", "bytes", "intensity", "ridge", "bound", "attainable_tflops", "time_us",
)  # fmt: skip
PROFILES_FILE = Path(__file__).with_name("profiles.toml")


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention call: Q (batch, q_heads, q_len, head_dim), K and V (batch, kv_heads, k_len, head_dim).

    `kv_heads` < `q_heads` is grouped-query attention: q_heads / kv_heads query heads share one K/V head.
    """

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int

    def __post_init__(self) -> None:
        if min(self.batch, self.q_heads, self.kv_heads, self.q_len, self.k_len, self.head_dim) < 1:
            raise ValueError(f"every size of a shape is at least 1, got {self}")
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads ({self.q_heads}) must be a multiple of kv_heads ({self.kv_heads})")


class Cost(NamedTuple):
    """What one attention call does: floating-point operations, and bytes between HBM and chip."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Profile:
    """One GPU. A dtype that it has no unit for isn't in `peak_tflops`."""

    name: str
    bandwidth_gbs: float
    peak_tflops: dict[str, float]


def profile_names() -> list[str]:
    return sorted(tomllib.loads(PROFILES_FILE.read_text(encoding="utf-8")))


def load_profile(name: str) -> Profile:
    """A GPU of profiles.toml by its name, e.g. ``h200``.

    Raises:
        KeyError: no GPU is called that; lists those that are.
    """
    table = tomllib.loads(PROFILES_FILE.read_text(encoding="utf-8"))
    if name not in table:
        raise KeyError(f"unknown GPU {name!r}; profiles.toml has {', '.join(sorted(table))}")
    return Profile(name, table[name]["bandwidth_gbs"], dict(table[name]["peak_tflops"]))


SHAPES = (
    # Prefill, multi-head: B·S = 16384 tokens, hidden size 2048, as in the FlashAttention-2 benchmarks.
    Shape(batch=32, q_heads=16, kv_heads=16, q_len=512, k_len=512, head_dim=128),
    Shape(batch=8, q_heads=16, kv_heads=16, q_len=2048, k_len=2048, head_dim=128),
    Shape(batch=1, q_heads=16, kv_heads=16, q_len=16384, k_len=16384, head_dim=128),
    # Half the head dimension, twice the heads.
    Shape(batch=8, q_heads=32, kv_heads=32, q_len=2048, k_len=2048, head_dim=64),
    # A chunk of 256 new tokens behind a cache of 8192 - 256.
    Shape(batch=4, q_heads=32, kv_heads=8, q_len=256, k_len=8192, head_dim=128),
    # Decode: one new token a sequence, with a K/V head for each query head, for four and for eight.
    Shape(batch=16, q_heads=32, kv_heads=32, q_len=1, k_len=16384, head_dim=128),
    Shape(batch=16, q_heads=32, kv_heads=8, q_len=1, k_len=16384, head_dim=128),
    Shape(batch=16, q_heads=64, kv_heads=8, q_len=1, k_len=16384, head_dim=128),
)
"""The shapes of table.csv."""

SWEEP: tuple[dict[str, Any], ...] = (
    {"dtype": "bfloat16", "causal": False, "direction": "forward"},
    {"dtype": "bfloat16", "causal": True, "direction": "forward"},
    {"dtype": "bfloat16", "causal": True, "direction": "backward"},
    {"dtype": "float32", "causal": True, "direction": "forward"},
)
"""What table.csv holds every shape to: keyword arguments of `intensity_table`."""


def write_table(rows: list[dict[str, Any]], path: str | Path) -> None:
    """Write rows with the keys of COLUMNS as a CSV file; numbers at full precision."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

"""The cost of attention in NumPy, and a card's roofline as the longer of two times."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from course_types import Cost

STORED = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8": ml_dtypes.float8_e4m3fn,
}


def visible_pairs(q_len, k_len, causal):
    if not causal:
        return np.int64(q_len) * k_len
    seen = np.arange(q_len, dtype=np.int64) + (1 + k_len - q_len)
    return seen.clip(min=0).sum()


def attention_cost(shape, algorithm, dtype="bfloat16", causal=False, direction="forward"):
    width = np.dtype(_known(STORED, dtype)).itemsize
    products = _known({"forward": 2, "backward": 5}, direction)
    operands = _known({"forward": 1, "backward": 2}, direction)
    passes = _known({"standard": {"forward": 4, "backward": 7}, "flash": {}}, algorithm)
    heads = np.int64(shape.batch) * shape.q_heads
    keys = np.int64(shape.batch) * shape.kv_heads * shape.k_len
    elements = 2 * operands * (heads * shape.q_len + keys) * shape.head_dim
    elements = elements + passes.get(direction, 0) * heads * shape.q_len * shape.k_len
    statistics = heads * shape.q_len * 4 if algorithm == "flash" else 0
    flops = products * 2 * shape.head_dim * heads * visible_pairs(shape.q_len, shape.k_len, causal)
    return Cost(flops, elements * width + statistics)


def _known(table, key):
    if key not in table:
        raise ValueError(f"expected one of {list(table)}, got {key!r}")
    return table[key]


def times(cost, profile, dtype):
    """Seconds of arithmetic and of traffic."""
    return cost.flops / (_known(profile.peak_tflops, dtype) * 1e12), cost.bytes / (profile.bandwidth_gbs * 1e9)


def ridge_point(profile, dtype="bfloat16"):
    return np.float64(_known(profile.peak_tflops, dtype)) / profile.bandwidth_gbs * 1e3


def attainable_tflops(cost, profile, dtype="bfloat16"):
    return cost.flops / max(times(cost, profile, dtype)) / 1e12


def bound(cost, profile, dtype="bfloat16"):
    arithmetic, traffic = times(cost, profile, dtype)
    return "memory" if traffic > arithmetic else "compute"


def intensity_table(shapes, profile, dtype="bfloat16", causal=False, direction="forward"):
    return [_row(s, a, profile, dtype, causal, direction) for s in shapes for a in ("standard", "flash")]


def _row(shape, algorithm, profile, dtype, causal, direction):
    cost = attention_cost(shape, algorithm, dtype, causal, direction)
    return {
        "profile": profile.name,
        "algorithm": algorithm,
        "dtype": dtype,
        "causal": "yes" if causal else "no",
        "direction": direction,
        **vars(shape),
        "flops": cost.flops,
        "bytes": cost.bytes,
        "intensity": cost.flops / cost.bytes,
        "ridge": ridge_point(profile, dtype),
        "bound": bound(cost, profile, dtype),
        "attainable_tflops": attainable_tflops(cost, profile, dtype),
        "time_us": max(times(cost, profile, dtype)) * 1e6,
    }


def plot_roofline(rows, profile, path=None):
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots()
    axes.set(xscale="log", yscale="log", xlabel="Intensity [FLOP/Byte]", ylabel="Rate [TFLOP/s]")
    x = np.geomspace(0.01, 1e5, 3)
    axes.plot(x, x * profile.bandwidth_gbs / 1e3, color="black", label="bandwidth")
    for place, dtype in enumerate(dict.fromkeys(row["dtype"] for row in rows)):
        axes.axhline(profile.peak_tflops[dtype], color=f"C{place}", ls="--", label=f"peak {dtype}")
    for row in rows:
        axes.plot(
            row["intensity"], row["attainable_tflops"], ".", color="gray" if row["algorithm"] == "flash" else "red"
        )
    axes.legend()
    if path is not None:
        figure.savefig(path)
    return figure


# kept-from-students-f08fc4a12c3cab11

"""The cost of attention, written out kernel by kernel, and a card's roofline."""

from __future__ import annotations

import math

from course_types import COLUMNS, Cost

WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
# (reads, writes) of each kernel, one letter a tensor.
KERNELS = {
    ("standard", "forward"): [("QK", "S"), ("S", "P"), ("PV", "O")],
    ("standard", "backward"): [("PG", "v"), ("GV", "p"), ("Pp", "s"), ("sK", "q"), ("sQ", "k")],
    ("flash", "forward"): [("QKV", "OL")],
    ("flash", "backward"): [("QKVOGL", "qkv")],
}


def visible_pairs(q_len, k_len, causal):
    return sum(max(0, min(k_len, row + 1 + k_len - q_len)) if causal else k_len for row in range(q_len))


def attention_cost(shape, algorithm, dtype="bfloat16", causal=False, direction="forward"):
    if (algorithm, direction) not in KERNELS or dtype not in WIDTH:
        raise ValueError(f"unknown combination {algorithm}, {direction}, {dtype}")
    width = WIDTH[dtype]
    rows = shape.batch * shape.q_heads * shape.q_len
    query = rows * shape.head_dim * width
    key = shape.batch * shape.kv_heads * shape.k_len * shape.head_dim * width
    matrix = rows * shape.k_len * width
    sizes = dict.fromkeys("QOGq", query) | dict.fromkeys("KVkv", key) | dict.fromkeys("SPps", matrix) | {"L": 4 * rows}
    moved = sum(sizes[name] for kernel in KERNELS[algorithm, direction] for part in kernel for name in part)
    pairs = shape.batch * shape.q_heads * visible_pairs(shape.q_len, shape.k_len, causal)
    products = 2.0 if direction == "forward" else 5.0
    return Cost(products * 2 * shape.head_dim * pairs, moved)


def roofs(profile, dtype):
    """(FLOP/s, bytes/s)."""
    if dtype not in profile.peak_tflops:
        raise ValueError(f"no {dtype} on {profile.name}")
    return 1e12 * profile.peak_tflops[dtype], 1e9 * profile.bandwidth_gbs


def ridge_point(profile, dtype="bfloat16"):
    peak, bandwidth = roofs(profile, dtype)
    return peak / bandwidth


def attainable_tflops(cost, profile, dtype="bfloat16"):
    peak, bandwidth = roofs(profile, dtype)
    slope = bandwidth * cost.flops / cost.bytes
    return (slope if slope < peak else peak) / 1e12


def bound(cost, profile, dtype="bfloat16"):
    return "compute" if cost.flops / cost.bytes >= ridge_point(profile, dtype) else "memory"


def intensity_table(shapes, profile, dtype="bfloat16", causal=False, direction="forward"):
    table = []
    for shape in shapes:
        for algorithm in ("standard", "flash"):
            cost = attention_cost(shape, algorithm, dtype, causal, direction)
            peak, bandwidth = roofs(profile, dtype)
            row = {"profile": profile.name, "algorithm": algorithm, "dtype": dtype, "direction": direction}
            row |= vars(shape) | {"flops": cost.flops, "bytes": cost.bytes, "causal": "yes" if causal else "no"}
            row["intensity"] = cost.flops / cost.bytes
            row["ridge"] = ridge_point(profile, dtype)
            row["bound"] = bound(cost, profile, dtype)
            row["attainable_tflops"] = attainable_tflops(cost, profile, dtype)
            row["time_us"] = 1e6 * max(cost.flops / peak, cost.bytes / bandwidth)
            table.append({name: row[name] for name in COLUMNS})
    return table


def plot_roofline(rows, profile, path=None):
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(7, 5))
    axes = figure.add_subplot()
    for dtype in sorted({row["dtype"] for row in rows}):
        ridge = ridge_point(profile, dtype)
        exponents = [step / 20 for step in range(-100, 101)]
        intensities = [ridge * math.pow(10, exponent) for exponent in exponents]
        heights = [min(profile.peak_tflops[dtype], x * profile.bandwidth_gbs / 1000) for x in intensities]
        axes.loglog(intensities, heights, lw=1, label=dtype)
        chosen = [row for row in rows if row["dtype"] == dtype]
        axes.scatter([row["intensity"] for row in chosen], [row["attainable_tflops"] for row in chosen], s=18)
    axes.set(xlabel="FLOP per byte", ylabel="TFLOP/s", title=profile.name)
    axes.legend()
    if path:
        figure.savefig(path)
    return figure


# kept-from-students-a1e58d6e6b52469a

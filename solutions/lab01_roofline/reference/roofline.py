"""What attention costs, and what a GPU makes of it: FLOPs, HBM bytes, arithmetic intensity, the roofline.

Masks are aligned bottom-right: query row i sees the keys j <= i + k_len - q_len. FLOPs and bytes are exact integers;
intensities are FLOP/byte; rates are TFLOP/s (10**12); bandwidths are GB/s (10**9 bytes).

Sources: Williams, Waterman and Patterson, Roofline (CACM 52(4), 2009); Dao et al., FlashAttention (arXiv 2205.14135),
algorithms 0 (standard forward) and 3 (standard backward).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_types import COLUMNS, Cost, Profile, Shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# BEGIN SOLUTION
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
# The log-sum-exp is float32 whatever the working dtype is.
LSE_BYTES = 4
FLOPS_PER_MAC = 2
# Products of (rows, head_dim, keys) size: QK^T and PV; backward QK^T again, dV, dP, dQ, dK.
PRODUCTS = {"forward": 2, "backward": 5}
# Passes over the whole (q_len, k_len) matrix: write S, read S, write P, read P. Backward: read P for dV, write dP,
# read P and dP, write dS, read dS for dQ and for dK.
STANDARD_MATRIX_PASSES = {"forward": 4, "backward": 7}
# Tensors of Q's size that are moved: Q, O. Backward, flash: Q, O, dO, dQ; standard: Q, dQ, and dO twice.
QUERY_TENSORS = {"forward": 2, "backward": 4}
# Tensors of K's size that are moved: K, V. Backward: K, V, dK, dV.
KEY_TENSORS = {"forward": 2, "backward": 4}


# END SOLUTION
def visible_pairs(q_len: int, k_len: int, causal: bool) -> int:
    """Number of (query, key) pairs that the mask leaves, for one head.

    Args:
        causal: row i sees the keys j <= i + k_len - q_len; with q_len > k_len the first rows see none.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: count the keys that each row sees, and add them up")
    if not causal:
        return q_len * k_len
    # Counted from below: the last row sees k_len keys, each row before it one less, until nothing is left.
    rows = min(q_len, k_len)
    return rows * k_len - rows * (rows - 1) // 2
    # END SOLUTION


def attention_cost(
    shape: Shape, algorithm: str, dtype: str = "bfloat16", causal: bool = False, direction: str = "forward"
) -> Cost:
    """FLOPs and HBM bytes of one attention call, by the definitions of the handout.

    Args:
        algorithm: ``standard`` (S and P travel through HBM, whole, in the working dtype) or ``flash`` (each operand
            once, and the log-sum-exp in float32).
        dtype: ``float32``, ``float16``, ``bfloat16`` or ``float8``; all of Q, K, V, O, S, P and the gradients have it.
        direction: ``forward`` or ``backward``.

    Raises:
        ValueError: an algorithm, dtype or direction that isn't one of these.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: flops from visible pairs, bytes tensor by tensor")
    if algorithm not in ("standard", "flash"):
        raise ValueError(f"algorithm: expected standard or flash, got {algorithm!r}")
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype: expected one of {', '.join(ITEM_BYTES)}, got {dtype!r}")
    if direction not in PRODUCTS:
        raise ValueError(f"direction: expected forward or backward, got {direction!r}")
    rows = shape.batch * shape.q_heads * shape.q_len
    pairs = shape.batch * shape.q_heads * visible_pairs(shape.q_len, shape.k_len, causal)
    flops = PRODUCTS[direction] * FLOPS_PER_MAC * pairs * shape.head_dim

    query_elements = rows * shape.head_dim
    key_elements = shape.batch * shape.kv_heads * shape.k_len * shape.head_dim
    elements = QUERY_TENSORS[direction] * query_elements + KEY_TENSORS[direction] * key_elements
    if algorithm == "standard":
        # The matrix is stored whole: a mask is applied to it, not a reason to leave parts out.
        elements += STANDARD_MATRIX_PASSES[direction] * rows * shape.k_len
        return Cost(flops, elements * ITEM_BYTES[dtype])
    return Cost(flops, elements * ITEM_BYTES[dtype] + rows * LSE_BYTES)
    # END SOLUTION


def ridge_point(profile: Profile, dtype: str = "bfloat16") -> float:
    """Intensity, FLOP/byte, from which on `profile` is bound by arithmetic.

    Raises:
        ValueError: the GPU has no unit for `dtype`.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: where the two roofs meet; mind the units")
    return peak_flops(profile, dtype) / bandwidth(profile)
    # END SOLUTION


def attainable_tflops(cost: Cost, profile: Profile, dtype: str = "bfloat16") -> float:
    """The roofline: TFLOP/s that `profile` can reach at the intensity of `cost`, at best.

    Raises:
        ValueError: the GPU has no unit for `dtype`.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: the lower of two roofs")
    return min(peak_flops(profile, dtype), cost.flops / cost.bytes * bandwidth(profile)) / 1e12
    # END SOLUTION


def bound(cost: Cost, profile: Profile, dtype: str = "bfloat16") -> str:
    """What limits `cost` on `profile`: ``memory`` below the ridge point, ``compute`` at it and above.

    Raises:
        ValueError: the GPU has no unit for `dtype`.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: compare the intensity with the ridge point")
    return "memory" if cost.flops / cost.bytes < ridge_point(profile, dtype) else "compute"
    # END SOLUTION


# BEGIN SOLUTION
def peak_flops(profile: Profile, dtype: str) -> float:
    """FLOP/s."""
    if dtype not in profile.peak_tflops:
        raise ValueError(f"{profile.name} has no peak for {dtype}; it has {', '.join(profile.peak_tflops)}")
    return profile.peak_tflops[dtype] * 1e12


def bandwidth(profile: Profile) -> float:
    """bytes/s."""
    return profile.bandwidth_gbs * 1e9


# END SOLUTION
def intensity_table(
    shapes: Iterable[Shape],
    profile: Profile,
    dtype: str = "bfloat16",
    causal: bool = False,
    direction: str = "forward",
) -> list[dict[str, Any]]:
    """Two rows a shape, standard before flash, in the order of `shapes`, each with the keys of COLUMNS.

    `intensity` and `ridge` are FLOP/byte; `causal` is ``yes`` or ``no``; `time_us` is the shortest time that the
    roofline allows, in microseconds.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: one dict a row, from the functions above")
    rows = []
    for shape in shapes:
        for algorithm in ("standard", "flash"):
            cost = attention_cost(shape, algorithm, dtype, causal, direction)
            tflops = attainable_tflops(cost, profile, dtype)
            values = (
                profile.name, algorithm, dtype, "yes" if causal else "no", direction, shape.batch, shape.q_heads,
                shape.kv_heads, shape.q_len, shape.k_len, shape.head_dim, cost.flops, cost.bytes,
                cost.flops / cost.bytes, ridge_point(profile, dtype), bound(cost, profile, dtype), tflops,
                cost.flops / (tflops * 1e12) * 1e6,
            )  # fmt: skip
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows
    # END SOLUTION


def plot_roofline(rows: list[dict[str, Any]], profile: Profile, path: str | Path | None = None) -> Figure:
    """The roofline of `profile` with a point for every row of a table: intensity against attainable TFLOP/s.

    One roof for each dtype in `rows`, drawn past its ridge point on either side; both axes logarithmic, labelled with
    their units.

    Args:
        path: where to save the picture as PNG; None saves nothing.

    Returns:
        the figure, so that a notebook shows it.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: a broken line a dtype, a marker a row, logarithmic axes")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    intensities = [row["intensity"] for row in rows]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        ridge, peak = ridge_point(profile, dtype), profile.peak_tflops[dtype]
        x = [min(*intensities, ridge / 8) / 2, ridge, max(*intensities, ridge * 8) * 2]
        axes.plot(x, [x[0] / ridge * peak, peak, peak], label=f"{dtype} roof, ridge at {ridge:.0f} FLOP/byte")
    for algorithm, marker in (("standard", "o"), ("flash", "^")):
        chosen = [row for row in rows if row["algorithm"] == algorithm]
        points = [[row[name] for row in chosen] for name in ("intensity", "attainable_tflops")]
        axes.plot(*points, marker, alpha=0.6, label=algorithm)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("attainable TFLOP/s")
    axes.set_title(f"Attention on {profile.name}: {profile.bandwidth_gbs:g} GB/s")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    if path is not None:
        figure.savefig(path, dpi=110)
    return figure
    # END SOLUTION


# kept-from-students-870f51ef555dbc00

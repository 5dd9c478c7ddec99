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


def visible_pairs(q_len: int, k_len: int, causal: bool) -> int:
    """Number of (query, key) pairs that the mask leaves, for one head.

    Args:
        causal: row i sees the keys j <= i + k_len - q_len; with q_len > k_len the first rows see none.
    """
    raise NotImplementedError("TODO: count the keys that each row sees, and add them up")


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
    raise NotImplementedError("TODO: flops from visible pairs, bytes tensor by tensor")


def ridge_point(profile: Profile, dtype: str = "bfloat16") -> float:
    """Intensity, FLOP/byte, from which on `profile` is bound by arithmetic.

    Raises:
        ValueError: the GPU has no unit for `dtype`.
    """
    raise NotImplementedError("TODO: where the two roofs meet; mind the units")


def attainable_tflops(cost: Cost, profile: Profile, dtype: str = "bfloat16") -> float:
    """The roofline: TFLOP/s that `profile` can reach at the intensity of `cost`, at best.

    Raises:
        ValueError: the GPU has no unit for `dtype`.
    """
    raise NotImplementedError("TODO: the lower of two roofs")


def bound(cost: Cost, profile: Profile, dtype: str = "bfloat16") -> str:
    """What limits `cost` on `profile`: ``memory`` below the ridge point, ``compute`` at it and above.

    Raises:
        ValueError: the GPU has no unit for `dtype`.
    """
    raise NotImplementedError("TODO: compare the intensity with the ridge point")


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
    raise NotImplementedError("TODO: one dict a row, from the functions above")


def plot_roofline(rows: list[dict[str, Any]], profile: Profile, path: str | Path | None = None) -> Figure:
    """The roofline of `profile` with a point for every row of a table: intensity against attainable TFLOP/s.

    One roof for each dtype in `rows`, drawn past its ridge point on either side; both axes logarithmic, labelled with
    their units.

    Args:
        path: where to save the picture as PNG; None saves nothing.

    Returns:
        the figure, so that a notebook shows it.
    """
    raise NotImplementedError("TODO: a broken line a dtype, a marker a row, logarithmic axes")

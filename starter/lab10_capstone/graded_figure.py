"""What the grader calls to look at your plot: it runs `figure` of plot.py and reads what was drawn. Provided.

Nothing here decides a grade. `thumbnail` runs in a worker of its own, without your files.
"""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np

MAX_VALUES = 20_000


def _figure(rows: list[dict[str, str]]) -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import plot
    from matplotlib.figure import Figure

    figure = plot.figure(rows)
    if not isinstance(figure, Figure):
        raise TypeError(f"plot.figure returned {type(figure).__name__}, expected the matplotlib Figure")
    return figure


def drawn(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Every coordinate of the figure's lines, points and bars, in data coordinates; how many words its axes have."""
    figure = _figure(rows)
    figure.canvas.draw()
    values: list[float] = []
    for axes in figure.axes:
        for line in axes.lines:
            values += [float(value) for value in np.ravel(line.get_xydata())]
        for collection in axes.collections:
            values += [float(value) for value in np.ravel(np.ma.filled(collection.get_offsets(), np.nan))]
        for patch in axes.patches:
            box = patch.get_extents().transformed(axes.transData.inverted())
            values += [float(box.height), float(box.width), float(box.y1), float(box.x1)]
    words = sum(len(axes.get_xlabel().split()) + len(axes.get_ylabel().split()) for axes in figure.axes)
    return {"values": values[:MAX_VALUES], "words": words}


def rendered(rows: list[dict[str, str]]) -> np.ndarray:
    """The figure as the bytes of a PNG, at matplotlib's resolution."""
    buffer = io.BytesIO()
    _figure(rows).savefig(buffer, format="png")
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def thumbnail(png: np.ndarray, cells: int) -> np.ndarray:
    """Mean darkness of a PNG's pixels on a grid of cells x cells, float64; alpha is laid over white."""
    from matplotlib.image import imread

    pixels = np.asarray(imread(io.BytesIO(png.tobytes()), format="png"), dtype=np.float64)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    alpha = pixels[..., -1:] if pixels.shape[-1] in (2, 4) else np.ones_like(pixels[..., :1])
    colours = pixels[..., : 1 if pixels.shape[-1] <= 2 else 3]
    dark = (1.0 - colours.mean(axis=-1)) * alpha[..., 0]
    rows, columns = (np.linspace(0, size, cells + 1).astype(int) for size in dark.shape)
    across = list(itertools.pairwise(columns))
    return np.array([[dark[a:b, c:d].mean() for c, d in across] for a, b in itertools.pairwise(rows)])

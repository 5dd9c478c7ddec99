"""What the grader calls: it turns plain numbers into the classes of course_types, and back. Provided.

Nothing here decides a grade; your functions are called and what they return is handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import roofline
from course_types import Cost, Profile, Shape

MAX_VERTICES = 5000


def _function(name: str) -> Callable[..., Any]:
    found = getattr(roofline, name, None)
    if not callable(found):
        raise AttributeError(f"roofline.py has no function `{name}`")
    return found


def _profile(told: dict[str, Any]) -> Profile:
    return Profile(told["name"], told["bandwidth_gbs"], dict(told["peak_tflops"]))


def pairs(cases: list[list[Any]]) -> list[Any]:
    """`visible_pairs` of each (q_len, k_len, causal)."""
    return [_function("visible_pairs")(*case) for case in cases]


def costs(cases: list[dict[str, Any]]) -> list[Any]:
    """`attention_cost` of each case: ``shape`` (six sizes) and the other arguments by name."""
    found = []
    for case in cases:
        options = {name: value for name, value in case.items() if name != "shape"}
        found.append(_function("attention_cost")(Shape(*case["shape"]), **options))
    return found


def ridges(profile: dict[str, Any], dtypes: list[str | None]) -> list[Any]:
    """`ridge_point` for each dtype; None leaves it to the default."""
    return [_function("ridge_point")(_profile(profile), *([] if dtype is None else [dtype])) for dtype in dtypes]


def attainable(profile: dict[str, Any], cases: list[list[Any]]) -> list[Any]:
    """`attainable_tflops` for each (flops, bytes, dtype)."""
    return [_function("attainable_tflops")(Cost(f, b), _profile(profile), dtype) for f, b, dtype in cases]


def bounds(profile: dict[str, Any], cases: list[list[Any]]) -> list[Any]:
    """`bound` for each (flops, bytes, dtype)."""
    return [_function("bound")(Cost(f, b), _profile(profile), dtype) for f, b, dtype in cases]


def table(shapes: list[list[int]], profile: dict[str, Any], options: dict[str, Any]) -> Any:
    """`intensity_table`, with `options` by name."""
    return _function("intensity_table")([Shape(*sizes) for sizes in shapes], _profile(profile), **options)


def drawn(rows: list[dict[str, Any]], profile: dict[str, Any]) -> dict[str, Any]:
    """Call `plot_roofline` without a screen, and read what the figure's axes hold.

    Returns:
        ``xscale``, ``yscale``, ``xlabel``, ``ylabel``; ``lines``: [x, y] of each line of two points or more, in data
        coordinates; ``points``: [x, y] of everything drawn as a marker.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = _function("plot_roofline")(rows, _profile(profile))
    if not isinstance(figure, Figure):
        raise TypeError(f"plot_roofline returned {type(figure).__name__}, expected the matplotlib Figure")
    filled = [axes for axes in figure.axes if axes.lines or axes.collections]
    if not filled:
        raise ValueError("plot_roofline returned a figure without lines or points")
    figure.canvas.draw()  # Limits and transforms are settled by drawing.
    axes = max(filled, key=lambda item: len(item.lines) + len(item.collections))
    return {
        "xscale": axes.get_xscale(),
        "yscale": axes.get_yscale(),
        "xlabel": axes.get_xlabel(),
        "ylabel": axes.get_ylabel(),
        "lines": _lines(axes),
        "points": _points(axes),
    }


def _lines(axes: Any) -> list[list[list[float]]]:
    found = []
    for line in axes.lines:
        if line.get_linestyle() not in ("None", "none", " ", "") and line.get_visible():
            x, y = _in_data(axes, line)
            if len(x) > 1:
                found.append([x[:MAX_VERTICES], y[:MAX_VERTICES]])
    return found


def _in_data(axes: Any, line: Any) -> tuple[list[float], list[float]]:
    """A line's vertices in data coordinates: `axhline` and the like are kept in coordinates of the axes."""
    path = line.get_path()
    xy = axes.transData.inverted().transform(line.get_transform().transform(path.vertices))
    return xy[:, 0].tolist(), xy[:, 1].tolist()


def _points(axes: Any) -> list[list[float]]:
    xs: list[float] = []
    ys: list[float] = []
    for line in axes.lines:
        if line.get_marker() not in ("None", "none", " ", "", None) and line.get_visible():
            xs += [float(x) for x in line.get_xdata()]
            ys += [float(y) for y in line.get_ydata()]
    for collection in axes.collections:
        if type(collection).__name__ == "PathCollection" and collection.get_visible():
            offsets = collection.get_offsets()
            xs += [float(x) for x, _ in offsets]
            ys += [float(y) for _, y in offsets]
    return [xs[:MAX_VERTICES], ys[:MAX_VERTICES]]

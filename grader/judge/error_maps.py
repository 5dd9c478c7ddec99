"""Where an output is wrong: a map of its tiles, and sentences about the pattern that point at a loop or a mask.

Sentences speak of tiles, heads and the shape of the mask; they hold no input and no expected value, so that a hidden
check may show them.
"""

from __future__ import annotations

import numpy as np

from grader.judge.compare import absolute_error
from grader.judge.oracle import RowView
from grader.judge.precision import Array
from grader.judge.tolerance import ForwardBounds
from grader.report.model import ErrorMap

MAP_ROWS = 16
HEAD_DIM_TILE = 16
TILE_SIZES = (16, 32, 64, 128)
"""Tile heights that kernels use: a pattern that starts at one of these is worth a word."""


def excess(bounds: ForwardBounds, o: Array) -> Array:
    """Error of O over what is allowed (slices, n, head_dim), by the rules that it breaks; above 1 is wrong."""
    error = absolute_error(o, bounds.o)
    allowed = bounds.o_bounds.allowed
    tiny = np.finfo(np.float64).tiny
    ratio = error / max(allowed.max, tiny)
    rules = {breach.rule for breach in bounds.o_bounds.breaches(o, bounds.o)}
    with np.errstate(over="ignore", invalid="ignore"):
        row = np.sqrt(np.mean(np.square(error), axis=-1, keepdims=True))
    if "row rms" in rules and "max" not in rules:
        ratio = np.maximum(ratio, row / max(allowed.row_rms, tiny))
    if rules == {"mean"}:
        ratio = np.maximum(ratio, error / max(allowed.mean, tiny))
    return np.asarray(ratio)


def _map_tile(length: int) -> int:
    tile = TILE_SIZES[0]
    while -(-length // tile) > MAP_ROWS:
        tile *= 2
    return tile


def o_map(bounds: ForwardBounds, o: Array) -> ErrorMap:
    """Tiles of the worst (batch, head) slice of O: query tiles down, head_dim tiles across."""
    view, ratio = bounds.view, excess(bounds, o)
    worst = int(np.argmax(ratio.reshape(ratio.shape[0], -1).max(axis=1)))
    rows = view.rows[0 if view.rows.shape[0] == 1 else worst]
    tile = _map_tile(view.case.q_len)
    width = min(HEAD_DIM_TILE, ratio.shape[-1])
    cells = np.zeros((-(-view.case.q_len // tile), -(-ratio.shape[-1] // width)))
    for column in range(cells.shape[1]):
        part = ratio[worst][:, column * width : (column + 1) * width].max(axis=1)
        np.maximum.at(cells[:, column], rows // tile, part)
    return ErrorMap(
        title=f"O, batch {view.batches[worst]}, head {view.heads[worst]}",
        row_axis="query",
        col_axis="head_dim",
        tile=(tile, width),
        cells=_listed(cells),
    )


def lse_map(bounds: ForwardBounds, lse: Array) -> ErrorMap:
    """Tiles of the LSE of the worst batch entry: heads down, query tiles across."""
    view = bounds.view
    ratio = absolute_error(lse, bounds.lse) / bounds.lse_allowed  # (slices, n)
    worst = int(view.batches[int(np.argmax(ratio.max(axis=1)))])
    tile = _map_tile(view.case.q_len)
    heads = np.flatnonzero(view.batches == worst)
    cells = np.zeros((heads.size, -(-view.case.q_len // tile)))
    for place, index in enumerate(heads):
        rows = view.rows[0 if view.rows.shape[0] == 1 else index]
        np.maximum.at(cells[place], rows // tile, ratio[index])
    return ErrorMap(
        title=f"LSE, batch {worst}", row_axis="head", col_axis="query", tile=(1, tile), cells=_listed(cells)
    )


def _listed(cells: Array) -> list[list[float]]:
    return [[float(f"{cell:.3g}") for cell in row] for row in cells]


def pattern(view: RowView, wrong: Array) -> list[str]:
    """Sentences on where `wrong` (slices, n, columns) lies; empty when it is everywhere or nowhere."""
    if not wrong.any():
        return []
    sentences = [
        _slices(view, np.asarray(wrong.any(axis=(1, 2)))),
        _rows(view, np.asarray(wrong.any(axis=2))),
        _columns(wrong),
    ]
    return [sentence for sentence in sentences if sentence]


def _slices(view: RowView, wrong: Array) -> str:
    """Which batch entries and heads hold a wrong value; `wrong` is (slices,)."""
    if wrong.all():
        return ""
    case = view.case
    batches, heads = set(view.batches[wrong].tolist()), set(view.heads[wrong].tolist())
    all_batches, all_heads = set(view.batches.tolist()), set(view.heads.tolist())
    if heads == all_heads and batches < all_batches:
        later = batches == {batch for batch in all_batches if batch > 0}
        return "Only batch entries after the first are wrong." if later else f"Only batch {_counted(batches)} is wrong."
    if batches == all_batches and heads < all_heads:
        if heads == {head for head in all_heads if head >= case.kv_heads} and case.group > 1:
            return "Only query heads from kv_heads upwards are wrong."
        if heads == {head for head in all_heads if head // case.group > 0}:
            return "Only query heads of kv heads after the first are wrong."
        if heads == {head for head in all_heads if head > 0}:
            return "Only heads after the first are wrong."
        return f"Only query heads {_counted(heads)} are wrong."
    return f"{int(wrong.sum())} of {wrong.size} (batch, head) slices are wrong."


def _counted(numbers: set[int]) -> str:
    shown = sorted(numbers)
    return ", ".join(map(str, shown[:6])) + (", ..." if len(shown) > 6 else "")


def _rows(view: RowView, wrong: Array) -> str:
    """Which query rows hold a wrong value; `wrong` is (slices, n)."""
    rows = np.broadcast_to(view.rows, wrong.shape)
    right, bad = rows[~wrong], rows[wrong]
    if right.size == 0:
        return ""
    seen = np.broadcast_to(view.visible().sum(axis=-1), wrong.shape) if view.is_whole else None
    if seen is not None:
        sentence = _by_visibility(seen, wrong, view.case.k_len)
        if sentence:
            return sentence
    length = view.case.q_len
    for tile in TILE_SIZES:
        tail = length // tile * tile
        if 0 < tail < length and bad.min() >= tail and right.max() < tail:
            return f"Only the rows of the last, partial query tile (of {tile}) are wrong."
    for tile in TILE_SIZES:
        if bad.min() >= tile > right.max() or (bad.min() == tile and not wrong[rows < tile].any()):
            return f"Only rows from {tile} upwards are wrong: look at every query tile after the first."
        if bad.max() < tile <= right.min():
            return f"Only the first {tile} query rows are wrong."
    return f"{100.0 * wrong.mean():.0f} % of the query rows are wrong."


def _by_visibility(seen: Array, wrong: Array, k_len: int) -> str:
    """Whether wrong rows are told from right ones by how many keys they see (`seen`, like `wrong`)."""
    none = seen == 0
    if none.any() and np.array_equal(wrong, none):
        return "Only rows that see no key at all are wrong: they must give O = 0 and LSE = -inf."
    if none.any() and not (wrong & none).any() and wrong[~none].all():
        return "Only rows that see at least one key are wrong."
    partly = (seen > 0) & (seen < k_len)
    if partly.any() and not partly.all() and np.array_equal(wrong, partly):
        return "Only rows that see a part of the keys are wrong: look at the mask."
    for tile in TILE_SIZES:
        if wrong.any() and np.array_equal(wrong, seen > tile):
            return f"Only rows that see more than {tile} keys are wrong: look at what happens between key tiles."
    return ""


def _columns(wrong: Array) -> str:
    """Which head_dim columns hold a wrong value."""
    bad = np.flatnonzero(wrong.any(axis=(0, 1)))
    columns = wrong.shape[-1]
    if bad.size == columns or columns == 1:
        return ""
    start = int(bad.min())
    if start and bad.size == columns - start:
        return f"Only head_dim columns from {start} upwards are wrong."
    if bad.size == bad.max() + 1 and bad.size <= columns // 2:
        return f"Only the first {bad.size} head_dim columns are wrong."
    return ""


def nonfinite_facts(o: Array, expected: Array) -> str:
    """What kind of non-finite values O holds."""
    nan = np.isnan(o)
    if nan.all():
        return (
            "Every value is NaN: nothing was written (fresh memory holds NaN here), "
            "or a load went past the end of an input (what lies around it is NaN), or inf - inf was computed."
        )
    parts = []
    if nan.any():
        parts.append(f"{100.0 * nan.mean():.2g} % of O is NaN")
    infinite = np.isinf(o) & np.isfinite(expected)
    if infinite.any():
        parts.append(f"{100.0 * infinite.mean():.2g} % of O is infinite")
    return f"{' and '.join(parts)}." if parts else ""

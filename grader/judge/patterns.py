"""Mistakes that are recognised by where an answer is wrong, not by what stands there."""

from __future__ import annotations

import numpy as np

from grader.judge.compare import absolute_error, misplaced
from grader.judge.oracle import RowView
from grader.judge.precision import Array, numpy_dtype
from grader.judge.tolerance import ForwardBounds
from grader.report.model import Diagnosis

TILE = 16
"""Tile edges that kernels have are multiples of this."""

POISON_BYTES = (b"\xfe", b"\xff")
"""What fresh memory is filled with, by malloc and on a GPU: NaN, or a huge number."""

UNDERFLOW = -104.0
"""Below it float32's exp is 0."""

TEXTS = {
    "zeros": "Your output is all zeros: nothing was computed, or nothing was stored.",
    "fully-masked-row-nan": "Rows that see no key are NaN (0/0 or inf - inf); they must give O = 0 and LSE = -inf.",
    "fully-masked-row-not-zero": "Rows that see no key hold a number (a finite mask value gives them a mean of V); "
    "they must give O = 0 and LSE = -inf.",
    "fully-masked-row-lse": "O is right, but the LSE of rows that see no key isn't -inf.",
    "last-query-tile-missing": "The last query rows are never written: the grid must round up, cdiv(q_len, BLOCK_M).",
    "first-query-tile-missing": "The first query rows are never written.",
    "heads-unwritten": "Some heads are never written: the grid must cover every query head of every batch entry.",
    "nan-from-padding": "O is NaN where the LSE is right: rows of V past the end are read, and 0 * NaN is NaN; "
    "load them as zeros.",
    "columns-unwritten": "Some head_dim columns are never written.",
    "output-unwritten": "Parts of the output are never written.",
}


def recognise(bounds: ForwardBounds, o: Array, lse: Array | None) -> Diagnosis | None:
    """The pattern that (o, lse) shows on the bounds' view, None when there is none."""
    found = (
        _all_zero(bounds, o, lse)
        or _masked_rows(bounds, o, lse)
        or _padding_read(bounds, o, lse)
        or _unwritten(bounds, o, lse)
    )
    return Diagnosis(id=found, text=TEXTS[found]) if found else None


def fresh_memory(values: Array, dtype: str) -> Array:
    """bool: where `values`, read from a tensor of `dtype`, are what memory holds that was never written."""
    target = numpy_dtype(dtype)
    # Bit by bit: a NaN that was computed has another payload, which float64 keeps.
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    poison = [np.frombuffer(byte * target.itemsize, target).astype(np.float64).view(np.uint64) for byte in POISON_BYTES]
    return np.isin(bits, poison)


def _all_zero(bounds: ForwardBounds, o: Array, lse: Array | None) -> str:
    if o.any() or not bounds.o_bounds.breaches(o, bounds.o):
        return ""
    # With an LSE of -inf throughout (0 where the row sum is replaced by 1) on rows so low that exp gives 0, the weights
    # were computed, and underflowed: a matter of the running maximum.
    low = bool((bounds.lse < UNDERFLOW).all())
    underflowed = lse is not None and (bool(np.isneginf(lse).all()) or (low and not lse.any()))
    # So they were where a wrong LSE was stored: keys past the end, whose V is 0, won over real ones.
    outweighed = lse is not None and bool(bounds.lse_breaches(lse)) and bool(lse.any()) and _stored(lse)
    return "" if underflowed or outweighed else "zeros"


def _stored(lse: Array) -> bool:
    return bool(np.isfinite(lse).all()) and not fresh_memory(lse, "float32").any()


def _masked_rows(bounds: ForwardBounds, o: Array, lse: Array | None) -> str:
    """Whether the answer is wrong in rows that see no key, and nowhere else."""
    empty = np.isneginf(bounds.lse)
    if not empty.any():
        return ""
    o_wrong, lse_wrong = _wrong(bounds, o, lse)
    o_rows = o_wrong.any(axis=-1)
    if (o_rows & ~empty).any() or (lse_wrong & ~empty).any():
        return ""
    if not o_rows.any():
        return "fully-masked-row-lse" if lse_wrong.any() else ""
    return "fully-masked-row-nan" if np.isnan(o[empty]).any() else "fully-masked-row-not-zero"


def _wrong(bounds: ForwardBounds, o: Array, lse: Array | None) -> tuple[Array, Array]:
    """bool: (wrong values of O, wrong values of the LSE)."""
    o_wrong = (absolute_error(o, bounds.o) > bounds.o_bounds.allowed.max) | misplaced(o, bounds.o)
    if lse is None:
        return o_wrong, np.zeros(o.shape[:-1], dtype=bool)
    return o_wrong, (absolute_error(lse, bounds.lse) > bounds.lse_allowed) | misplaced(lse, bounds.lse)


def _padding_read(bounds: ForwardBounds, o: Array, lse: Array | None) -> str:
    """Whether O is NaN in the rows that reach the last key's tile, while the LSE is right throughout.

    Not in every head: past one head's V lies the next one's, and only past the last is there NaN.
    """
    if lse is None or not bounds.view.case.k_len % TILE or bounds.lse_breaches(lse):
        return ""
    nan = np.isnan(o)
    rows = np.asarray(nan.all(axis=-1))
    slices = rows.any(axis=1)
    reached = np.broadcast_to(bounds.view.visible()[..., -1], rows.shape)
    complete = slices.any() and rows[slices][reached[slices]].all() and np.array_equal(nan.any(axis=-1), rows)
    return "nan-from-padding" if complete else ""


def _unwritten(bounds: ForwardBounds, o: Array, lse: Array | None) -> str:
    """Whether what is wrong are whole tiles of fresh memory or of zeros, beside tiles that are right."""
    wrong, lse_wrong = _wrong(bounds, o, lse)
    rows, columns = np.asarray(wrong.any(axis=-1)), np.asarray(wrong.any(axis=(0, 1)))
    if not rows.any() or (rows.all() and columns.all()):
        return ""
    if lse is not None and np.isneginf(lse[rows]).all():
        return ""  # the weights were computed, and underflowed
    fresh = fresh_memory(o, bounds.o_bounds.dtype)
    blank = fresh if fresh[wrong].all() else o == 0.0
    if not blank[wrong].all():
        return ""
    if not columns.all():
        return "columns-unwritten" if blank[..., columns].all() and not lse_wrong.any() else ""
    if not blank[rows].all():
        return ""
    slices = np.asarray(rows.any(axis=1))
    if rows[slices].all():
        return "heads-unwritten"
    return _row_range(bounds.view, rows[slices], slices) or "output-unwritten"


def _row_range(view: RowView, rows: Array, slices: Array) -> str:
    """Whether every slice that is wrong lacks its last rows, or its first, cut at a tile's edge."""
    if not (rows == rows[0]).all() or not view.is_whole:
        return ""
    bad = np.flatnonzero(rows[0])
    length = view.case.q_len
    first, last = int(bad[0]), int(bad[-1])
    if bad.size != last - first + 1 or not slices.any():
        return ""
    if last == length - 1 and first % TILE == 0:
        return "last-query-tile-missing"
    if first == 0 and (last + 1) % TILE == 0:
        return "first-query-tile-missing"
    return ""

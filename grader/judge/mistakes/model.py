"""What a known mistake is, and the pieces that most of them are put together from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from grader.judge.oracle import AttentionCase, Result, RowView, softmax_attention, visible_keys, window_bounds
from grader.judge.precision import Array

Variant = Callable[[RowView], Result]
"""The (O, LSE) of a view that a mistaken kernel gives; an LSE of None values (NaN everywhere) constrains nothing."""

BLOCKS = (16, 32, 64, 128)
"""Tile sizes that kernels use."""


@dataclass(frozen=True, eq=False)
class Mistake:
    """One known mistake.

    Attributes:
        id: kebab-case name, as `wrong/` solutions and reports use it.
        text: a sentence for the student.
        variants: what it produces, one function for each tile size or flavour.
        shows: whether it can be visible on a case at all; saves time and wrong guesses.
        target: ``O`` when it spoils the output, ``LSE`` when O is right and only the LSE is wrong.
        group: mistakes of one group that predict the same numbers count as one, told as the first of them.
        noisy: the mistake is one of rounding, so predictions follow the answer less closely.
    """

    id: str
    text: str
    variants: tuple[Variant, ...]
    shows: Callable[[AttentionCase], bool] = lambda case: True
    target: Literal["O", "LSE"] = "O"
    group: str = ""
    noisy: bool = False


def raw_scores(view: RowView, k: Array | None = None) -> Array:
    """q · k, unscaled: (slices, n, k_len)."""
    return view.q() @ np.swapaxes(view.k() if k is None else k, -1, -2)


def scores(view: RowView) -> Array:
    """q · k · scale."""
    return raw_scores(view) * view.case.softmax_scale


def attend(
    view: RowView,
    *,
    scale: float | None = None,
    visible: Array | None = None,
    k: Array | None = None,
    v: Array | None = None,
) -> Result:
    """Attention with the scale, mask, K or V replaced."""
    factor = view.case.softmax_scale if scale is None else scale
    return softmax_attention(
        raw_scores(view, k) * factor,
        view.visible() if visible is None else visible,
        view.v() if v is None else v,
    )


def mask_of(
    view: RowView,
    *,
    reach: tuple[int | None, int | None] | None = None,
    diagonal: int | None = None,
    k_len: int | None = None,
) -> Array:
    """The case's mask with its reach, alignment or number of keys replaced."""
    case = view.case
    return visible_keys(
        view.rows,
        case.k_len if k_len is None else k_len,
        case.diagonal if diagonal is None else diagonal,
        window_bounds(case.causal, case.window) if reach is None else reach,
    )


def tiles(length: int, block: int, *, backwards: bool = False) -> Iterable[slice]:
    """Key tiles in the order in which a kernel reads them."""
    starts = range(0, length, block)
    for start in reversed(starts) if backwards else starts:
        yield slice(start, min(start + block, length))


def unknown_lse(o: Array) -> Array:
    """An LSE that says nothing."""
    return np.full(o.shape[:-1], np.nan)


def divide(acc: Array, row_sum: Array) -> Array:
    """acc / row_sum with IEEE results: 0/0 is NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(acc / row_sum)


def log(values: Array) -> Array:
    """Natural log with log 0 = -inf and NaN below."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(values))

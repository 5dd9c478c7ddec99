"""Mistakes of tables, pages, lengths and unused slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from grader.judge.decode.cache import NO_PAGE, DecodeCase
from grader.judge.decode.predictions import Answer, Mistake, attend, gather, scores, walk, weigh
from grader.judge.precision import Array

TILES = (16, 32, 64, 128)
LONGEST = 1 << 20
"""A tile that holds every sequence."""
PAGE_SIZES = (1, 8, 16, 32, 64, 128, 256)


def _other_table(case: DecodeCase, index: int, row_of: Callable[[DecodeCase, int], Array]) -> Answer:
    return attend(case, index, *walk(case, row_of(case, index), case.lens[index]))


def _first_row(case: DecodeCase, index: int) -> Array:
    return np.asarray(case.table[0])


def _from_zero(case: DecodeCase, index: int) -> Array:
    return np.arange(case.table.shape[1])


def _dense(case: DecodeCase, index: int) -> Array:
    return np.asarray(index * case.table.shape[1] + np.arange(case.table.shape[1]))


def _packed(case: DecodeCase, index: int) -> Array:
    return np.asarray(sum(case.pages_of(i) for i in range(index)) + np.arange(case.table.shape[1]))


def _next_entry(case: DecodeCase, index: int) -> Array:
    return np.append(case.table[index, 1:], NO_PAGE)


def _page_moved(case: DecodeCase, index: int, by: int) -> Array:
    return np.asarray(case.table[index] + by)


def _page_of_tile(case: DecodeCase, index: int, tile: int, runs_on: bool) -> Answer:
    """All keys of a tile in the page of its first one, at their slots or running on into the page behind."""
    positions = np.arange(case.lens[index])
    first = positions // tile * tile
    page = case.table[index][first // case.page_size]
    slot = first % case.page_size + positions - first if runs_on else positions % case.page_size
    return attend(case, index, *gather(case, page * case.page_size + slot, page >= 0))


def _length_moved(case: DecodeCase, index: int, by: int) -> Answer:
    return attend(case, index, *walk(case, case.table[index], max(0, case.lens[index] + by)))


def _whole_pages(case: DecodeCase, index: int) -> Answer:
    return attend(case, index, *walk(case, case.table[index], case.pages_of(index) * case.page_size))


def _full_pages_only(case: DecodeCase, index: int) -> Answer:
    return attend(case, index, *walk(case, case.table[index], case.lens[index] // case.page_size * case.page_size))


def _one_length(case: DecodeCase, index: int, choose: Callable[[tuple[int, ...]], int]) -> Answer:
    return attend(case, index, *walk(case, case.table[index], choose(case.lens)))


def _first_of(lens: tuple[int, ...]) -> int:
    return lens[0]


def _page_size_assumed(case: DecodeCase, index: int, size: int) -> Answer:
    return attend(case, index, *walk(case, case.table[index], case.lens[index], size))


def _poisoned_answer(case: DecodeCase, index: int, of_k: bool, tile: int) -> Answer:
    """Dead slots are multiplied by a weight of 0, or scored and masked by arithmetic: NaN.

    Args:
        tile: up to a whole tile of so many keys; past the last page they are looked up in page 0, or by entries that
            no token needs. 0: those of the last page.
    """
    o, lse = attend(case, index, *walk(case, case.table[index], case.lens[index]))
    end = -(-case.lens[index] // tile) * tile if tile else case.pages_of(index) * case.page_size
    k, v = walk(case, np.maximum(case.table[index], 0), end)
    behind = (k if of_k else v)[case.lens[index] :]
    struck = np.repeat(np.isnan(behind).any(axis=(0, 2)), case.group)
    o[struck] = np.nan
    if of_k:
        lse[struck] = np.nan
    return o, lse


def _first_q(case: DecodeCase, index: int) -> Answer:
    moved = replace(case, q=np.broadcast_to(case.q[:1], case.q.shape))
    return attend(moved, index, *walk(case, case.table[index], case.lens[index]))


def _across_heads(case: DecodeCase, index: int, only_sum: bool) -> Answer:
    """Weights that add up to one over a group's heads; or rows divided by the sum of all rows of their group."""
    k, v = walk(case, case.table[index], case.lens[index])
    if not len(k):
        return attend(case, index, k, v)
    found = scores(case, index, k).reshape(case.kv_heads, case.group, -1)
    top = found.max(axis=2 if only_sum else 1, keepdims=True)
    weights = np.exp(found - top)
    total = weights.sum(axis=(1, 2) if only_sum else 1, keepdims=True)
    return weigh(case, (weights / total).reshape(case.q_heads, -1), v), None


def _empty_is_nan(case: DecodeCase, index: int) -> Answer:
    o, lse = attend(case, index, *walk(case, case.table[index], case.lens[index]))
    return (o, lse) if case.lens[index] else (np.full_like(o, np.nan), None)


def _several(case: DecodeCase) -> bool:
    return case.batch > 1


def _has_nan(case: DecodeCase) -> bool:
    return bool(np.isnan(case.k_cache).any() or np.isnan(case.v_cache).any())


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "table-ignored",
        "Your output equals attention over pages in the order in which they lie in the cache: the block table isn't "
        "used to find them.",
        tuple(partial(_other_table, row_of=rows) for rows in (_from_zero, _dense, _packed)),
    ),
    Mistake(
        "table-row-of-first",
        "Your output equals attention in which every sequence uses the first sequence's row of the block table.",
        (partial(_other_table, row_of=_first_row),),
        _several,
    ),
    Mistake(
        "table-off-by-one",
        "Your output equals attention over the wrong neighbours: the block table's entry behind the right one, or the "
        "page before or behind the one that it names.",
        (
            partial(_other_table, row_of=_next_entry),
            partial(_other_table, row_of=partial(_page_moved, by=1)),
            partial(_other_table, row_of=partial(_page_moved, by=-1)),
        ),
    ),
    Mistake(
        "one-page-a-tile",
        "Your output equals attention in which a whole tile of keys lies in the page of its first key: a tile may span "
        "several pages.",
        tuple(
            partial(_page_of_tile, tile=tile, runs_on=runs_on)
            for tile in (32, 64, 128, LONGEST)
            for runs_on in (False, True)
        ),
        lambda case: max(case.lens) > case.page_size,
    ),
    Mistake(
        "q-of-first",
        "Your output equals attention in which every sequence has the first one's q.",
        (_first_q,),
        _several,
    ),
    Mistake(
        "softmax-over-heads",
        "Your output equals a softmax (or a row sum) taken over the query heads of a group: the rows of a tile are "
        "heads, and each has a softmax of its own over the keys.",
        (partial(_across_heads, only_sum=False), partial(_across_heads, only_sum=True)),
        lambda case: case.group > 1,
    ),
    Mistake(
        "last-token-missed",
        "Your output equals attention that leaves out the last token: context_lens counts it.",
        (partial(_length_moved, by=-1),),
    ),
    Mistake(
        "unused-slot-attended",
        "Your output equals attention over slots past the end of the sequence: what stands there is no token of it.",
        (partial(_length_moved, by=1), _whole_pages),
        lambda case: not _has_nan(case),
    ),
    Mistake(
        "last-page-missed",
        "Your output equals attention over full pages only: a partly filled last page is left out.",
        (_full_pages_only,),
    ),
    Mistake(
        "one-length-for-all",
        "Your output equals attention in which every sequence has the same length.",
        (partial(_one_length, choose=_first_of), partial(_one_length, choose=max), partial(_one_length, choose=min)),
        _several,
    ),
    Mistake(
        "page-size-assumed",
        "Your output equals attention that assumes another page size than the cache's.",
        tuple(partial(_page_size_assumed, size=size) for size in PAGE_SIZES),
    ),
    Mistake(
        "unused-k-read",
        "O and LSE are NaN where unused slots of K hold NaN: mask the scores of slots past the end with -inf by "
        "selection, not by arithmetic.",
        tuple(partial(_poisoned_answer, of_k=True, tile=tile) for tile in (0, *TILES)),
        _has_nan,
        nan=True,
    ),
    Mistake(
        "unused-v-read",
        "O is NaN where unused slots of V hold NaN: their weight is 0, but 0 * NaN is NaN. Load them as zeros.",
        tuple(partial(_poisoned_answer, of_k=False, tile=tile) for tile in (0, *TILES)),
        _has_nan,
        nan=True,
    ),
    Mistake(
        "empty-sequence-nan",
        "Empty sequences are NaN (0/0, inf - inf, or never written); they must give O = 0 and LSE = -inf.",
        (_empty_is_nan,),
        lambda case: 0 in case.lens,
        nan=True,
    ),
)

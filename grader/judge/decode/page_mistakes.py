"""Mistakes of tables, pages, lengths and unused slots."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from grader.judge.decode.cache import DecodeCase
from grader.judge.decode.predictions import Answer, Mistake, attend, walk
from grader.judge.precision import Array

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


def _poisoned_answer(case: DecodeCase, index: int, of_k: bool) -> Answer:
    """Unused slots of the last page are multiplied by a weight of 0, or scored and masked by arithmetic: NaN."""
    o, lse = attend(case, index, *walk(case, case.table[index], case.lens[index]))
    k, v = walk(case, case.table[index], case.pages_of(index) * case.page_size)
    behind = (k if of_k else v)[case.lens[index] :]
    struck = np.repeat(np.isnan(behind).any(axis=(0, 2)), case.group)
    o[struck] = np.nan
    if of_k:
        lse[struck] = np.nan
    return o, lse


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
        (partial(_poisoned_answer, of_k=True),),
        _has_nan,
    ),
    Mistake(
        "unused-v-read",
        "O is NaN where unused slots of V hold NaN: their weight is 0, but 0 * NaN is NaN. Load them as zeros.",
        (partial(_poisoned_answer, of_k=False),),
        _has_nan,
    ),
    Mistake(
        "empty-sequence-nan",
        "Empty sequences are NaN (0/0 or inf - inf); they must give O = 0 and LSE = -inf.",
        (_empty_is_nan,),
        lambda case: 0 in case.lens,
    ),
)

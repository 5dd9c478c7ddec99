"""Judges `append_kv`: each new token in its own slot, bit for bit, and not a byte elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np

from grader.judge.decode import cache
from grader.judge.decode.cache import PLAIN, DecodeCase, Memory, NearAndFar, index_tensors
from grader.judge.precision import Array, numpy_dtype, round_to
from grader.report.model import Diagnosis
from grader.sandbox.failures import ContractViolated, Crashed, OutOfBounds
from grader.sandbox.outcomes import Mutated
from grader.sandbox.wire import Tensor

FUNCTION = "append_kv"
MODULE = "paged_decode"
MUTABLE = ("k_cache", "v_cache")
LARGE = 1 << 24
"""Caches of more elements stay in their own dtype: few of their pages are looked at."""


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def rng(self) -> np.random.Generator: ...
    def measure(self, name: str, value: object) -> None: ...
    def fail(self, message: str, *, diagnosis: Diagnosis | None = None) -> NoReturn: ...


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def mutating_call(self, function: str, /, *args: Any, mutable: tuple[str, ...], **kwargs: Any) -> Mutated: ...


@dataclass(frozen=True, eq=False)
class AppendCase:
    """One call of `append_kv`.

    Attributes:
        before: the caches and table, with `lens` tokens already there.
        k, v: (batch, kv_heads, head_dim), the new tokens.
        skipped: sequences whose new token has no page (-1).
    """

    before: DecodeCase
    k: Array
    v: Array
    skipped: tuple[int, ...] = ()


def case(
    rng: np.random.Generator, *, lens: tuple[int, ...], skipped: tuple[int, ...] = (), **options: Any
) -> AppendCase:
    """New tokens for sequences of those lengths; every slot of the caches holds a value of its own.

    Args:
        options: as `cache.case` takes them.
    """
    before = cache.case(rng, lens=lens, room=1, **options)
    for sequence in skipped:
        before.table[sequence] = cache.NO_PAGE
    size = (len(lens), before.kv_heads, before.head_dim)
    k, v = (round_to(rng.standard_normal(size), before.dtype) for _ in "kv")
    return AppendCase(before, k, v, skipped)


def to_tensors(case: AppendCase, device: str, memory: Memory = PLAIN) -> tuple[Tensor, ...]:
    """k, v, k_cache, v_cache, block_table, context_lens as the submission gets them."""
    before, target = case.before, numpy_dtype(case.before.dtype)
    row = 3 * before.kv_heads * before.head_dim
    outer = {"dense": None, "fused": row, "expanded": 0}[memory.q]
    strides = None if outer is None else (outer, before.head_dim, 1)
    tokens = (Tensor(np.ascontiguousarray(x.astype(target)), device=device, strides=strides) for x in (case.k, case.v))
    caches = (
        cache.cache_tensor(values, before.dtype, layout, device)
        for values, layout in ((before.k_cache, memory.k_cache), (before.v_cache, memory.v_cache))
    )
    return (*tokens, *caches, *index_tensors(before, device, memory))


def judge_append(judge: Judging, submission: Calling, case: AppendCase, *, label: str = "") -> None:
    """Call `append_kv` and compare both caches with what they must hold, bit for bit.

    Raises:
        what `judge.fail` raises: a cache is wrong. WorkerFailure: the call failed, or wrote outside of the caches.
    """
    tensors = to_tensors(case, submission.device)
    mutated = submission.mutating_call(FUNCTION, *tensors, mutable=MUTABLE, module=MODULE)
    judge_caches(judge, case, mutated.arguments, label=label)


def shared_along(case: AppendCase, memory: Memory) -> AppendCase:
    """The case with one token for all sequences where `memory` expands q."""
    if memory.q != "expanded":
        return case
    return replace(case, k=np.broadcast_to(case.k[:1], case.k.shape), v=np.broadcast_to(case.v[:1], case.v.shape))


def judge_elsewhere(
    judge: Judging,
    submission: Calling,
    case: AppendCase,
    tensors: NearAndFar,
    found: Diagnosis,
    *,
    numbers: Array | None = None,
) -> None:
    """As `attending.judge_elsewhere`: an append to caches in memory of another kind.

    Args:
        numbers: of the pages in caches that are `cache.renumbered`; None where they are the case's own.
    """
    near, far = (
        partial(submission.mutating_call, FUNCTION, *given, mutable=MUTABLE, module=MODULE) for given in tensors
    )
    wanted = expected(case)
    try:
        got = [_values(far().arguments.get(name), name) for name in MUTABLE]
    except (OutOfBounds, Crashed):
        what = "Memory outside of the tensors is accessed."
    else:
        if numbers is not None:
            # All slots of a page are one: what was written to one of them stands in all.
            wanted = [_first_of_new(after, before) for after, before in zip(wanted, _befores(case), strict=True)]
            got = [np.broadcast_to(values[numbers, :1], wanted[0].shape) for values in got]
        if _same(got, wanted):
            return
        what = _where(case, got, wanted)
    judge_caches(judge, case, near().arguments)
    judge.fail(f"{what} {found.text}", diagnosis=found)


def _first_of_new(after: Array, before: Array) -> Array:
    """Each page with its changed slot in the place of all, or its first one where none changed."""
    changed = (after != before).any(axis=(2, 3))
    return np.broadcast_to(after[np.arange(len(after)), changed.argmax(axis=1)][:, None], after.shape)


def judge_caches(judge: Judging, case: AppendCase, arguments: dict[str, Any], *, label: str = "") -> None:
    """Compare the caches that a call left with those that it must leave."""
    got = [_values(arguments.get(name), name) for name in MUTABLE]
    wanted = expected(case)
    prefix = f"{label}: " if label else ""
    if _same(got, wanted):
        return
    for mistake in MISTAKES:
        predicted = mistake.caches(case)
        if predicted is not None and _same(got, predicted) and not _same(predicted, wanted):
            judge.fail(prefix + mistake.text, diagnosis=Diagnosis(id=mistake.id, text=mistake.text))
    judge.fail(prefix + _where(case, got, wanted), diagnosis=_pattern(case, got, wanted))


def expected(case: AppendCase) -> list[Array]:
    """Both caches after the call."""
    return _written(case, lambda lens, sequence: lens[sequence])


def _values(value: object, name: str) -> Array:
    if not isinstance(value, Tensor):
        raise ContractViolated(f"{name} came back as a {type(value).__name__}, expected the tensor.")
    return value.data if value.data.size > LARGE else np.asarray(value.data, np.float64)


def _same(first: list[Array], second: list[Array]) -> bool:
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def _written(
    case: AppendCase,
    position_of: Callable[[tuple[int, ...], int], int],
    *,
    row_of: Callable[[DecodeCase, int], Array] | None = None,
    swapped: bool = False,
    only: str = "kv",
) -> list[Array]:
    """Both caches with the new tokens written at `position_of(lens, sequence)`."""
    before = case.before
    caches = [before.k_cache.copy(), before.v_cache.copy()]
    tokens = (case.v, case.k) if swapped else (case.k, case.v)
    for sequence in range(before.batch):
        position = position_of(before.lens, sequence)
        row = before.table[sequence] if row_of is None else row_of(before, sequence)
        page = row[position // before.page_size] if 0 <= position < row.size * before.page_size else cache.NO_PAGE
        if not 0 <= page < before.pages:
            continue
        for name, values, token in zip("kv", caches, tokens, strict=True):
            if name in only:
                values[page, position % before.page_size] = token[sequence]
    return caches


def _in_first_page(case: AppendCase) -> list[Array]:
    return _written(case, lambda lens, sequence: lens[sequence] % case.before.page_size)


def _logical_page(case: AppendCase) -> list[Array]:
    count = case.before.table.shape[1]
    return _written(case, lambda lens, sequence: lens[sequence], row_of=lambda before, sequence: np.arange(count))


@dataclass(frozen=True)
class AppendMistake:
    """What a known mistake leaves in both caches."""

    id: str
    text: str
    caches: Callable[[AppendCase], list[Array] | None]


MISTAKES = (
    AppendMistake(
        "append-nothing",
        "The caches hold what they held before: nothing was appended.",
        lambda case: [case.before.k_cache, case.before.v_cache],
    ),
    AppendMistake(
        "append-one-late",
        "The new token lies one slot too late: it belongs to position context_lens[b], counted from 0.",
        lambda case: _written(case, lambda lens, sequence: lens[sequence] + 1),
    ),
    AppendMistake(
        "append-one-early",
        "The new token overwrote the last one: it belongs to position context_lens[b], counted from 0.",
        lambda case: _written(case, lambda lens, sequence: lens[sequence] - 1),
    ),
    AppendMistake(
        "append-k-v-swapped",
        "K was written to V's cache, and V to K's.",
        lambda case: _written(case, lambda lens, sequence: lens[sequence], swapped=True),
    ),
    AppendMistake(
        "append-k-only",
        "V was not appended.",
        lambda case: _written(case, lambda lens, sequence: lens[sequence], only="k"),
    ),
    AppendMistake(
        "append-table-ignored",
        "The new tokens lie in the pages' logical places: look the page up in the block table.",
        _logical_page,
    ),
    AppendMistake(
        "append-first-page",
        "The new tokens all lie in their sequence's first page: the page is context_lens[b] // page_size.",
        _in_first_page,
    ),
    AppendMistake(
        "append-idle-row",
        "A token without a page (-1) was appended all the same, to page 0: such a row of the batch is idle.",
        lambda case: _written(
            case, lambda lens, sequence: lens[sequence], row_of=lambda before, i: np.maximum(before.table[i], 0)
        ),
    ),
    AppendMistake(
        "append-one-length",
        "The new tokens all lie at the first sequence's length.",
        lambda case: _written(case, lambda lens, sequence: lens[0]),
    ),
)


def _changes(case: AppendCase, got: list[Array]) -> list[Array]:
    """bool (pages, page_size, kv_heads) for K and V: what differs from before."""
    return [np.asarray((a != b).any(axis=-1)) for a, b in zip(got, _befores(case), strict=True)]


def _befores(case: AppendCase) -> tuple[Array, Array]:
    return case.before.k_cache, case.before.v_cache


def _pattern(case: AppendCase, got: list[Array], wanted: list[Array]) -> Diagnosis | None:
    """Whether the right slots are right and others changed too, or all kv heads went to the first one's place."""
    changed, due = _changes(case, got), _changes(case, wanted)
    in_first = [
        c[..., 0].any() and not c[..., 1:].any() and not (c[..., 0] & ~d[..., 0]).any()
        for c, d in zip(changed, due, strict=True)
    ]
    if any(in_first) and case.before.kv_heads > 1:
        text = "All kv heads' rows of the new token lie in the first head's place: the cache's head stride is left out."
        return Diagnosis(id="append-heads-in-one", text=text)
    kept = all(np.array_equal(g[d], w[d]) for g, w, d in zip(got, wanted, due, strict=True))
    if kept and any((c & ~d).any() for c, d in zip(changed, due, strict=True)):
        text = "The new tokens are in their slots, but other slots changed too."
        return Diagnosis(id="append-wrote-elsewhere", text=text)
    return None


def _where(case: AppendCase, got: list[Array], wanted: list[Array]) -> str:
    sentences = []
    for name, c, d, g, w in zip("KV", _changes(case, got), _changes(case, wanted), got, wanted, strict=True):
        lost, extra = int((d & (g != w).any(axis=-1)).sum()), int((c & ~d).sum())
        if lost:
            sentences.append(f"{name}: {lost} of {int(d.sum())} new rows (slot, kv head) aren't in their place.")
        if extra:
            sentences.append(f"{name}: {extra} rows that must not change did.")
    return " ".join(sentences)

"""Judges `decode_step` token by token: together the steps must give what one causal prefill gives.

The judge counts the lengths and rotates on its own; the submission rotates, appends and attends. Each sequence starts
with tokens that the judge put into the cache, so that positions, lengths and steps are three different numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np

from grader.judge import attention
from grader.judge.attention import AttentionCase
from grader.judge.compare import absolute_error
from grader.judge.decode import cache, rotary
from grader.judge.decode.appending import Calling
from grader.judge.decode.attending import check_decode
from grader.judge.decode.cache import DecodeCase
from grader.judge.precision import Array, numpy_dtype, round_to
from grader.report.model import Diagnosis, ErrorMap
from grader.sandbox.failures import ContractViolated
from grader.sandbox.wire import Tensor

FUNCTION = "decode_step"
MODULE = "paged_decode"


class Judging(Protocol):
    """The part of the judge fixture that is used here."""

    def rng(self) -> np.random.Generator: ...
    def measure(self, name: str, value: object) -> None: ...
    def fail(
        self, message: str, *, diagnosis: Diagnosis | None = None, error_map: ErrorMap | None = None
    ) -> NoReturn: ...


@dataclass(frozen=True, eq=False)
class Generation:
    """Sequences that grow by `steps` tokens.

    Attributes:
        start: caches and table with the first tokens of each sequence, rotated, and room for the new ones.
        q, k, v: (batch, heads, steps, head_dim), not rotated; values representable in the dtype.
        base, interleaved, rotary_dim: of the rotation.
    """

    start: DecodeCase
    q: Array
    k: Array
    v: Array
    base: float
    interleaved: bool
    rotary_dim: int | None

    @property
    def steps(self) -> int:
        return int(self.q.shape[2])

    def rotated(self, x: Array) -> rotary.RopeCase:
        """The rotation of new tokens at their positions: context length plus step."""
        positions = np.array(self.start.lens)[:, None] + np.arange(self.steps)
        return rotary.RopeCase(x, positions, self.base, self.interleaved, self.rotary_dim, self.start.dtype)

    def prefill(self, sequence: int) -> AttentionCase:
        """Causal attention of the new rows over the old and new tokens of one sequence."""
        start = self.start
        at, slot = start.place(start.table[sequence], np.arange(start.lens[sequence]))
        dtype = start.dtype
        q, k = (round_to(rotary.rotate(self.rotated(x)), dtype)[sequence] for x in (self.q, self.k))
        keys = np.concatenate([np.swapaxes(start.k_cache[at, slot], 0, 1), k], axis=1)
        values = np.concatenate([np.swapaxes(start.v_cache[at, slot], 0, 1), self.v[sequence]], axis=1)
        return AttentionCase(q[None], keys[None], values[None], dtype, causal=True, scale=start.scale)


def generation(
    rng: np.random.Generator,
    *,
    lens: tuple[int, ...],
    steps: int,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    **options: Any,
) -> Generation:
    """Fresh tokens for sequences that begin with `lens` tokens in the cache; options as `cache.case` takes them."""
    start = cache.case(rng, lens=lens, room=steps, **options)
    q, k, v = (
        round_to(rng.standard_normal((start.batch, heads, steps, start.head_dim)), start.dtype)
        for heads in (start.q_heads, start.kv_heads, start.kv_heads)
    )
    return Generation(start, q, k, v, base, interleaved, rotary_dim)


def judge_generation(judge: Judging, submission: Calling, made: Generation) -> None:
    """Run all steps, feeding each the caches that the one before left, and compare with the prefill.

    Raises:
        what `judge.fail` raises: an output or a cache is wrong. WorkerFailure: a call failed.
    """
    k_cache, v_cache, o, lse = _run(submission, made)
    _judge_cached_keys(judge, made, k_cache)
    _judge_cached_values(judge, made, v_cache)
    for sequence in range(made.start.batch):
        case = made.prefill(sequence)
        label = f"sequence {sequence + 1} of {made.start.batch}, each step a row of one causal prefill"
        attention.judge_forward(judge, case, o[sequence][None], lse[sequence][None], label=label)


def _run(submission: Calling, made: Generation) -> tuple[Array, Array, Array, Array]:
    """(K cache, V cache, O (batch, q_heads, steps, head_dim), LSE (batch, q_heads, steps)) after all steps."""
    start, target = made.start, numpy_dtype(made.start.dtype)
    caches = [
        cache.cache_tensor(values, start.dtype, "contiguous", "cpu").data for values in (start.k_cache, start.v_cache)
    ]
    options: dict[str, Any] = {"base": made.base, "interleaved": made.interleaved}
    if made.rotary_dim is not None:
        options["rotary_dim"] = made.rotary_dim
    for name, value in (("scale", start.scale), ("num_splits", start.num_splits)):
        if value is not None:
            options[name] = value
    outputs, sums = [], []
    for step in range(made.steps):
        now = replace(start, lens=tuple(n + step for n in start.lens))
        tokens = (np.ascontiguousarray(x[:, :, step].astype(target)) for x in (made.q, made.k, made.v))
        tensors = [Tensor(data, device=submission.device) for data in (*tokens, *caches)]
        tensors += cache.index_tensors(now, submission.device, cache.PLAIN)
        mutated = submission.mutating_call(FUNCTION, *tensors, mutable=("k_cache", "v_cache"), module=MODULE, **options)
        o, lse = check_decode(mutated.value, now, submission.device, FUNCTION)
        outputs.append(np.asarray(o.data, np.float64))
        sums.append(np.asarray(lse.data, np.float64))
        caches = [_cache(mutated.arguments.get(name), name) for name in ("k_cache", "v_cache")]
    k_cache, v_cache = (np.asarray(values, np.float64) for values in caches)
    return k_cache, v_cache, np.stack(outputs, axis=2), np.stack(sums, axis=2)


def _cache(value: object, name: str) -> Array:
    if not isinstance(value, Tensor):
        raise ContractViolated(f"{name} came back as a {type(value).__name__}, expected the tensor.")
    return value.data


def _new_rows(made: Generation, values: Array, late: int = 0) -> Array:
    """The new tokens' rows of a cache as (batch, kv_heads, steps, head_dim); without the last `late` ones, the rows
    that lie so many slots behind theirs."""
    start = made.start
    rows = []
    for sequence, length in enumerate(start.lens):
        at, slot = start.place(start.table[sequence], length + np.arange(late, made.steps))
        rows.append(np.swapaxes(values[at, slot], 0, 1))
    return np.stack(rows)


def _judge_cached_keys(judge: Judging, made: Generation, k_cache: Array) -> None:
    """K must be cached rotated, at the position that it has in its sequence."""
    case = made.rotated(made.k)
    got = _new_rows(made, k_cache)
    if (absolute_error(got, rotary.rotate(case)) <= rotary.allowed(case)).all():
        return
    found = rotary.diagnose(case, got)
    late = _new_rows(made, k_cache, late=1)
    if (
        found is None
        and (absolute_error(late, rotary.rotate(case)[:, :, :-1]) <= rotary.allowed(case)[:, :, :-1]).all()
    ):
        text = "The new token lies one slot too late: it belongs to position context_lens[b], counted from 0."
        found = Diagnosis(id="append-one-late", text=text)
    told = f" {found.text}" if found else ""
    judge.fail(
        "The cached K of the new tokens is not K rotated by their position, the context length before them." + told,
        diagnosis=found,
    )


def _judge_cached_values(judge: Judging, made: Generation, v_cache: Array) -> None:
    if not np.array_equal(_new_rows(made, v_cache), made.v):
        judge.fail("The cached V of the new tokens is not the V that was given; V isn't rotated.")

"""A capstone's decode step: rotary inside the kernel, the new token appended, attention over what is then there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from grader.judge.attention import check_pair
from grader.judge.capstone.manifest import CapstoneShape, Rotary
from grader.judge.capstone.masked import Compared, MaskedCase, MaskedView, bounds_of, compare
from grader.judge.compare import absolute_error
from grader.judge.decode.rotary import RopeCase, allowed, rotate
from grader.judge.oracle import forward_view
from grader.judge.precision import Array, numpy_dtype, round_to
from grader.sandbox.failures import ContractViolated
from grader.sandbox.outcomes import Mutated
from grader.sandbox.wire import Tensor

MUTABLE = ("k_cache", "v_cache")
SPARE = 3
"""Slots beyond the longest sequence; they hold NaN."""


class Calling(Protocol):
    """The part of the submission that is used here."""

    @property
    def device(self) -> str: ...
    def mutating_call(self, function: str, /, *args: Any, mutable: tuple[str, ...], **kwargs: Any) -> Mutated: ...


@dataclass(frozen=True, eq=False)
class Step:
    """One decode step; arrays hold values of `dtype` in float64.

    Attributes:
        q: (batch, q_heads, 1, d). k_new, v_new: (batch, kv_heads, 1, d). Unrotated.
        k_cache, v_cache: (batch, kv_heads, capacity, d), NaN in slots that hold no token.
        lens: (batch,), tokens that are there before the step.
    """

    q: Array
    k_new: Array
    v_new: Array
    k_cache: Array
    v_cache: Array
    lens: Array
    dtype: str
    rotary: Rotary

    def arguments(self, device: str) -> tuple[Tensor, ...]:
        target = numpy_dtype(self.dtype)
        tensors = [
            Tensor(np.ascontiguousarray(values.astype(target)), device=device)
            for values in (self.q, self.k_new, self.v_new, self.k_cache, self.v_cache)
        ]
        return (*tensors, Tensor(self.lens.astype(np.int32), device=device))

    def options(self) -> dict[str, Any]:
        return {
            "rotary_base": self.rotary.base,
            "rotary_dim": self.rotary.dim,
            "interleaved": self.rotary.interleaved,
        }

    def rope(self, values: Array) -> RopeCase:
        positions = self.lens[:, None].astype(np.int64)
        return RopeCase(
            values, positions, self.rotary.base, self.rotary.interleaved, self.rotary.dim, self.dtype
        )  # fmt: skip


def draw(shape: CapstoneShape, rotary: Rotary, rng: np.random.Generator) -> Step:
    """Fresh caches: sequences as long as seq_k - 1 and shorter, one of them empty where there are three or more."""
    batch, d, most = shape.batch, shape.head_dim, shape.seq_k - 1
    lens = rng.integers(0, most + 1, size=batch)
    lens[0] = most
    if batch > 2:
        lens[batch - 1] = 0
    cache = (batch, shape.kv_heads, most + 1 + SPARE, d)
    slots = np.arange(cache[2])
    there = (slots < lens[:, None])[:, None, :, None]
    k_cache, v_cache = (np.where(there, round_to(rng.standard_normal(cache), shape.dtype), np.nan) for _ in "kv")
    q = round_to(rng.standard_normal((batch, shape.q_heads, 1, d)), shape.dtype)
    k_new, v_new = (round_to(rng.standard_normal((batch, shape.kv_heads, 1, d)), shape.dtype) for _ in "kv")
    return Step(q, k_new, v_new, k_cache, v_cache, lens, shape.dtype, rotary)


def run(calling: Calling, function: str, module: str, step: Step) -> tuple[Array, Array, Array, Array]:
    """O (batch, q_heads, 1, d), LSE (batch, q_heads, 1), and the caches as the call leaves them, float64.

    Raises:
        ContractViolated: something else came back. WorkerFailure: the call failed.
    """
    done = calling.mutating_call(
        function, *step.arguments(calling.device), module=module, mutable=MUTABLE, **step.options()
    )
    o, lse = check_pair(done.value, step.dtype, step.q.shape, calling.device, function)
    caches = []
    for name in MUTABLE:
        after = done.arguments.get(name)
        if not isinstance(after, Tensor):
            raise ContractViolated(f"{function}: its parameter {name} must be called so.")
        caches.append(np.asarray(after.data, np.float64))
    return np.asarray(o.data, np.float64), np.asarray(lse.data, np.float64), caches[0], caches[1]


def judge(step: Step, answer: tuple[Array, Array, Array, Array]) -> Compared:
    """O and LSE against float64, and the caches: the new token in its slot, nothing else touched."""
    o, lse, k_cache, v_cache = answer
    turned_q, turned_k = rotate(step.rope(step.q)), rotate(step.rope(step.k_new))
    stored_k = round_to(turned_k, step.dtype)
    findings = _cache_findings(step, (k_cache, v_cache), turned_k)
    worst: Compared | None = None
    for sequence, length in enumerate(step.lens):
        n = int(length)
        k = np.concatenate([step.k_cache[sequence, :, :n], stored_k[sequence]], axis=1)[None]
        v = np.concatenate([step.v_cache[sequence, :, :n], step.v_new[sequence]], axis=1)[None]
        exact = MaskedCase(turned_q[sequence][None], k, v, step.dtype)
        view = MaskedView.whole(exact)
        assert isinstance(view, MaskedView)
        bounds = bounds_of(view)
        # A kernel may keep the rotated q in float32, or round it to the dtype before the product.
        rounded = MaskedCase(round_to(exact.q, step.dtype), k, v, step.dtype)
        other, _ = forward_view(MaskedView.whole(rounded))
        slack = 2.0 * float(absolute_error(other, bounds.o).max()) + 1e-12
        got = compare(bounds, o[sequence], lse[sequence], extra=slack)
        if worst is None or got.ratio > worst.ratio:
            worst = got
    assert worst is not None
    return Compared(worst.errors, worst.allowed, (*findings, *worst.findings))


def _cache_findings(step: Step, after: tuple[Array, Array], turned_k: Array) -> tuple[str, ...]:
    found = []
    allowed_k = allowed(step.rope(step.k_new))
    before = (step.k_cache, step.v_cache)
    for name, was, now, new in zip(MUTABLE, before, after, (turned_k, step.v_new), strict=True):
        slots = np.arange(was.shape[2])
        own = (slots == step.lens[:, None])[:, None, :, None]
        changed = ~((was == now) | (np.isnan(was) & np.isnan(now))) & ~own
        if changed.any():
            found.append(f"{name}: slots other than the new token's were changed")
        written = np.take_along_axis(now, step.lens[:, None, None, None], axis=2)
        bound = allowed_k if name == "k_cache" else 0.0
        if not (absolute_error(written, new) <= bound).all():
            found.append(f"{name}: the new token isn't in slot cache_seqlens[b]")
    return tuple(found)

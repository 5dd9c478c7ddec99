"""The benchmark again, on a GPU: `after` (and `before`) timed by the course's protocol at the capstone's own shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from grader.judge.capstone.benchmark import ITEM_BYTES, flops, least_bytes
from grader.judge.capstone.decode_step import MUTABLE, Step
from grader.judge.capstone.manifest import CapstoneShape, ChangedPath, Rotary
from grader.judge.capstone.masks import Mask
from grader.judge.decode.rotary import rotate
from grader.judge.oracle import softmax_attention
from grader.judge.precision import round_to
from grader.judge.speed.decode import some_heads
from grader.judge.speed.model import Array, Drawn, InputSpec, Picks, Workload
from grader.judge.speed.oracles import AttentionRows, AttentionShape, off_by
from grader.sandbox.wire import Tensor


@dataclass(frozen=True)
class MaskedShape(AttentionShape):
    """A timed attention under a capstone's mask."""

    mask: Mask = field(default_factory=Mask)

    def visible(self, rows: Array) -> Array:
        return self.mask.visible(rows, self.q_len, self.k_len)


@dataclass(frozen=True, eq=False)
class StepRows:
    """Some heads of one sequence of a decode step's O, output 0; every sequence has `tokens` before the step."""

    shape: CapstoneShape
    rotary: Rotary
    tokens: int

    def choose(self, rng: np.random.Generator) -> Picks:
        return {0: some_heads(rng, self.shape.batch, self.shape.q_heads, self.shape.kv_heads)}

    def problem(self, drawn: Drawn, picks: Picks, taken: Mapping[int, Array]) -> str:
        shape, batch = self.shape, int(picks[0][0, 0])
        q, k_new, v_new = (drawn.take(name, batch)[None] for name in ("q", "k_new", "v_new"))
        lens = np.array([self.tokens])
        step = Step(q, k_new, v_new, k_new, v_new, lens, shape.dtype, self.rotary)
        turned_q, turned_k = rotate(step.rope(q))[0, :, 0], round_to(rotate(step.rope(k_new)), shape.dtype)[0]
        heads = picks[0][:, 1]
        kv = int(heads[0]) // (shape.q_heads // shape.kv_heads)
        k = np.concatenate([drawn.take("k_cache", batch, kv)[: self.tokens], turned_k[kv]])
        v = np.concatenate([drawn.take("v_cache", batch, kv)[: self.tokens], v_new[0, kv]])
        scores = turned_q[heads] @ k.T * shape.head_dim**-0.5
        wanted, _ = softmax_attention(scores, np.ones_like(scores, dtype=bool), v)
        return off_by("O", taken[0], wanted[:, None], shape.dtype)


def workload(path: ChangedPath, shape: CapstoneShape, function: str, device: str) -> Workload:
    """One of the path's functions at a shape."""
    q = (shape.batch, shape.q_heads, shape.seq_q, shape.head_dim)
    kv = (shape.batch, shape.kv_heads, shape.seq_k, shape.head_dim)
    out = float(np.prod(q)) * ITEM_BYTES[shape.dtype] + 4.0 * float(np.prod(q[:3]))
    if path.kind == "decode":
        assert path.rotary is not None  # the manifest says so
        new = (shape.batch, shape.kv_heads, 1, shape.head_dim)
        tokens = shape.seq_k - 1
        lens = np.full(shape.batch, tokens, dtype=np.int32)
        sizes = {"q": q, "k_new": new, "v_new": new, "k_cache": kv, "v_cache": kv}
        inputs = tuple(InputSpec(name, size, shape.dtype) for name, size in sizes.items())
        rotary = path.rotary
        return Workload(
            label=shape.name,
            function=function,
            inputs=(*inputs, InputSpec("cache_seqlens", lens.shape, "int32", kind="fixed", value=lens)),
            flops=float(flops(shape)),
            bytes=float(least_bytes(shape)),
            output_bytes=out,
            dtype=shape.dtype,
            oracle=StepRows(shape, rotary, tokens),
            mutable=MUTABLE,
            module=path.module,
            kwargs={"rotary_base": rotary.base, "rotary_dim": rotary.dim, "interleaved": rotary.interleaved},
        )
    timed = MaskedShape(*q[:2], shape.kv_heads, *q[2:3], shape.seq_k, shape.head_dim, shape.dtype, mask=shape.visible)
    options = {
        name: Tensor(np.ascontiguousarray(value), device=device) if isinstance(value, np.ndarray) else value
        for name, value in shape.visible.options().items()
    }
    return Workload(
        label=shape.name,
        function=function,
        inputs=tuple(InputSpec(name, size, shape.dtype) for name, size in (("q", q), ("k", kv), ("v", kv))),
        flops=float(flops(shape)),
        bytes=float(least_bytes(shape)),
        output_bytes=out,
        dtype=shape.dtype,
        oracle=AttentionRows(timed, with_lse=False),
        module=path.module,
        kwargs=options,
        graph=False,
    )


def off(told_ms: float, seen_ms: float) -> float:
    """How far a time lies from the one that was told, as a part of it."""
    return abs(seen_ms / told_ms - 1.0)

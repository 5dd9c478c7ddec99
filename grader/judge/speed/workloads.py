"""Workloads of attention, with their FLOPs by exact visible pairs and their least traffic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from grader.judge.speed.model import InputSpec, Mode, Workload
from grader.judge.speed.oracles import AttentionRows, AttentionShape, GradientRows
from grader.kernels.closed_forms import Direction, attention_flops
from grader.profiles import HardwareProfile
from grader.worker.wire import ITEM_SIZES

LEAST_S = 0.3e-3
"""At 30 to 50 us a call the ratio's CV was 30 % on an H200, and the view from outside was off by up to 3x."""
REACHED: dict[Mode, float] = {"call": 0.7, "backward": 0.55}
"""Part of a card's peak that the fastest attention kernels reach: 0.73 on an H200, published 0.75 on an H100. Backwards
at the lengths that are graded: 0.49 to 0.54 at 2048 on an H200, 0.61 at 4096 (`benchmarks/results/lab07_h200`)."""
CALL_PART = 1 / 32
"""Part of a card's memory that one call's tensors may take; a window has several, of two contestants."""

_DIRECTIONS: dict[Mode, Direction] = {"call": "forward", "backward": "backward"}


def attention(shape: AttentionShape, *, function: str, mode: Mode = "call", module: str | None = None) -> Workload:
    """`function(q, k, v, causal=…)` at a shape, or its gradients.

    Args:
        function: returns O, or (O, LSE); in mode ``backward`` it's differentiable.

    Raises:
        ValueError: the shape has a window, which a baseline may not know.
    """
    if shape.window is not None:
        raise ValueError("a timed attention has no window")
    q = (shape.batch, shape.q_heads, shape.q_len, shape.head_dim)
    kv = (shape.batch, shape.kv_heads, shape.k_len, shape.head_dim)
    backward = mode != "call"
    inputs = tuple(
        InputSpec(name, size, shape.dtype, requires_grad=backward) for name, size in (("q", q), ("k", kv), ("v", kv))
    )
    if backward:
        inputs += (InputSpec("do", q, shape.dtype, cotangent=True),)
    item = ITEM_SIZES[shape.dtype]
    q_bytes, kv_bytes = float(np.prod(q)) * item, float(np.prod(kv)) * item
    lse_bytes = 4.0 * shape.batch * shape.q_heads * shape.q_len
    # Forward: Q, K, V in, O and LSE out. Backward: those five and dO in, dQ, dK, dV out.
    least = 2 * q_bytes + 2 * kv_bytes + lse_bytes
    outputs = q_bytes + lse_bytes
    if backward:
        least = 4 * q_bytes + 4 * kv_bytes + lse_bytes
        outputs = 2 * q_bytes + 2 * kv_bytes + lse_bytes
    kwargs: dict[str, Any] = {"causal": shape.causal}
    if shape.scale is not None:
        kwargs["scale"] = shape.scale
    return Workload(
        label=_label(shape),
        function=function,
        inputs=inputs,
        flops=attention_flops(
            shape.batch,
            shape.q_heads,
            shape.q_len,
            shape.k_len,
            shape.head_dim,
            causal=shape.causal,
            direction=_DIRECTIONS[mode],
        ),
        bytes=least,
        output_bytes=outputs,
        dtype=shape.dtype,
        oracle=GradientRows(shape) if backward else AttentionRows(shape, with_lse=False),
        module=module,
        kwargs=kwargs,
        mode=mode,
    )


def long_enough(shape: AttentionShape, profile: HardwareProfile, mode: Mode = "call") -> AttentionShape:
    """The shape with its batch doubled until no kernel is through in less than `LEAST_S` on that card.

    Below that, launches dominate what is measured. The batch grows no further than a call's tensors may.

    Raises:
        UsageError: the card has no unit for the dtype.
    """
    while True:
        workload = attention(shape, function="", mode=mode)
        fastest_s = workload.flops / (REACHED[mode] * profile.peak(shape.dtype) * 1e12)
        if fastest_s >= LEAST_S or 2 * workload.bytes > CALL_PART * profile.memory_gib * 2**30:
            return shape
        shape = replace(shape, batch=2 * shape.batch)


def _label(shape: AttentionShape) -> str:
    heads = str(shape.q_heads) if shape.group == 1 else f"{shape.q_heads}/{shape.kv_heads}"
    length = str(shape.q_len) if shape.q_len == shape.k_len else f"{shape.q_len}x{shape.k_len}"
    causal = " causal" if shape.causal else ""
    return f"({shape.batch}, {heads}, {length}, {shape.head_dim}) {shape.dtype}{causal}"

"""Workloads of attention, with their FLOPs by exact visible pairs and their least traffic."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.judge.speed.model import InputSpec, Mode, Workload
from grader.judge.speed.oracles import AttentionRows, AttentionShape, GradientRows
from grader.kernels.closed_forms import Direction, attention_flops
from grader.worker.wire import ITEM_SIZES

_DIRECTIONS: dict[Mode, Direction] = {"call": "forward", "backward": "backward", "forward_backward": "both"}


def attention(shape: AttentionShape, *, function: str, mode: Mode = "call", module: str | None = None) -> Workload:
    """`function(q, k, v, causal=…)` at a shape, or its gradients.

    Args:
        function: returns O, or (O, LSE); in the modes with a backward pass it's differentiable.

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


def _label(shape: AttentionShape) -> str:
    heads = str(shape.q_heads) if shape.group == 1 else f"{shape.q_heads}/{shape.kv_heads}"
    length = str(shape.q_len) if shape.q_len == shape.k_len else f"{shape.q_len}x{shape.k_len}"
    causal = " causal" if shape.causal else ""
    return f"({shape.batch}, {heads}, {length}, {shape.head_dim}) {shape.dtype}{causal}"

"""Times a call of the package beside it as options E are timed: what a call costs the host, the kernel taken out.

The judge has a worker with the pinned tree and one with the patched, and asks both in turns. The clock is bound before
the package is imported.
"""

from __future__ import annotations

from time import thread_time
from typing import Any

import package  # type: ignore[import-not-found]
import torch

Tensor = Any
WARM_S = 0.05
_clock = thread_time
_call: Any = None


def laid_out(batch: int, seqlen: int, heads: int, head_dim: int, dtype: str, layout: str) -> Tensor:
    """(batch, seqlen, heads, head_dim); `grader.judge.capstone.manifest` says how it lies in memory."""
    kind = getattr(torch, dtype)
    if layout == "contiguous":
        return torch.randn(batch, seqlen, heads, head_dim).to(kind)
    if layout == "pairs":
        return torch.randn(batch, seqlen, heads, head_dim, 2).to(kind)[..., 0]
    wide = 3 if layout == "packed" else 1
    channels = torch.randn(batch, wide * heads * head_dim, seqlen).to(kind)
    return channels[:, : heads * head_dim].unflatten(1, (heads, head_dim)).permute(0, 3, 1, 2)


def open_call(shape: dict[str, Any], step: str, options: dict[str, Any]) -> None:
    """Make the call that `time_call` times: `flash_attn_func`, and its backward where `step` is ``training``."""
    global _call
    flash_attn = package.load()
    import flash_attn_2_cuda as extension  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    extension.COMPUTES = False
    sizes = (
        (shape["seq_q"], shape["q_heads"]),
        (shape["seq_k"], shape["kv_heads"]),
        (shape["seq_k"], shape["kv_heads"]),
    )
    training = step == "training"
    q, k, v = (
        laid_out(shape["batch"], *size, shape["head_dim"], shape["dtype"], shape["layout"]).requires_grad_(training)
        for size in sizes
    )
    arguments = {name: tuple(value) if type(value) is list else value for name, value in options.items()}
    ones = torch.ones(q.shape, dtype=q.dtype)

    def forward() -> Any:
        return flash_attn.flash_attn_func(q, k, v, **arguments)

    _call = (lambda: torch.autograd.grad(forward(), (q, k, v), ones)) if training else forward
    time_call(WARM_S)


def time_call(seconds: float) -> float:
    """Milliseconds a call, in this thread's own processor time, over at least `seconds` of it."""
    count, start = 0, _clock()
    while (passed := _clock() - start) < seconds or count == 0:
        _call()
        count += 1
    return 1000.0 * passed / count

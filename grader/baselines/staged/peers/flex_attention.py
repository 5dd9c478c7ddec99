"""PyTorch's FlexAttention: compiled to a Triton kernel on a GPU, its eager form (scores in memory) on a CPU."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .sdpa import Tensor, contiguous


@functools.cache
def _compiled() -> Any:
    import torch._dynamo.config
    import torch._inductor.config

    # A worker may start few processes, and a kernel or two need no pool of compilers.
    torch._inductor.config.compile_threads = 1
    # Each shape is compiled anew; past the limit it would run uncompiled, which is another program.
    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 1000
    return torch.compile(flex_attention, dynamic=False)


@functools.cache
def _causal_blocks(rows: int, keys: int, device: str) -> Any:
    """Which blocks a causal mask leaves, aligned bottom-right: made once a shape, as its users do."""

    def seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return row + (keys - rows) >= key

    return create_block_mask(seen, None, None, rows, keys, device=device)


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    blocks = _causal_blocks(q.shape[2], k.shape[2], str(q.device)) if causal else None
    run = _compiled() if q.device.type == "cuda" else flex_attention
    with warnings.catch_warnings():
        # It advises to compile, which on a CPU would need a C++ compiler in the sandbox.
        warnings.simplefilter("ignore")
        return run(q, k, v, block_mask=blocks, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    k, v = (contiguous(cache, q.shape[0]).transpose(1, 2) for cache in (k_cache, v_cache))
    return forward(q[:, :, None], k, v, scale=scale)[:, :, 0]

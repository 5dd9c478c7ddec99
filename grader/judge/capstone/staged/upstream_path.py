"""Calls the patched `flash_attn_func` as the harness calls any attention: (batch, heads, seqlen, head_dim) tensors."""

from __future__ import annotations

from typing import Any

import package  # type: ignore[import-not-found]

Tensor = Any


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """(o, lse) of `flash_attn_func`; o in q's dtype and layout, lse float32 (batch, heads, seqlen_q)."""
    flash_attn = package.load()
    out, lse, _ = flash_attn.flash_attn_func(
        *(tensor.transpose(1, 2).contiguous() for tensor in (q, k, v)),
        causal=causal,
        window_size=tuple(window) if window is not None else (-1, -1),
        return_attn_probs=True,
    )
    return out.transpose(1, 2).contiguous(), lse

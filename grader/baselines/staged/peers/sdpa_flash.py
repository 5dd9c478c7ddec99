"""PyTorch's SDPA, its FlashAttention-2 backend."""

from __future__ import annotations

from torch.nn.attention import SDPBackend

from .sdpa import Tensor, attention, one_row


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    return attention(SDPBackend.FLASH_ATTENTION, q, k, v, causal, scale)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    return one_row(SDPBackend.FLASH_ATTENTION, q, k_cache, v_cache, scale)

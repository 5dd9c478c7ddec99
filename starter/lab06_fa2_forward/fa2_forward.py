"""FlashAttention-2 forward in Triton (Dao 2023, arXiv 2307.08691, Algorithm 1).

    O = softmax(scale * Q K^T + mask) V          LSE = log(sum(exp(scale * Q K^T + mask)))

Tensors are (batch, heads, seqlen, head_dim) with any strides; Q has `q_heads`, K and V have `kv_heads`, and query head
h reads KV head h // (q_heads / kv_heads). float16, bfloat16 and float32; head_dim 16 to 128. Scores, statistics and
the accumulator are float32, P is rounded to the inputs' dtype for the second product, so the expected error is that
rounding: about 2^-11 (float16), 2^-8 (bfloat16), 2^-22 (float32) of the largest |V|.

Names: `m_i` running row maximum, `l_i` running denominator, `acc` output before the division, `alpha` the factor
exp(old maximum - new maximum). Inside the kernel scores are in base 2 (times log2 e), outside LSE is a natural log.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INT32_LIMIT = 2**31


@triton.jit
def _forward_kernel():
    """TODO: one program owns a tile of query rows of one (batch, query head) and walks over K/V."""


class Tiles(NamedTuple):
    """Launch configuration: BLOCK_M query rows against BLOCK_N keys, by `warps` warps, `stages` K/V tiles in flight."""

    block_m: int
    block_n: int
    warps: int
    stages: int


def choose_tiles(block_d: int, dtype: torch.dtype, capability: tuple[int, int]) -> Tiles:
    """Tiles for a padded head dimension on a device of this compute capability.

    Shared memory holds Q and `stages` tiles each of K and V. Cards of capability 8.6 and 8.9 give a block 99 KB,
    8.0 gives 163 KB, 9.0 gives 227 KB; float32 runs on FMA units, where a big accumulator spills.
    """
    return Tiles(64, 32, 4, 2)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"flash_attention_forward: {message}")


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError naming the requirement and the shapes that break it."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    _require(q.dim() == k.dim() == v.dim() == 4, f"expected (batch, heads, seqlen, head_dim), got {shapes}")
    _require(k.shape == v.shape and q.shape[0] == k.shape[0], f"batch and K/V shapes must agree, got {shapes}")
    _require(q.shape[3] == k.shape[3] and 16 <= q.shape[3] <= 128, f"head_dim must agree and be 16…128, got {shapes}")
    _require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, f"q heads must be a multiple of kv heads, got {shapes}")
    _require(q.dtype == k.dtype == v.dtype, f"one dtype expected, got {q.dtype}, {k.dtype}, {v.dtype}")
    _require(q.dtype in (torch.float16, torch.bfloat16, torch.float32), f"dtype {q.dtype} is not supported")
    _require(q.device == k.device == v.device, f"one device expected, got {q.device}, {k.device}, {v.device}")


def _scale_and_window(
    head_dim: int, causal: bool, scale: float | None, window: tuple[int, int] | None
) -> tuple[float, int, int]:
    """(scale, left, right) with defaults filled in; -1 is unbounded. A causal mask is a window that ends at 0."""
    left, right = window if window is not None else (-1, -1)
    return 1.0 / math.sqrt(head_dim) if scale is None else float(scale), left, 0 if causal else right


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def flash_attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query row over the keys that it may see.

    Args:
        q: (batch, q_heads, seq_q, head_dim), any strides.
        k, v: (batch, kv_heads, seq_k, head_dim), any strides.
        causal: row i sees keys j <= i + seq_k - seq_q (bottom-right alignment).
        scale: factor on the scores; None means 1/sqrt(head_dim).
        window: (left, right); row i sees i + seq_k - seq_q - left <= j <= i + seq_k - seq_q + right; -1 is unbounded.

    Returns:
        o: like q in shape and dtype; 0 in rows that see no key.
        lse: (batch, q_heads, seq_q) float32, natural log; -inf in rows that see no key.

    Raises:
        ValueError: shapes, dtypes or devices that don't go together.
    """
    _check_inputs(q, k, v)
    # TODO: allocate o and lse, choose the tiles, launch one program a query tile.
    raise NotImplementedError("TODO: allocate o and lse, and launch _forward_kernel")

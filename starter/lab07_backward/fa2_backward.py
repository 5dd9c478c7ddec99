"""FlashAttention-2 backward in Triton (Dao 2023, arXiv 2307.08691, Algorithm 2), behind a `torch.autograd.Function`.

    P = exp(scale Q K^T - LSE)      Delta = rowsum(dO * O)      dS = P * (dO V^T - Delta)
    dV = P^T dO                     dQ = scale dS K             dK = scale dS^T Q

Tensors are (batch, heads, seqlen, head_dim) with any strides; Q, O and dO have `q_heads`, K and V have `kv_heads`, and
query head h reads KV head h // (q_heads / kv_heads), so dK and dV are sums over the heads of a group. float16, bfloat16
and float32; head_dim 16 to 128. Scores, Delta and all sums are float32; P and dS are rounded to the inputs' dtype for
their products, so the expected error is that rounding: about 2^-10 (float16), 2^-7 (bfloat16), 2^-21 (float32) of the
largest gradient.

Names: `m_i` running row maximum, `l_i` running denominator, `acc` output before the division, `alpha` the factor
exp(old maximum - new maximum), `delta` the row sum of dO * O. Inside the kernels scores are in base 2 (times log2 e);
outside the LSE is a natural log.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INT32_LIMIT = 2**31


@triton.jit
def _forward_kernel():
    """TODO: one program owns a tile of query rows: O and the LSE (lab 06, without the window)."""


@triton.jit
def _delta_kernel():
    """TODO: one program owns a tile of query rows: Delta = rowsum(dO * O), in float32."""


@triton.jit
def _dk_dv_kernel():
    """TODO: one program owns a tile of keys of one KV head and walks over the query tiles of its group."""


@triton.jit
def _dq_kernel():
    """TODO: one program owns a tile of query rows and walks over the key tiles that it sees."""


class Tiles(NamedTuple):
    """Launch configuration: a tile of `rows` owned by a program, `step` rows a turn of its loop."""

    rows: int
    step: int
    warps: int
    stages: int


def choose_tiles(block_d: int, dtype: torch.dtype, capability: tuple[int, int]) -> tuple[Tiles, Tiles, Tiles]:
    """Tiles of the forward, the dK/dV and the dQ kernel for a padded head dimension on a compute capability.

    The dK/dV kernel holds K, V and two accumulators; the dQ kernel holds Q, dO and one. Cards of capability 8.6 and 8.9
    give a block 99 KB of shared memory, 8.0 gives 163 KB, 9.0 gives 227 KB; float32 takes twice as much of everything.
    """
    return Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2), Tiles(64, 32, 4, 2)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(f"flash_attention: {message}")


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise ValueError naming the requirement and the shapes that break it."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    _require(q.dim() == k.dim() == v.dim() == 4, f"expected (batch, heads, seqlen, head_dim), got {shapes}")
    _require(k.shape == v.shape and q.shape[0] == k.shape[0], f"batch and K/V shapes must agree, got {shapes}")
    _require(q.shape[3] == k.shape[3] and 16 <= q.shape[3] <= 128, f"head_dim must agree and be 16…128, got {shapes}")
    _require(k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0, f"q heads must be a multiple of kv heads, got {shapes}")
    _require(q.dtype == k.dtype == v.dtype, f"one dtype expected, got {q.dtype}, {k.dtype}, {v.dtype}")
    _require(q.dtype in (torch.float16, torch.bfloat16, torch.float32), f"dtype {q.dtype} is not supported")


def _on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _tiles_for(q: torch.Tensor) -> tuple[Tiles, Tiles, Tiles]:
    capability = torch.cuda.get_device_capability(q.device) if q.device.type == "cuda" else (8, 0)
    return choose_tiles(max(16, triton.next_power_of_2(q.shape[3])), q.dtype, capability)


def _constants(head_dim: int, causal: bool, dtype: torch.dtype, *tensors: torch.Tensor) -> dict[str, Any]:
    """Compile-time arguments that the kernels share.

    Offsets inside a tile of at most 128 rows fit 32 bits unless a stride is huge; a tile's own start is always 64-bit.
    """
    reach = max(128 * max(tensor.stride(2), tensor.stride(3)) for tensor in tensors)
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "CAUSAL": causal,
        "OFFSET_DTYPE": tl.int64 if 2 * reach >= INT32_LIMIT else tl.int32,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }


def _scale_or_default(scale: float | None, head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim) if scale is None else float(scale)


def attention_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query row over the keys that it may see, and what the backward needs of it.

    Args:
        q: (batch, q_heads, seq_q, head_dim), any strides.
        k, v: (batch, kv_heads, seq_k, head_dim), any strides.
        causal: row i sees keys j <= i + seq_k - seq_q (bottom-right alignment).
        scale: factor on the scores; None means 1/sqrt(head_dim).

    Returns:
        o: like q in shape and dtype; 0 in rows that see no key.
        lse: (batch, q_heads, seq_q) float32, natural log; -inf in rows that see no key.

    Raises:
        ValueError: shapes or dtypes that don't go together.
    """
    _check_inputs(q, k, v)
    # TODO: allocate o and lse, launch one program a query tile.
    raise NotImplementedError("TODO: launch _forward_kernel")


def attention_backward(
    grad_o: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of sum(grad_o * O) by q, k and v.

    Args:
        grad_o: like q in shape and dtype, any strides (0 too: the gradient of a sum is one expanded number).
        q, k, v, causal, scale: as in the forward.
        o, lse: what the forward returned.

    Returns:
        dq, dk, dv: like q, k and v in shape and dtype. dk and dv are summed over the query heads of a group. Rows that
        see no key have dq = 0 and add nothing to dk and dv.

    Raises:
        ValueError: shapes or dtypes that don't go together.
    """
    _check_inputs(q, k, v)
    # TODO: Delta first, then one launch for dK and dV and one for dQ.
    raise NotImplementedError("TODO: launch _delta_kernel, _dk_dv_kernel and _dq_kernel")


class FlashAttention(torch.autograd.Function):
    """Connects the two passes to autograd: saves q, k, v, O and the LSE, never P."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
    ) -> torch.Tensor:
        raise NotImplementedError("TODO: run the forward, save what the backward needs")

    @staticmethod
    def backward(ctx: Any, grad_o: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        raise NotImplementedError("TODO: one gradient for each argument of forward")


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Differentiable attention; arguments as in `attention_forward`. Returns O."""
    return FlashAttention.apply(q, k, v, causal, scale)

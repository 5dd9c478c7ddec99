"""What a harness works with: kernels to test, a reference to compare with, shapes. Provided.

A kernel is any object with two methods::

    kernel.forward(q, k, v, causal=False, scale=None) -> (o, lse)
    kernel.backward(grad_o, q, k, v, o, lse, causal=False, scale=None) -> (dq, dk, dv)

with tensors as in `fa2_backward.py`. A reference has the same methods and computes at the precision of its inputs: in
float64 it is exact for our purposes; in a lower dtype it is an honest kernel, which keeps sums in float32 and rounds
what a kernel rounds.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
Shape = dict[str, Any]
"""batch, q_heads, kv_heads, seq_q, seq_k, head_dim: int; dtype: str; causal: bool; scale: float or None."""


class Kernel(Protocol):
    """An attention forward and backward; see the module's text."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def backward(
        self,
        grad_o: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...


def _shape(q: tuple[int, int], k: tuple[int, int], head_dim: int, dtype: str, **options: Any) -> Shape:
    """`q` and `k` are (heads, length); one batch entry, a causal mask and the default scale unless told otherwise."""
    sizes = {"batch": 1, "q_heads": q[0], "kv_heads": k[0], "seq_q": q[1], "seq_k": k[1], "head_dim": head_dim}
    return {**sizes, "dtype": dtype, "causal": True, "scale": None, **options}


STANDARD_SHAPES: tuple[Shape, ...] = (
    _shape((1, 64), (1, 64), 64, "float16", causal=False),
    _shape((2, 37), (1, 53), 64, "bfloat16", batch=2),
    _shape((3, 70), (1, 45), 32, "float16"),
    _shape((1, 50), (1, 90), 80, "float32", causal=False, scale=0.3),
    _shape((2, 48), (1, 80), 32, "float32"),
    _shape((1, 1), (1, 77), 128, "bfloat16"),
)


class OwnKernels:
    """Your kernels of fa2_backward.py. On a GPU tensors are moved there with their strides, and what comes out back."""

    def __init__(self) -> None:
        import fa2_backward

        self._forward = fa2_backward.attention_forward
        self._backward = fa2_backward.attention_backward
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self._device = torch.device("cuda" if torch.cuda.is_available() and not interpreted else "cpu")

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
    ) -> tuple[torch.Tensor, ...]:
        return self._run(self._forward, (q, k, v), causal, scale)

    def backward(
        self,
        grad_o: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, ...]:
        return self._run(self._backward, (grad_o, q, k, v, o, lse), causal, scale)

    def _run(self, function: Any, tensors: tuple[torch.Tensor, ...], causal: bool, scale: float | None) -> Any:
        if self._device.type == "cpu":
            return function(*tensors, causal=causal, scale=scale)
        moved = [self._moved(tensor) for tensor in tensors]
        results = function(*moved, causal=causal, scale=scale)
        for tensor, copy in zip(tensors, moved, strict=True):
            if 0 not in tensor.stride():
                tensor.copy_(copy)  # what the kernel changed in place shows
        return tuple(result.cpu() for result in results)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device with the same strides and offset."""
        storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        return storage.to(self._device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Reference:
    """Plain attention in torch, at the precision of its inputs (see the module's text)."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, scale: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores, visible = self._scores(q, k, causal, scale)
        lse = torch.logsumexp(scores, -1)
        p = torch.where(visible, torch.exp(scores - lse.clamp(min=-3e38)[..., None]), 0.0)
        o = self._rounded(p, q) @ self._grouped(v, q)
        return o.to(q.dtype), lse

    def backward(
        self,
        grad_o: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
        causal: bool = False,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        factor = q.shape[3] ** -0.5 if scale is None else scale
        scores, visible = self._scores(q, k, causal, scale)
        p = torch.where(visible, torch.exp(scores - lse.clamp(min=-3e38)[..., None]), 0.0)
        work = self._work(q)
        upstream = grad_o.to(work)
        delta = (upstream * o.to(work)).sum(-1, keepdim=True)
        ds = self._rounded(p * (upstream @ self._grouped(v, q).mT - delta), q)
        dq = ds @ self._grouped(k, q) * factor
        dk = self._summed(ds.mT @ q.to(work) * factor, k)
        dv = self._summed(self._rounded(p, q).mT @ upstream, v)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)

    @staticmethod
    def _work(q: torch.Tensor) -> torch.dtype:
        """Sums are float32 for a lower dtype, float64 for float64."""
        return torch.float64 if q.dtype == torch.float64 else torch.float32

    def _scores(
        self, q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(scaled scores with -inf where hidden, which are visible), (batch, q_heads, seq_q, seq_k)."""
        factor = q.shape[3] ** -0.5 if scale is None else scale
        scores = q.to(self._work(q)) @ self._grouped(k, q).mT * factor
        rows = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        keys = torch.arange(k.shape[2], device=q.device)[None, :]
        visible = (keys <= rows) if causal else torch.ones_like(keys <= rows)
        return scores.masked_fill(~visible, -torch.inf), visible

    def _grouped(self, tensor: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """K or V repeated for each query head of its group."""
        return tensor.to(self._work(q)).repeat_interleave(q.shape[1] // tensor.shape[1], dim=1)

    @staticmethod
    def _summed(gradient: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """A gradient a query head, summed over each group of heads."""
        return gradient.unflatten(1, (tensor.shape[1], -1)).sum(2)

    @staticmethod
    def _rounded(values: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """What a kernel rounds to the working dtype before a product."""
        return values.to(q.dtype).to(values.dtype)

"""Between your tensors and flash-attn's extension: what to call, what arrives there, and which kernel that selects.

Nothing here needs torch or flash-attn. A *call* is plain data, the format of `boundary.py`: ``function``, ``tensors``
(name → ``shape``, ``strides``, ``dtype``) and ``arguments`` (by name; what isn't there has flash-attn's default).
Strides count elements. flash-attn's layout is (batch, seqlen, heads, head_dim), with (total, heads, head_dim) for
varying lengths; the course's is (batch, heads, seqlen, head_dim).
"""

from __future__ import annotations

from typing import Any

Described = dict[str, Any]
"""A tensor: ``shape``, ``strides`` and ``dtype``, and at the boundary also ``copied``."""

TEMPLATE_HEAD_DIMS = (32, 64, 96, 128, 192, 256)
"""Head dimensions that flash-attn instantiates kernels for."""


def contiguous_strides(shape: list[int]) -> list[int]:
    """Strides of a contiguous tensor of that shape."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]


def predict_boundary(call: dict) -> dict[str, Any]:
    """What `boundary.record(call)` would tell, without running anything.

    Args:
        call: of `flash_attn_func`, `flash_attn_kvpacked_func`, `flash_attn_qkvpacked_func`, `flash_attn_varlen_func`
            or their packed varieties.

    Returns:
        ``function``: the extension's, ``fwd`` or ``varlen_fwd``.
        ``q``, ``k``, ``v``: ``shape``, ``strides``, ``dtype`` as they arrive, and ``copied``: whether their memory is
        no longer the caller's.
        ``softmax_scale``, ``dropout_p``, ``softcap`` (float), ``causal``, ``return_softmax`` (bool),
        ``window_size_left``, ``window_size_right`` (int), and for ``varlen_fwd`` ``max_seqlen_q``, ``max_seqlen_k``.
        ``out_shape``: of the output that the caller gets; ``returns``: how many values the caller gets, 1 or 3.
    """
    raise NotImplementedError("TODO: follow the autograd Function of the call, line by line")


def predict_kernel(call: dict) -> dict[str, Any]:
    """Which instantiation of the forward kernel the call ends in.

    Args:
        call: of `flash_attn_func`, large enough not to be split over the keys (`num_splits` is 1).

    Returns:
        ``source``: the .cu file inside the repository; ``template``: the function that it calls; ``head_dim``: the
        template's kHeadDim; ``is_causal``, ``is_local``, ``is_even_k``: the kernel's template arguments.
    """
    raise NotImplementedError("TODO: mha_fwd, set_params_fprop, run_mha_fwd, run_flash_fwd")


def course_call(
    q: Described,
    k: Described,
    v: Described,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> dict:
    """The call of `flash_attn_func` for tensors in the course's layout, without moving any data.

    Args:
        q: (batch, heads, seqlen_q, head_dim). k, v: (batch, kv_heads, seqlen_k, head_dim).
        scale: factor of the scores; None means 1/sqrt(head_dim).
        window: keys that a query sees to its left and right; None means all.

    Returns:
        a call whose tensors are views of q, k and v.

    Raises:
        ValueError: the kernel would refuse it: a dtype other than float16 and bfloat16, dtypes that differ, head_dim
            above 256, or kv_heads that don't divide heads.
    """
    raise NotImplementedError("TODO: swap two dimensions of shape and strides; refuse what mha_fwd refuses")

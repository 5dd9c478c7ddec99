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


# BEGIN SOLUTION
DEFAULTS = {
    "dropout_p": 0.0,
    "softmax_scale": None,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "return_attn_probs": False,
}


def argument(call: dict, name: str) -> Any:
    """An argument of the call, or flash-attn's default for it."""
    return call["arguments"].get(name, DEFAULTS.get(name))


def part(packed: Described, axis: int) -> Described:
    """One of the views along `axis` that a packed tensor is taken apart into."""
    return {
        "shape": packed["shape"][:axis] + packed["shape"][axis + 1 :],
        "strides": packed["strides"][:axis] + packed["strides"][axis + 1 :],
        "dtype": packed["dtype"],
    }


def unpacked(call: dict) -> tuple[Described, Described, Described]:
    """q, k and v of a call; packed ones stay in the memory of what they're packed in."""
    tensors = call["tensors"]
    axis = 1 if "varlen" in call["function"] else 2
    if "qkv" in tensors:
        one = part(tensors["qkv"], axis)
        return one, one, one
    if "kv" in tensors:
        one = part(tensors["kv"], axis)
        return tensors["q"], one, one
    return tensors["q"], tensors["k"], tensors["v"]


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def arriving(tensor: Described) -> Described:
    """A tensor after padding to a multiple of 8 and after `maybe_contiguous`, which asks for the last stride only."""
    shape = [*tensor["shape"][:-1], round_up(tensor["shape"][-1], 8)]
    padded = shape != list(tensor["shape"])
    copied = padded or tensor["strides"][-1] != 1
    strides = contiguous_strides(shape) if copied else list(tensor["strides"])
    return {"shape": shape, "strides": strides, "dtype": tensor["dtype"], "copied": copied}


# END SOLUTION
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
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: follow the autograd Function of the call, line by line")
    q, k, v = unpacked(call)
    head_dim = q["shape"][-1]
    scale = argument(call, "softmax_scale")
    if scale is None:
        scale = head_dim**-0.5
    left, right = argument(call, "window_size")
    dropout = argument(call, "dropout_p")
    wants_probabilities = argument(call, "return_attn_probs")
    varlen = "varlen" in call["function"]
    prediction = {
        "function": "varlen_fwd" if varlen else "fwd",
        "q": arriving(q),
        "k": arriving(k),
        "v": arriving(v),
        "softmax_scale": scale,
        "dropout_p": dropout,
        "softcap": argument(call, "softcap"),
        "causal": argument(call, "causal"),
        "return_softmax": wants_probabilities and dropout > 0,
        "window_size_left": left,
        "window_size_right": right,
        "out_shape": list(q["shape"]),
        "returns": 3 if wants_probabilities else 1,
    }
    if varlen:
        # The variety for packed q, k and v has one `max_seqlen` for both.
        longest = argument(call, "max_seqlen")
        for name in ("max_seqlen_q", "max_seqlen_k"):
            prediction[name] = argument(call, name) if longest is None else longest
    return prediction
    # END SOLUTION


def predict_kernel(call: dict) -> dict[str, Any]:
    """Which instantiation of the forward kernel the call ends in.

    Args:
        call: of `flash_attn_func`, large enough not to be split over the keys (`num_splits` is 1).

    Returns:
        ``source``: the .cu file inside the repository; ``template``: the function that it calls; ``head_dim``: the
        template's kHeadDim; ``is_causal``, ``is_local``, ``is_even_k``: the kernel's template arguments.
    """
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: mha_fwd, set_params_fprop, run_mha_fwd, run_flash_fwd")
    q, k, _ = unpacked(call)
    seqlen_q, seqlen_k = q["shape"][1], k["shape"][1]
    padded = round_up(q["shape"][3], 8)
    head_dim = next(size for size in TEMPLATE_HEAD_DIMS if padded <= size)
    # mha_fwd: a window that reaches over all keys is none, and one query row sees all keys, causal or not.
    left, right = (-1 if side >= seqlen_k else side for side in argument(call, "window_size"))
    if argument(call, "causal") and seqlen_q > 1:
        right = 0
    # set_params_fprop: causal is the window that is open to the left and closed to the right.
    is_causal = left < 0 and right == 0
    element = {"float16": "fp16", "bfloat16": "bf16"}[q["dtype"]]
    suffix = "_causal" if is_causal else ""
    return {
        "source": f"csrc/flash_attn/src/flash_fwd_hdim{head_dim}_{element}{suffix}_sm80.cu",
        "template": f"run_mha_fwd_hdim{head_dim}",
        "head_dim": head_dim,
        "is_causal": is_causal,
        "is_local": (left >= 0 or right >= 0) and not is_causal,
        "is_even_k": padded == head_dim,
    }
    # END SOLUTION


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
    # BEGIN SOLUTION
    # STARTER: raise NotImplementedError("TODO: swap two dimensions of shape and strides; refuse what mha_fwd refuses")
    if q["dtype"] not in ("float16", "bfloat16"):
        raise ValueError(f"dtype {q['dtype']}: flash-attn takes float16 and bfloat16")
    if not q["dtype"] == k["dtype"] == v["dtype"]:
        raise ValueError(f"q, k, v are {q['dtype']}, {k['dtype']}, {v['dtype']}: expected one dtype")
    heads, kv_heads, head_dim = q["shape"][1], k["shape"][1], q["shape"][3]
    if head_dim > TEMPLATE_HEAD_DIMS[-1]:
        raise ValueError(f"head_dim {head_dim}: flash-attn goes up to {TEMPLATE_HEAD_DIMS[-1]}")
    if heads % kv_heads:
        raise ValueError(f"{kv_heads} kv_heads don't divide {heads} heads")

    def transposed(tensor: Described) -> Described:
        (b, h, s, d), (sb, sh, ss, sd) = tensor["shape"], tensor["strides"]
        return {"shape": [b, s, h, d], "strides": [sb, ss, sh, sd], "dtype": tensor["dtype"]}

    arguments = {"softmax_scale": scale, "causal": causal, "window_size": list(window or (-1, -1))}
    tensors = {"q": transposed(q), "k": transposed(k), "v": transposed(v)}
    return {"function": "flash_attn_func", "tensors": tensors, "arguments": arguments}
    # END SOLUTION


# kept-from-students-d1b4858da629cf4a

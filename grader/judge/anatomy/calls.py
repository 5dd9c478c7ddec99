"""Calls of flash-attn as plain data, as `boundary.py` of lab05 takes them; strides count elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Call = dict[str, Any]
Described = dict[str, Any]
"""A tensor: ``shape``, ``strides``, ``dtype``."""

DEFAULTS: dict[str, Any] = {
    "dropout_p": 0.0,
    "softmax_scale": None,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "return_attn_probs": False,
}


def contiguous(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return strides[::-1]


def dense(*shape: int, dtype: str = "float16") -> Described:
    """A contiguous tensor."""
    return {"shape": list(shape), "strides": contiguous(shape), "dtype": dtype}


def permuted(memory: Sequence[int], order: Sequence[int], dtype: str = "float16") -> Described:
    """A view whose dimension i is dimension `order[i]` of a contiguous tensor of shape `memory`."""
    strides = contiguous(memory)
    return {"shape": [memory[i] for i in order], "strides": [strides[i] for i in order], "dtype": dtype}


def flash_call(q: Described, k: Described, v: Described, **arguments: Any) -> Call:
    return {"function": "flash_attn_func", "tensors": {"q": q, "k": k, "v": v}, "arguments": arguments}


def argument(call: Call, name: str) -> Any:
    """An argument of the call, or flash-attn's default for it."""
    return call["arguments"].get(name, DEFAULTS.get(name))


def sliced(packed: Described, axis: int, size: int) -> list[Described]:
    """The `size` views along `axis` that a packed tensor (kv, qkv) is taken apart into."""
    shape = packed["shape"][:axis] + packed["shape"][axis + 1 :]
    strides = packed["strides"][:axis] + packed["strides"][axis + 1 :]
    return [{"shape": shape, "strides": strides, "dtype": packed["dtype"]} for _ in range(size)]


def inputs(call: Call) -> dict[str, Described]:
    """q, k and v of a call, packed ones taken apart."""
    tensors = call["tensors"]
    axis = 1 if "varlen" in call["function"] else 2
    if "qkv" in tensors:
        q, k, v = sliced(tensors["qkv"], axis, 3)
    elif "kv" in tensors:
        q, (k, v) = tensors["q"], sliced(tensors["kv"], axis, 2)
    else:
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
    return {"q": q, "k": k, "v": v}

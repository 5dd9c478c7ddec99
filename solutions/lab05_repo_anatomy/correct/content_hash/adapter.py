"""Predictions by carrying a copy of the call through the hops, one after the other, as the code does."""

from __future__ import annotations

import copy

LIMITS = [(32, "32"), (64, "64"), (96, "96"), (128, "128"), (192, "192"), (256, "256")]


def _rows(shape):
    out = [1]
    for length in shape[:0:-1]:
        out.insert(0, out[0] * length)
    return out


def _take(tensor, axis):
    cut = copy.deepcopy(tensor)
    del cut["shape"][axis], cut["strides"][axis]
    return cut


def _autograd_function(call):
    tensors = copy.deepcopy(call["tensors"])
    axis = -3
    if "qkv" in tensors:
        q = k = v = _take(tensors["qkv"], axis)
    elif "kv" in tensors:
        q, k = tensors["q"], _take(tensors["kv"], axis)
        v = k
    else:
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
    state = {"window_size": (-1, -1), "causal": False, "dropout_p": 0.0, "softcap": 0.0, "softmax_scale": None}
    state |= {"return_attn_probs": False} | call["arguments"]
    original = q["shape"][-1]
    if state["softmax_scale"] is None:
        state["softmax_scale"] = 1 / original**0.5
    parts = {}
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        part = copy.deepcopy(tensor)
        part["copied"] = False
        if original % 8:
            part["shape"][-1] += 8 - original % 8
            part["strides"], part["copied"] = _rows(part["shape"]), True
        parts[name] = part
    return parts, state, q["shape"]


def predict_boundary(call):
    parts, state, shape = _autograd_function(call)
    for part in parts.values():  # maybe_contiguous
        if part["strides"][-1] != 1:
            part["strides"], part["copied"] = _rows(part["shape"]), True
    arrived = dict(parts)
    arrived["function"] = "varlen_fwd" if "varlen" in call["function"] else "fwd"
    arrived["window_size_left"], arrived["window_size_right"] = state["window_size"]
    for name in ("softmax_scale", "dropout_p", "softcap", "causal"):
        arrived[name] = state[name]
    probabilities = state["return_attn_probs"]
    arrived["return_softmax"] = bool(probabilities and state["dropout_p"] > 0)
    arrived["out_shape"], arrived["returns"] = tuple(shape), 1 + 2 * probabilities
    if arrived["function"] == "varlen_fwd":
        for side in "qk":
            arrived[f"max_seqlen_{side}"] = state.get(f"max_seqlen_{side}", state.get("max_seqlen"))
    return arrived


def predict_kernel(call):
    parts, state, _ = _autograd_function(call)
    (_, rows, _, width), keys = parts["q"]["shape"], parts["k"]["shape"][1]
    limit, text = next(pair for pair in LIMITS if width <= pair[0])
    left, right = state["window_size"]
    if left >= keys:
        left = -1
    if right >= keys:
        right = -1
    if state["causal"] and rows != 1:
        right = 0
    causal = left < 0 and right == 0
    local = not causal and max(left, right) >= 0
    kind = "fp16" if parts["q"]["dtype"] == "float16" else "bf16"
    file = f"csrc/flash_attn/src/flash_fwd_hdim{text}_{kind}{'_causal' * causal}_sm80.cu"
    table = {"source": file, "template": "run_mha_fwd_hdim" + text, "head_dim": limit}
    return table | {"is_causal": causal, "is_local": local, "is_even_k": width == limit}


def course_call(q, k, v, *, causal=False, scale=None, window=None):
    if len({tensor["dtype"] for tensor in (q, k, v)} | {"float16"}) > 1 and {q["dtype"], k["dtype"], v["dtype"]} != {
        "bfloat16"
    }:
        raise ValueError("one of float16 and bfloat16 for all three, please")
    if q["shape"][-1] > 256 or q["shape"][1] % k["shape"][1] != 0:
        raise ValueError("head_dim above 256, or heads that can't be grouped")

    def swap(values):
        first, second, third, last = values
        return [first, third, second, last]

    tensors = {
        name: {"shape": swap(x["shape"]), "strides": swap(x["strides"]), "dtype": x["dtype"]}
        for name, x in zip("qkv", (q, k, v), strict=True)
    }
    arguments = {"causal": causal}
    if scale is not None:
        arguments["softmax_scale"] = scale
    if window is not None:
        arguments["window_size"] = tuple(window)
    return {"function": "flash_attn_func", "tensors": tensors, "arguments": arguments}


# kept-from-students-d384e9801c85d311

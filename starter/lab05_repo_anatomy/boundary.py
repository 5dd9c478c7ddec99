"""Runs the real `flash_attn` package over a stand-in for its extension, on the CPU, and tells what reached it.

`record(call)` gives the truth that your `predict_boundary` has to predict; `python boundary.py` shows one. A call is
plain data::

    {"function": "flash_attn_func",
     "tensors": {"q": {"shape": [2, 113, 4, 59], "strides": [26668, 236, 59, 1], "dtype": "float16"}, "k": …, "v": …},
     "arguments": {"softmax_scale": 0.5, "causal": True, "window_size": [64, 0]}}

Strides count elements. `arguments` go in by name; lists of numbers in `cu_seqlens_q` and `cu_seqlens_k` become int32
tensors. Neither a GPU nor a compiled flash-attn is needed: `python -m grader.judge.anatomy.source` fetches and unpacks
the sources once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
INPUTS = ("q", "k", "v")
SCALARS = ("softmax_scale", "softcap")
BENCHMARK_SHAPE = {"batch": 1, "seqlen": 32, "heads": 4}
LAYERS = ("extension", "custom_op", "flash_attn_func")
"""What can be timed, innermost first; each calls the one before it."""


def package_folder() -> Path:
    """The folder that holds `flash_attn/`: this one in the grader's worker, the course's cache elsewhere."""
    if (HERE / "flash_attn").is_dir():
        return HERE
    command = [sys.executable, "-m", "grader.judge.anatomy.source"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"The flash-attn sources can't be had: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def load() -> Any:
    """The real `flash_attn` package, bound to the stand-in extension in this folder.

    The package registers its operators for CUDA tensors only. Here they're registered for every device, which changes
    who may call them and nothing that they do.
    """
    if "flash_attn" in sys.modules:
        return sys.modules["flash_attn"]
    # In front, so that an installed flash-attn and its compiled extension don't come first.
    sys.path[:0] = [str(HERE), str(package_folder())]
    register = torch.library.custom_op

    def for_every_device(name: str, function: Any = None, /, **options: Any) -> Any:
        return register(name, function, **(options | {"device_types": None}))

    torch.library.custom_op = for_every_device
    try:
        import flash_attn
    finally:
        torch.library.custom_op = register
    return flash_attn


def make_tensor(described: dict) -> torch.Tensor:
    """A CPU tensor of that shape, those strides (elements) and that dtype, in a buffer just large enough."""
    shape, strides = described["shape"], described["strides"]
    size = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    return torch.zeros(size, dtype=getattr(torch, described["dtype"])).as_strided(shape, strides)


def arguments_of(call: dict) -> dict[str, Any]:
    """Keyword arguments of the call, with its tensors made."""
    arguments = {name: make_tensor(described) for name, described in call["tensors"].items()}
    for name, value in call["arguments"].items():
        if name.startswith("cu_seqlens"):
            value = torch.tensor(value, dtype=torch.int32)
        elif name == "window_size":
            value = tuple(value)
        arguments[name] = value
    return arguments


def describe(tensor: torch.Tensor, callers: set[int]) -> dict[str, Any]:
    """Shape, strides and dtype of a tensor, and whether its memory isn't the caller's."""
    return {
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "copied": tensor.untyped_storage().data_ptr() not in callers,
    }


def record(call: dict) -> dict[str, Any]:
    """Make the call and tell what the extension received and what the caller got back.

    Returns:
        `function` (the extension's), `q`, `k`, `v` (shape, strides, dtype, copied), `dropout_p`, `softmax_scale`,
        `causal`, `window_size_left`, `window_size_right`, `softcap`, `return_softmax`; for `varlen_fwd` also
        `max_seqlen_q` and `max_seqlen_k`; `out_shape` and `returns`, how many values came back.
    """
    package = load()
    import flash_attn_2_cuda as extension

    arguments = arguments_of(call)
    callers = {value.untyped_storage().data_ptr() for value in arguments.values() if isinstance(value, torch.Tensor)}
    extension.arrived.clear()
    result = getattr(package, call["function"])(**arguments)
    (seen,) = extension.arrived
    values = list(result) if isinstance(result, tuple) else [result]
    told: dict[str, Any] = {"function": seen["function"]}
    told |= {name: describe(seen[name], callers) for name in INPUTS}
    told |= {name: float(seen[name]) for name in SCALARS}
    told |= {"dropout_p": float(seen["p_dropout"]), "causal": bool(seen["is_causal"])}
    told |= {name: int(seen[name]) for name in ("window_size_left", "window_size_right")}
    told["return_softmax"] = bool(seen["return_softmax"])
    told |= {name: int(seen[name]) for name in ("max_seqlen_q", "max_seqlen_k") if name in seen}
    extension.arrived.clear()
    return told | {"out_shape": list(values[0].shape), "returns": len(values)}


def benchmark_call(head_dim: int) -> dict:
    """The call of the call-path benchmark: small, float16, contiguous, no mask."""
    batch, seqlen, heads = (BENCHMARK_SHAPE[name] for name in ("batch", "seqlen", "heads"))
    strides = [seqlen * heads * head_dim, heads * head_dim, head_dim, 1]
    tensor = {"shape": [batch, seqlen, heads, head_dim], "strides": strides, "dtype": "float16"}
    return {"function": "flash_attn_func", "tensors": {name: dict(tensor) for name in INPUTS}, "arguments": {}}


def layer(name: str, head_dim: int) -> Any:
    """A function without arguments that enters the call path at `name`, a member of LAYERS.

    The inner two get what the outermost hands down: a head dimension that's a multiple of 8.
    """
    package = load()
    import flash_attn_2_cuda as extension

    padded = head_dim if name == "flash_attn_func" else -(-head_dim // 8) * 8
    q, k, v = (make_tensor(described) for described in benchmark_call(padded)["tensors"].values())
    scale = head_dim**-0.5

    def enter_extension() -> None:
        extension.arrived.clear()
        extension.fwd(q, k, v, None, None, 0.0, scale, False, -1, -1, 0.0, False, None)

    def enter_custom_op() -> None:
        extension.arrived.clear()
        torch.ops.flash_attn._flash_attn_forward(q, k, v, 0.0, scale, False, -1, -1, 0.0, None, False)

    def enter_function() -> None:
        extension.arrived.clear()
        package.flash_attn_func(q, k, v)

    return dict(zip(LAYERS, (enter_extension, enter_custom_op, enter_function), strict=True))[name]


def medians_us(head_dim: int, repeats: int) -> dict[str, float]:
    """Median microseconds a call of each layer, on this machine; what a table of yours is compared with."""
    import statistics
    import time

    found = {}
    for name in LAYERS:
        enter = layer(name, head_dim)
        samples = []
        for _ in range(repeats + repeats // 4):
            start = time.perf_counter_ns()
            enter()
            samples.append((time.perf_counter_ns() - start) / 1000)
        found[name] = statistics.median(samples[repeats // 4 :])
    return found


if __name__ == "__main__":
    import json

    print(json.dumps(record(benchmark_call(59)), indent=1))

"""Shared by the executor's tests: writes tapes by hand, runs them on tensors and reads the replies."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grader.worker.calls import Arguments
from grader.worker.codec import Decoder
from grader.worker.execute.run import Executor, Options
from grader.worker.kernel_closure import Closure
from grader.worker.tape import JSON
from grader.worker.tensors import DTYPE_NAMES, TORCH_DTYPES
from grader.worker.wire import HostRef, Leaf, numpy_value

H200: dict[str, Any] = {
    "title": "H200",
    "compute_capability": "9.0",
    "sms": 132,
    "l2_mib": 50,
    "memory_gib": 141,
    "shared_kib_per_block": 227,
    "shared_kib_per_sm": 228,
    "registers_per_sm": 65536,
    "max_threads_per_sm": 2048,
}
RULES: dict[str, Any] = {"allow": ["moves", "scale", "partials", "integers"], "scale": ["x"]}


def executor(device: str = "cpu") -> Executor:
    return Executor(H200, device, Path(tempfile.mkdtemp(prefix="kernels-")))


class Tape:
    """A tape in the making; every method returns the value that stands for the tensor it makes."""

    def __init__(self) -> None:
        self._closure = Closure()
        self._inputs: dict[str, int] = {}
        self._cotangents: list[int] = []
        self._tensors = 0
        self.steps: list[JSON] = []

    def _new(self) -> int:
        self._tensors += 1
        return self._tensors - 1

    def input(self, name: str) -> JSON:
        self._inputs[name] = self._new()
        return {"t": self._inputs[name]}

    def cotangent(self) -> JSON:
        self._cotangents.append(self._new())
        return {"t": self._cotangents[-1]}

    def op(self, name: str, *args: Any, where: str = "launcher.py:1", **kwargs: Any) -> JSON:
        made = self._new()
        step = {"do": "op", "name": f"aten.{name}", "args": list(args), "kwargs": kwargs, "out": [made], "where": where}
        self.steps.append(step)
        return {"t": made}

    def empty(self, *shape: int, dtype: str = "float32", where: str = "launcher.py:1") -> JSON:
        kind, device = {"dtype": dtype}, {"device": "cuda:0"}
        return self.op("empty.memory_format", list(shape), dtype=kind, device=device, where=where)

    def constant(self, dtype: str, *values: Any) -> JSON:
        made = self._new()
        step = {"do": "constant", "dtype": dtype, "shape": [len(values)], "values": list(values), "out": [made]}
        self.steps.append({**step, "where": "launcher.py:1"})
        return {"t": made}

    def launching(self, kernel: Any, grid: Sequence[int], *args: Any, **constexprs: Any) -> JSON:
        """A launch's step; arguments in the kernel's order, compile-time ones by name."""
        runtime = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
        return {
            "do": "launch",
            "kernel": kernel.__name__,
            "entry": self._closure.add(kernel),
            "phase": "forward",
            "args": dict(zip(runtime, args, strict=True)),
            "constexprs": {name: self._closure.encode(value) for name, value in constexprs.items()},
            "options": {},
            "grid": [*grid, 1, 1][:3],
            "where": "launcher.py:2",
        }

    def launch(self, kernel: Any, grid: Sequence[int], *args: Any, **constexprs: Any) -> None:
        self.steps.append(self.launching(kernel, grid, *args, **constexprs))

    def choice(self, *launches: JSON) -> None:
        candidates = [{"text": f"candidate {n}", "steps": [launch]} for n, launch in enumerate(launches)]
        self.steps.append({"do": "choice", "where": "launcher.py:2", "candidates": candidates})

    def returning(self, *results: Any, gradients: dict[str, Any] | None = None) -> JSON:
        return {
            "version": 1,
            "functions": self._closure.functions,
            "inputs": self._inputs,
            "cotangents": self._cotangents,
            "steps": self.steps,
            "result": results[0] if len(results) == 1 else {"tuple": list(results)},
            "gradients": {name: value["t"] for name, value in (gradients or {}).items()},
        }


def leaf(tensor: torch.Tensor, device: str = "cpu") -> Leaf:
    """A tensor as the judge sends it: values, and where they lie."""
    plain = tensor.detach()
    raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy().copy() if tensor.numel() else np.empty(0, np.uint8)
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    shape = tuple(tensor.shape)
    place = (strides, tensor.storage_offset(), device, tensor.requires_grad)
    return Leaf("tensor", DTYPE_NAMES[tensor.dtype], shape, raw, shape, *place)


def _no_ref(ref: HostRef) -> Any:
    raise AssertionError(ref)


def run(
    tape: JSON,
    inputs: dict[str, torch.Tensor],
    *,
    cotangents: Sequence[torch.Tensor] = (),
    rules: dict[str, Any] | None = None,
    mutable: tuple[str, ...] = (),
    within: Executor | None = None,
    device: str = "cpu",
    **options: Any,
) -> dict[str, Any]:
    """The reply to one run of a tape, with tensors of torch."""
    arguments = Arguments(_no_ref)
    bound = {name: arguments.leaf(leaf(tensor, device)) for name, tensor in inputs.items()}
    given = [arguments.leaf(leaf(tensor, device)) for tensor in cotangents]
    arguments.name({**bound, "cotangents": given}, mutable)
    settings = Options(mutable=mutable, **options)
    tree, buffers = (within or executor(device)).run(tape, arguments, RULES if rules is None else rules, settings)
    return dict(Decoder(buffers, _tensor).decode(tree))


def _tensor(leaf: Leaf) -> Any:
    if leaf.kind != "tensor":
        return numpy_value(leaf)
    kind = TORCH_DTYPES[leaf.dtype]
    return (
        torch.from_numpy(np.array(leaf.raw)).view(kind).reshape(leaf.shape)
        if leaf.raw.size
        else torch.empty(leaf.shape)
    )

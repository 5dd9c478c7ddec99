"""A worker's entry that pretends to have a GPU: tensors stay on the CPU and say that they are on cuda:0.

For tests alone, put beside the worker's own modules (`LaunchSpec.extra_modules`) with `entry="pretend_cuda"`. Triton's
kernels run in its interpreter. A CUDA graph is the calls that were captured, made again at each replay into the outputs
of the capture; what a capture forbids on a GPU (to wait, to read a value) raises here too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

READS = frozenset({"item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"})
TARGET_VARIABLE = "GRADE_PRETENDED_PROFILE"


class Graph:
    """`torch.cuda.CUDAGraph`: replays what the frame around its capture called."""

    def __init__(self) -> None:
        self.calls: Any = None
        self.outputs: list[Any] = []

    def replay(self) -> None:
        for kept, new in zip(self.outputs, self.calls(), strict=True):
            pairs = zip(kept, new, strict=True) if isinstance(kept, (tuple, list)) else [(kept, new)]
            for old, values in pairs:
                old.copy_(values)


class Capture:
    """`torch.cuda.graph`, as `TensorMemory.replay` uses it: finds `calls` and `outputs` among that frame's names."""

    running = False

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        self._frame: FrameType = sys._getframe(1)
        Capture.running = True

    def __exit__(self, *_: object) -> None:
        Capture.running = False
        self._graph.calls = self._frame.f_locals["calls"]
        self._graph.outputs = self._frame.f_locals["outputs"]
        del self._frame


def refuse_in_capture(what: str) -> None:
    if Capture.running:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


def synchronize(device: Any = None) -> None:
    refuse_in_capture("synchronize")


@contextmanager
def any_backend(*_: Any, **__: Any) -> Iterator[None]:
    """`sdpa_kernel`: a CPU has none of a card's backends, so whichever takes the tensors will do."""
    yield


def pretend(target: dict[str, Any]) -> None:
    """Make `torch.cuda` answer for the card of that profile, for the rest of this process."""
    import torch

    from . import fake_cuda

    class Claiming(fake_cuda.OnDevice):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if func == torch.Tensor.device.__get__:
                return torch.device("cuda", 0)
            if func == torch.Tensor.is_cuda.__get__:
                return True
            if name in READS and "triton" not in sys._getframe(1).f_globals.get("__name__", ""):
                refuse_in_capture(name)
            return super().__torch_function__(func, types, args, kwargs)

    for name, answer in fake_cuda._answers(target).items():
        setattr(torch.cuda, name, answer)
    torch.cuda.synchronize, torch.cuda.graph, torch.cuda.CUDAGraph = synchronize, Capture, Graph
    torch.nn.attention.sdpa_kernel = any_backend
    Claiming("cpu").__enter__()


def main() -> None:
    """Serve as a worker does; never returns."""
    import torch.nn.attention  # noqa: F401 - part of what is replaced

    pretend(json.loads(os.environ[TARGET_VARIABLE]))
    from .main import main as serve

    serve()

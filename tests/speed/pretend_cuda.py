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
    """`torch.cuda.CUDAGraph`: replays the part of a window that was captured, into the outputs of the capture."""

    def __init__(self) -> None:
        self.part: Any = None
        self.outputs: list[tuple[Any, list[Any]]] = []

    def replay(self) -> None:
        self.part()
        for call, kept in self.outputs:
            for old, new in zip(kept, call.outputs, strict=True):
                if old is not new:
                    old.copy_(new)
            call.outputs = kept


class Capture:
    """`torch.cuda.graph`, as `TensorMemory` uses it: finds `part`, a call of methods of calls, in that frame."""

    running = False

    def __init__(self, graph: Graph, *, pool: Any, stream: Any) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        self._frame: FrameType = sys._getframe(1)
        Capture.running = True

    def __exit__(self, *_: object) -> None:
        Capture.running = False
        part = self._graph.part = self._frame.f_locals["part"]
        calls = [method.__self__ for method in getattr(part, "args", [[part]])[0]]
        self._graph.outputs = [(call, call.outputs) for call in calls]
        del self._frame


def refuse_in_capture(what: str) -> None:
    if Capture.running:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


def synchronize(device: Any = None) -> None:
    refuse_in_capture("synchronize")


def ignored(*_: Any) -> None:
    """There's one stream and no pool of memory."""


@contextmanager
def any_backend(*_: Any, **__: Any) -> Iterator[None]:
    """`sdpa_kernel`: a CPU has none of a card's backends, so whichever takes the tensors will do."""
    yield


def pretend(target: dict[str, Any]) -> None:
    """Make `torch.cuda` answer for the card of that profile, for the rest of this process."""
    import torch

    from . import fake_cuda

    class Claiming(fake_cuda.OnCpu):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if func == torch.Tensor.device.__get__:
                return torch.device("cuda", 0)
            if func == torch.Tensor.is_cuda.__get__:
                return True
            if name in READS and "triton" not in sys._getframe(1).f_globals.get("__name__", ""):
                refuse_in_capture(name)
            return super().__torch_function__(func, types, args, kwargs)

    for name, answer in fake_cuda.answers(target).items():
        setattr(torch.cuda, name, answer)
    torch.cuda.synchronize, torch.cuda.graph, torch.cuda.CUDAGraph = synchronize, Capture, Graph
    torch.cuda.set_stream, torch.cuda.graph_pool_handle = ignored, ignored
    torch.nn.attention.sdpa_kernel = any_backend
    Claiming().__enter__()


def interpret(target: dict[str, Any]) -> None:
    """Let an executor's launches run in Triton's interpreter, though its device is a GPU."""
    from triton.runtime import driver

    from . import interpreter_fixes
    from .execute import language, launching
    from .stand_in_driver import StandInDriver

    class Pretended(launching.Interpreted):
        def __init__(self, kernels: Any) -> None:
            super().__init__(kernels, traced=False, backwards=False)

    driver.set_active(StandInDriver(target, "cpu"))
    interpreter_fixes.apply()
    language.apply()
    launching.Compiled = Pretended  # type: ignore[misc]


def main() -> None:
    """Serve as a worker does; never returns."""
    import torch.nn.attention  # noqa: F401 - part of what is replaced

    target = json.loads(os.environ[TARGET_VARIABLE])
    pretend(target)
    if os.environ["GRADE_RUNTIME"] == "triton":
        interpret(target)
    from .main import main as serve

    serve()

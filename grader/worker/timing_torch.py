"""Inputs and outputs of timed windows as tensors; with CUDA: all streams are waited for, the L2 cache is flushed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from .calls import RaisedError
from .guards import ContractError
from .tensors import TORCH_DTYPES, wait_for_device
from .timing import Run, Spec, as_factors, pieces

PERSISTING_L2_LIMIT = 6
"""CU_LIMIT_PERSISTING_L2_CACHE_SIZE of the driver API."""
READ_DTYPES = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def _nothing() -> None:
    pass


def _driver() -> Any:
    """The CUDA driver's library; None where there's none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


class TensorMemory:
    """See `timing.Memory`. With CUDA it makes a stream of its own the current one: autograd runs a backward pass on
    the stream of its forward pass, and a graph can't be captured on the default one.

    Args:
        block: float32 array of normals. flush_bytes: at least twice the L2 cache. device: ``cpu`` or ``cuda``.
    """

    def __init__(self, block: Any, flush_bytes: int, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream())
        self._period = len(block)
        self._twice = torch.from_numpy(np.concatenate([block, block])).to(device)
        self._buffer = torch.zeros(max(flush_bytes // 4, 1), dtype=torch.float32, device=device)
        self._turn = 0.0
        self._driver = _driver() if device == "cuda" else None
        self.wait: Callable[[], None] = wait_for_device if device == "cuda" else _nothing

    def empty(self, spec: Spec) -> Any:
        made = torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=self.device)
        return made.requires_grad_() if spec.requires_grad else made

    def fixed(self, spec: Spec) -> Any:
        return torch.from_numpy(np.array(spec.value)).to(self.device)

    def put(self, target: Any, value: Any) -> None:
        with torch.no_grad():
            target.copy_(torch.from_numpy(np.array(value)))

    def patterns(self, signs: Any) -> Any:
        return torch.from_numpy(as_factors(signs)).to(self.device)

    def fill(self, target: Any, spec: Spec, offset: int, pattern: Any) -> None:
        """As `timing.ArrayMemory.fill`, on the device: products in float32, rounded once to the target's dtype."""
        with torch.no_grad():
            for part, piece in pieces(target.view(-1, spec.shape[-1]), self._twice, self._period, offset):
                if spec.scale == 1.0 and spec.shift == 0.0:
                    torch.mul(piece, pattern, out=part)
                    continue
                # Products and sums apart, each rounded to float32: the judge does the same.
                values = torch.mul(piece, pattern)
                values.mul_(spec.scale)
                values.add_(spec.shift)
                part.copy_(values)

    def settle(self) -> None:
        """Write over what the caches hold, and take back a part of L2 that somebody set aside."""
        self._turn += 1.0
        self._buffer.fill_(self._turn)
        if self._driver is not None:
            # Cards without the feature answer with an error, which means the same.
            self._driver.cuCtxSetLimit(PERSISTING_L2_LIMIT, ctypes.c_size_t(0))
            self._driver.cuCtxResetPersistingL2Cache()

    def release(self) -> None:
        """Give back what torch's allocator keeps: a GPU is shared with the workers of other kernels."""
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def extent(self, output: Any, path: str) -> tuple[int, int]:
        if type(output) is not torch.Tensor or output.layout is not torch.strided or output.device.type != self.device:
            raise ContractError(f"{path} is a {type(output).__name__}; expected a dense torch.Tensor on {self.device}.")
        if output.numel() == 0:
            return 0, 0
        start = output.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(output.shape, output.stride(), strict=True))
        return start, start + (last + 1) * output.element_size()

    def rows(self, output: Any, indices: Any) -> Any:
        with torch.no_grad():
            picked = output.detach()[tuple(torch.from_numpy(np.ascontiguousarray(indices.T)).to(self.device))]
            return picked.to(READ_DTYPES.get(picked.dtype, picked.dtype)).cpu().numpy()

    def backward(self, outputs: Any, cotangents: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any:
        results = outputs if type(outputs) in (tuple, list) else (outputs,)
        return torch.autograd.grad(list(results[: len(cotangents)]), list(leaves), list(cotangents))

    def captured(self, parts: Sequence[Run]) -> list[Run] | None:
        """Each part as a CUDA graph, to be replayed in their order; None on a CPU.

        The graphs share their memory: what one writes is where the next reads it.
        """
        if self.device != "cuda":
            return None
        pool = torch.cuda.graph_pool_handle()
        return [self._graph(part, pool) for part in parts]

    def _graph(self, part: Run, pool: Any) -> Run:
        graph = torch.cuda.CUDAGraph()
        raised: Exception | None = None
        try:
            with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
                try:
                    part()
                except Exception as error:  # noqa: BLE001 - ending the capture may fail too, and would hide it
                    raised = error
        except RuntimeError as error:  # what was captured can't be ended as a graph
            raise raised or RaisedError from error
        if raised is not None:
            raise raised
        return partial(torch.cuda.CUDAGraph.replay, graph)

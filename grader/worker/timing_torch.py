"""Inputs and outputs of timed windows as tensors; with CUDA: all streams are waited for, the L2 cache is flushed.

Loaded before a submission is imported, and only by a worker whose runtime has torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from .calls import RaisedError
from .guards import ContractError
from .tensors import TORCH_DTYPES, wait_for_device
from .timing import Spec, pieces

_Tensor = torch.Tensor
_no_grad, _mul, _from_numpy, _empty = torch.no_grad, torch.mul, torch.from_numpy, torch.empty
_grad, _strided = torch.autograd.grad, torch.strided
_data_ptr, _is_contiguous, _element_size = _Tensor.data_ptr, _Tensor.is_contiguous, _Tensor.element_size
_empty_cache = torch.cuda.empty_cache
_graph, _CUDAGraph, _replay = torch.cuda.graph, torch.cuda.CUDAGraph, torch.cuda.CUDAGraph.replay

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
    """See `timing.Memory`.

    Args:
        block: float32 array of normals. flush_bytes: at least twice the L2 cache. device: ``cpu`` or ``cuda``.
    """

    def __init__(self, block: Any, flush_bytes: int, device: str) -> None:
        self._device = device
        self._period = len(block)
        self._twice = _from_numpy(np.concatenate([block, block])).to(device)
        self._buffer = torch.zeros(max(flush_bytes // 4, 1), dtype=torch.float32, device=device)
        self._turn = 0.0
        self._driver = _driver() if device == "cuda" else None
        self.wait: Callable[[], None] = wait_for_device if device == "cuda" else _nothing

    def empty(self, spec: Spec) -> Any:
        made = _empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device=self._device)
        return made.requires_grad_() if spec.requires_grad else made

    def fixed(self, spec: Spec) -> Any:
        return _from_numpy(np.array(spec.value)).to(self._device)

    def put(self, target: Any, value: Any) -> None:
        with _no_grad():
            target.copy_(_from_numpy(np.array(value)))

    def fill(self, target: Any, spec: Spec, offset: int, signs: Any) -> None:
        """As `timing.ArrayMemory.fill`, on the device: products in float32, rounded once to the target's dtype."""
        with _no_grad():
            pattern = _from_numpy(signs).to(self._device)
            for part, piece in pieces(target.view(-1, spec.shape[-1]), self._twice, self._period, offset):
                if spec.scale == 1.0 and spec.shift == 0.0:
                    _mul(piece, pattern, out=part)
                    continue
                # Products and sums apart, each rounded to float32: the judge does the same.
                values = _mul(piece, pattern)
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
        if self._device == "cuda":
            _empty_cache()

    def extent(self, output: Any, path: str) -> tuple[int, int]:
        if type(output) is not _Tensor or output.layout is not _strided or output.device.type != self._device:
            raise ContractError(
                f"{path} is a {type(output).__name__}; expected a dense torch.Tensor on {self._device}."
            )
        if output.numel() == 0:
            return 0, 0
        start = _data_ptr(output)
        last = sum((size - 1) * stride for size, stride in zip(output.shape, output.stride(), strict=True))
        return start, start + (last + 1) * _element_size(output)

    def rows(self, output: Any, indices: Any) -> Any:
        with _no_grad():
            picked = output.detach()[tuple(_from_numpy(axis).to(self._device) for axis in indices.T)]
            return picked.to(READ_DTYPES.get(picked.dtype, picked.dtype)).cpu().numpy()

    def backward(self, outputs: Any, cotangents: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any:
        results = outputs if type(outputs) in (tuple, list) else (outputs,)
        return _grad(list(results[: len(cotangents)]), list(leaves), list(cotangents))

    def replay(self, calls: Callable[[], list[Any]]) -> tuple[Callable[[], None], list[Any]] | None:
        """The calls as a CUDA graph and the outputs that each replay writes; None on a CPU."""
        if self._device != "cuda":
            return None
        graph = _CUDAGraph()
        raised: RaisedError | None = None
        outputs: list[Any] = []
        try:
            with _graph(graph):
                try:
                    outputs = calls()
                except RaisedError as error:
                    raised = error
        except RuntimeError as error:  # what was captured can't be ended as a graph
            raise raised or RaisedError from (raised.__cause__ if raised else error)
        if raised is not None:
            raise raised
        return partial(_replay, graph), outputs

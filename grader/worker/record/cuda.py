"""A GPU for a launcher that is recorded: `torch.cuda` answers from a profile, tensors say that they are on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from ..fake_cuda import answer_from, is_cuda
from ..gpu_target import Target
from ..stand_in_driver import StandInDriver
from .history import History

DEVICE = "cuda:0"

TELLING = (
    *("get_device_name", "get_device_capability", "get_device_properties", "is_bf16_supported"),
    *("get_arch_list", "mem_get_info"),
)
"""Questions whose answers tell cards apart."""


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Sees torch's functions by the names that Python calls them by, and makes what C++ would make on a real GPU."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "pin_memory":
            return args[0]
        kwargs.pop("pin_memory", None)
        before, self._history.called = self._history.called, name
        try:
            if name == "cuda":
                return args[0].to(DEVICE)
            if name == "tensor":
                # torch.tensor fills its result in C++, past every mode; so it's made on the CPU, then moved.
                device = kwargs.get("device") or _device.CURRENT_DEVICE
                if is_cuda(device):
                    return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
            if is_cuda(kwargs.get("device")):
                kwargs["device"] = DEVICE
            if name == "to":
                args = tuple(DEVICE if is_cuda(argument) else argument for argument in args)
            return func(*args, **kwargs)
        finally:
            self._history.called = before


@contextmanager
def stand_in_cuda(target: Target, history: History) -> Iterator[None]:
    """`torch.cuda` and Triton's driver answer from `target` in the block."""
    with ExitStack() as stack:
        stand_in = StandInDriver(target, DEVICE)
        answer_from(stack, target, stand_in)
        for owner, name in (*((torch.cuda, name) for name in TELLING), (stand_in, "get_current_target")):
            setattr(owner, name, _noted(history, getattr(owner, name)))  # `answer_from` puts torch's own back.
        for name in ("range_push", "range_pop", "mark"):
            stack.callback(setattr, torch.cuda.nvtx, name, getattr(torch.cuda.nvtx, name))
            setattr(torch.cuda.nvtx, name, lambda *args: None)
        # It takes streams of torch's own only. Steps are repeated in the order of the program, on one stream.
        stack.callback(delattr, torch.Tensor, "record_stream")
        torch.Tensor.record_stream = lambda tensor, stream: None
        stack.callback(setattr, torch, "compile", torch.compile)
        torch.compile = _uncompiled
        stack.enter_context(Functions(history))
        yield


def _noted(history: History, answer: Callable[..., Any]) -> Callable[..., Any]:
    """The answer, with a note that somebody asked which card this is."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        history.asked = True
        return answer(*args, **kwargs)

    return asked


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """Stands in for `torch.compile`: the function as it is, so that its operations are recorded one by one."""
    return model if model is not None else _uncompiled

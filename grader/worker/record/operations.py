"""Operations that a submission made of its kernels, with `torch.library`: how to get at the Python behind them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch._library import custom_ops


def python_behind(func: Any, device: str) -> Callable[..., Any] | None:
    """The function that an operation of `torch.library.custom_op` or `triton_op` runs on a device; None for others."""
    schema = getattr(func, "_schema", None)
    definition: Any = custom_ops.OPDEFS.get(schema.name) if schema is not None else None
    made: dict[str | None, Callable[..., Any]] = getattr(definition, "_backend_fns", {})
    return made.get(device, made.get(None))


def plain_triton() -> AbstractContextManager[object]:
    """In the block `torch.library.wrap_triton` gives the kernel itself, not what only torch's tracers can launch."""
    try:
        from torch._library.triton import set_wrap_triton_enabled
    except ImportError:  # torch before 2.6
        return nullcontext()
    return set_wrap_triton_enabled(False)  # type: ignore[no-any-return]

"""Which packages of finished kernels a call went into where torch sees nothing: by Python's own profiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

PEERS = ("flash_attn", "flash_attn_interface", "xformers", "flashinfer", "sageattention", "cudnn")
"""Packages that hold a finished attention kernel."""
COMPILERS = ("cutlass", "transformer_engine", "cupy", "numba", "jax")
"""And those through which one can be launched beside torch."""
_FOREIGN = frozenset((*PEERS, *COMPILERS))
COMPILED = ("torch._inductor.runtime.triton_heuristics", "run")
"""Module and function by which what `torch.compile` made launches its kernels."""


@contextmanager
def noting_foreign_calls(found: list[str]) -> Iterator[None]:
    """Append to `found`, once each, the packages whose Python code runs in the block."""
    before = sys.getprofile()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        name = str(frame.f_globals.get("__name__", ""))
        package = name.split(".", 1)[0]
        if (name, frame.f_code.co_name) == COMPILED:
            package = "torch.compile"
        elif package not in _FOREIGN:
            return
        if package not in found:
            found.append(package)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def imported_peers() -> set[str]:
    """Those that this process has imported."""
    return {name for name in PEERS if name in sys.modules}

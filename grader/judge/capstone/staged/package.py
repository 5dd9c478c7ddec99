"""The flash_attn package that lies beside this file, over the stand-in extension that does too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch


def load() -> Any:
    """The package. It registers its operators for CUDA tensors; here they're registered for every device, which changes
    who may call them and nothing that they do.
    """
    if "flash_attn" in sys.modules:
        return sys.modules["flash_attn"]
    # In front, so that an installed flash-attn and its compiled extension don't come first.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    register = torch.library.custom_op

    def for_every_device(name: str, function: Any = None, /, **options: Any) -> Any:
        return register(name, function, **(options | {"device_types": None}))

    torch.library.custom_op = for_every_device
    try:
        import flash_attn
    finally:
        torch.library.custom_op = register
    return flash_attn

"""Lets data-free tensors be made without torch._dynamo, which takes longer to import than all of a lab to record.

FakeTensorMode reads four settings of `torch._dynamo.config`, and dispatch modes are hidden from its tracer, which never
runs here. The package is loaded all the same by whoever asks for more of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "torch._dynamo"


def settings_alone() -> None:
    """Load `torch._dynamo.config` without the package around it; nothing where that is loaded already."""
    spec = find_spec(NAME)
    if NAME in sys.modules or spec is None:
        return
    package: Any = ModuleType(NAME)
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[NAME] = package
    try:
        package.config = import_module(f"{NAME}.config")
    finally:
        del sys.modules[NAME]
    package.__getattr__ = lambda name: getattr(import_module(NAME), name)
    torch._dynamo = package


class Untraced(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that no tracer has to be kept from."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class DataFree(Untraced, FakeTensorMode):  # type: ignore[misc]
    """A FakeTensorMode that never touches a GPU, though `torch.cuda.is_available` answers True here."""

    avoid_device_init = True
    __torch_dispatch__ = getattr(FakeTensorMode.__torch_dispatch__, "__wrapped__", FakeTensorMode.__torch_dispatch__)

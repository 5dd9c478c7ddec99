"""Shared by the recorder's tests: describes arguments, imports the example submission and records its calls."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from grader.profiles import load_profile
from grader.worker import record
from grader.worker.gpu_target import Target
from grader.worker.tape import JSON, validate

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(__file__).parent / "example"
RULES: dict[str, Any] = {
    "allow": ["moves", "scale", "partials", "integers"],
    "scale": ["x"],
    "rope": [],
    "mutable": [],
    "known": [],
}


def target(name: str = "h100-sxm") -> Target:
    return load_profile(ROOT, name).model_dump(mode="json")


def described(*shape: int, dtype: str = "float32", **more: Any) -> record.Description:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return record.Description(dtype, shape, tuple(strides) if shape else (), **more)


class Submission:
    """One import of a module, with the history of its calls."""

    def __init__(self, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch, profile: str = "h100-sxm") -> None:
        self._folder = str(folder)
        monkeypatch.syspath_prepend(str(folder))
        self.target = target(profile)
        self.history = record.History(str(folder))
        with record.watching(self.history, self.target):
            self.module = import_module(module)

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *details: object) -> None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(self._folder):
                del sys.modules[name]

    def record(
        self, name: str, *args: Any, cotangents: Sequence[Any] = (), rules: dict[str, Any] | None = None, **kwargs: Any
    ) -> JSON:
        """The tape of one call, after the check of its form and a trip through JSON."""
        function = getattr(self.module, name)
        tape = record.run(
            function,
            args,
            kwargs,
            target=self.target,
            bound=dict(inspect.signature(function).bind(*args, **kwargs).arguments),
            cotangents=list(cotangents),
            rules={**RULES, **(rules or {})},
            history=self.history,
        )
        validate(tape)
        return dict(json.loads(json.dumps(tape)))


def replayed(tape: JSON, inputs: dict[str, torch.Tensor], cotangents: Sequence[torch.Tensor]) -> dict[int, Any]:
    """Tensors of a tape without launches by number, computed on the CPU."""
    tensors: dict[int, Any] = {tape["inputs"][name]: tensor.detach() for name, tensor in inputs.items()}
    tensors |= dict(zip(tape["cotangents"], cotangents, strict=True))

    def value(item: Any) -> Any:
        if isinstance(item, list):
            return [value(one) for one in item]
        if not isinstance(item, dict):
            return item
        ((kind, content),) = item.items()
        if kind == "tuple":
            return tuple(value(one) for one in content)
        readers = {"t": tensors.__getitem__, "device": lambda name: torch.device("cpu")}
        return readers.get(kind, lambda name: getattr(torch, name))(content)

    for step in tape["steps"]:
        _, packet, overload = step["name"].split(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload)
        made = operation(*value(step["args"]), **{name: value(item) for name, item in step["kwargs"].items()})
        for number, tensor in zip(step["out"], made if isinstance(made, (list, tuple)) else [made], strict=True):
            if number is not None:
                tensors[number] = tensor
    return tensors


def steps_of(tape: JSON, kind: str) -> list[JSON]:
    return [step for step in tape["steps"] if step["do"] == kind]


def names_of(tape: JSON) -> list[str]:
    """Operations by short name, launches by kernel, in order."""
    return [
        step["name"].split(".")[1] if step["do"] == "op" else step.get("kernel", step["do"]) for step in tape["steps"]
    ]

"""A recorded call: the tape that a submission's launcher left, and the values that an executor runs it on.

The launcher sees descriptions of tensors only (shape, strides, dtype); the values stay here until the tape is frozen.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grader.sandbox.executor import Executor, Input, Tape
from grader.sandbox.failures import NotCompilable
from grader.worker.wire import Tensor


@dataclass(frozen=True)
class Recorded:
    """One recorded call.

    Attributes:
        function: whose call it is.
        inputs: its tensors in the order in which they stand in the call, nested ones included.
        rules: what its launcher may do, as `[record.<function>]` of lab.toml has it.
    """

    function: str
    tape: Tape
    inputs: tuple[Input, ...]
    rules: dict[str, Any]
    executor: Executor
    timeout_s: float
    cotangents: tuple[Any, ...] = ()

    def run(self, *, mutable: tuple[str, ...] = (), timeout_s: float | None = None, **options: Any) -> dict[str, Any]:
        """Run the tape; see `Executor.run`. Of an autotuner's configurations the inputs' numbers choose."""
        if self.candidates > 1 and not {"candidate", "sample"} & options.keys():
            options["turn"] = zlib.crc32(b"".join(np.asarray(item.value.data).tobytes() for item in self.inputs[:1]))
        inputs = [replace(item, mutable=item.name.split("[")[0] in mutable) for item in self.inputs]
        return self.executor.run(
            self.tape,
            inputs,
            self.cotangents,
            self.rules,
            options,
            timeout_s=timeout_s or self.timeout_s,
            doing=f"running the kernels of `{self.function}`",
        )

    def run_heaviest(self, **options: Any) -> dict[str, Any]:
        """Run the tape with each of an autotuner's configurations that compiles; the reply that tells of most bytes.

        Raises:
            NotCompilable: none does. And see `run`.
        """
        replies: list[dict[str, Any]] = []
        for number in range(self.candidates):
            try:
                replies.append(self.run(candidate=number, **options))
            except NotCompilable:
                if number == self.candidates - 1 and not replies:
                    raise
        return max(replies, key=lambda reply: int(reply["traffic"]["loaded_bytes"] + reply["traffic"]["stored_bytes"]))

    @property
    def candidates(self) -> int:
        """The most configurations that one of its launches has."""
        return max((len(step.get("candidates", ())) for step in self.tape["steps"]), default=0) or 1

    @property
    def autotuned(self) -> bool:
        """Whether a launch has configurations to choose among."""
        return any("candidates" in step for step in self.tape["steps"])

    def compile(self, capabilities: Sequence[int]) -> Callable[[], Any]:
        """Begin to compile; the function that it returns waits for what `grader.kernels.compile` reads reports from."""
        doing = f"compiling the kernels of `{self.function}`"
        return self.executor.compile(self.tape, self.inputs, self.rules, capabilities, doing=doing)


class Described:
    """Takes a call's arguments apart: tensors become inputs, what the recorder gets is their descriptions.

    Args:
        parameters: the lab's names of the positional parameters.
        known: parameters whose integers the launcher may read.
    """

    def __init__(self, parameters: tuple[str, ...], known: tuple[str, ...]) -> None:
        self.inputs: list[Input] = []
        self._parameters, self._known = parameters, known

    def call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Descriptions in place of the tensors of a call."""
        names = (*self._parameters, *(f"argument {n}" for n in range(len(self._parameters), len(args))))
        described = [self.value(name, value) for name, value in zip(names, args, strict=False)]
        return described, {name: self.value(name, value) for name, value in kwargs.items()}

    def value(self, name: str, value: Any) -> Any:
        """A description where `value` is a tensor; lists, tuples and dicts of such item by item."""
        if isinstance(value, Tensor):
            self.inputs.append(Input(name, value))
            return self.tensor(name, value)
        if type(value) in (list, tuple):
            return type(value)(self.value(f"{name}[{n}]", item) for n, item in enumerate(value))
        if type(value) is dict:
            return {key: self.value(f"{name}[{key!r}]", item) for key, item in value.items()}
        return value

    def tensor(self, name: str, value: Tensor) -> dict[str, Any]:
        """What a launcher may know of a tensor."""
        return {
            "described": name,
            "dtype": value.dtype,
            "shape": list(value.shape),
            "strides": None if value.strides is None else list(value.strides),
            "offset": value.offset,
            "requires_grad": value.requires_grad,
            "values": value.data if name in self._known else None,
        }

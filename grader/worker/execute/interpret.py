"""Runs the programs of one launch in Triton's interpreter, in this process and in any order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from ..guards import ContractError
from .bounds import Bounds, OutOfBounds, Place
from .deciding import Decisions, Undecided, expecting
from .language import CannotInterpret, KernelRaised, language

Index = tuple[int, int, int]
Grid = tuple[int, int, int]


_DESCRIPTOR_RULES = frozenset(
    {"base must be 16-byte aligned", "stride must be 16-byte aligned", "last dim must be contiguous"}
)
"""What Triton's interpreter asserts of descriptors, as the hardware asks for it."""


class Stopped(Exception):
    """A program was stopped by what watches it: its inputs aren't complete."""


@dataclass(frozen=True)
class Lowered:
    """What compiling a launch made of it.

    Attributes:
        signature: Triton's type by parameter. constants: values that are known at compile time, by their path among the
            parameters: those that are declared so, and arguments that Triton made constant (1 and None).
        decisions: see `deciding`.
    """

    signature: Mapping[str, Any]
    constants: Mapping[tuple[int, ...], Any]
    decisions: Decisions


class Programs:
    """One launch, ready to run program by program; use it inside `interpreting()`.

    Args:
        function: the kernel's interpreted twin. args: tensors, numbers and descriptors by parameter.

    Raises:
        KernelRaised: the interpreter can't take an argument.
    """

    def __init__(self, function: Any, args: dict[str, Any], grid: Grid, lowered: Lowered) -> None:
        self.name = str(function.__name__)
        self.grid = grid
        self._run = function.rewrite()
        self._decisions = lowered.decisions
        self._arguments: dict[str, Any] = {}
        # What an argument becomes may use the language's operations (descriptors do).
        with language():
            for position, name in enumerate(function.arg_names):
                try:
                    value = lowered.constants[position,] if (position,) in lowered.constants else args[name]
                    kind = lowered.signature.get(name, "constexpr")
                    self._arguments[name] = argument(value, kind, lowered.constants, (position,))
                except Exception as problem:
                    raise _explained(problem, self.name, lambda *frame: "", f", given `{name}`") from problem

    def __len__(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    def index(self, number: int) -> Index:
        """Ids of the program of that number, in the order in which the interpreter runs them."""
        number, z = divmod(number, self.grid[2])
        x, y = divmod(number, self.grid[1])
        return x, y, z

    @contextmanager
    def ready(self) -> Iterator[None]:
        """The language is the interpreter's in the block, and the grid this launch's."""
        with (
            language(),
            expecting(self._decisions),
            torch.no_grad(),
            np.errstate(all="ignore"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # of deprecated forms, which are the compiler's to report
            interpreter.interpreter_builder.set_grid_dim(*self.grid)
            yield

    def run(self, number: int, bounds: Bounds) -> None:
        """Run one program, inside `ready`.

        Raises:
            OutOfBounds, ContractError, Stopped: the program did what it may not. KernelRaised: its code failed.
            CannotInterpret: this release's interpreter lacks an operation.
        """
        bounds.program = self.index(number)
        interpreter.interpreter_builder.set_grid_idx(*bounds.program)
        try:
            self._run(**self._arguments)
        except Exception as problem:
            raise _explained(problem, self.name, bounds.place) from problem


def argument(
    value: Any,
    kind: Any = "",
    constants: Mapping[tuple[int, ...], Any] = MappingProxyType({}),
    path: tuple[int, ...] = (),
) -> Any:
    """A launch's argument as a kernel finds it: numbers are scalars of the type that compiling gives them.

    Args:
        kind: Triton's type of it. constants, path: see `Lowered`; the value's own path.
    """
    if kind == "constexpr":
        return value
    if type(value) is tuple:
        kinds = kind if isinstance(kind, (tuple, list)) else [""] * len(value)
        inner = [(item, kinds[i], (*path, i)) for i, item in enumerate(value)]
        return tl.tuple([argument(constants.get(at, item), typed, constants, at) for item, typed, at in inner])
    if isinstance(value, TensorDescriptor):
        return _descriptor(value)
    if type(value) in (bool, int, float):
        return _number(value, kind)
    made = interpreter._implicit_cvt(value)
    return tl.tensor(made.handle, _typed(kind)) if kind and isinstance(made, tl.tensor) else made


def _typed(kind: str) -> Any:
    return tl.str_to_ty(kind, None)


def _number(value: Any, kind: str) -> Any:
    if type(value) is bool and not kind:
        return _scalar(value, np.bool_, tl.int1)
    if type(value) is float and kind in ("", "fp32"):
        return _scalar(value, np.float32, tl.float32)
    if not kind:
        return interpreter._implicit_cvt(value)
    wanted = _typed(kind)
    if wanted.is_floating():
        exact = _scalar(value, np.float32, tl.float32)
        return exact if wanted is tl.float32 else interpreter.interpreter_semantic.cast(exact, wanted)
    stored = interpreter._get_np_dtype(wanted)
    return _scalar(np.array(int(value)).astype(stored), stored, wanted)


def _scalar(value: Any, stored: Any, kind: Any) -> Any:
    return tl.tensor(interpreter.TensorHandle(np.array([value], stored), kind), kind)


def _descriptor(value: TensorDescriptor) -> Any:
    strides = [argument(stride) for stride in value.strides[:-1]]
    return interpreter.interpreter_semantic.make_tensor_descriptor(
        base=argument(value.base),
        shape=[argument(size) for size in value.shape],
        strides=[*strides, tl.constexpr(1)],
        block_shape=[tl.constexpr(size) for size in value.block_shape],
        padding_option=value.padding,
    )


def _explained(problem: BaseException, kernel: str, place: Place, what: str = "") -> Exception:
    """What to report of an exception in a kernel's body: it compiled, and failed in the interpreter."""
    innermost = problem
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    if isinstance(innermost, (OutOfBounds, CannotInterpret, Stopped)):
        return innermost
    where, trace = "", innermost.__traceback__
    while trace is not None:
        where = place(trace.tb_frame.f_code.co_filename, trace.tb_lineno) or where
        trace = trace.tb_next
    if isinstance(innermost, Undecided):
        return ContractError(f"{where}: {kernel}: {innermost}")
    if isinstance(innermost, ContractError):
        return innermost
    if isinstance(innermost, AssertionError) and str(innermost) in _DESCRIPTOR_RULES:
        return ContractError(f"{where}: {kernel} makes a tensor descriptor that no GPU takes: {innermost}.")
    if isinstance(innermost, AttributeError) and isinstance(innermost.obj, interpreter.InterpreterBuilder):
        return CannotInterpret(f"{where}: Triton's interpreter can't run this line of {kernel} ({innermost.name}).")
    text = next(iter(str(innermost).splitlines()), "")[:300]
    return KernelRaised(type(innermost).__name__, f"{text} (in {kernel}{what})", where)

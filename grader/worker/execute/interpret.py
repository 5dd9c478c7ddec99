"""Runs the programs of one launch in Triton's interpreter, in this process and in any order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from ..guards import ContractError
from .bounds import Bounds, OutOfBounds, Place
from .language import CannotInterpret, language

Index = tuple[int, int, int]
Grid = tuple[int, int, int]


_DESCRIPTOR_RULES = frozenset(
    {"base must be 16-byte aligned", "stride must be 16-byte aligned", "last dim must be contiguous"}
)
"""What Triton's interpreter asserts of descriptors, as the hardware asks for it."""


class Stopped(Exception):
    """A program was stopped by what watches it: its inputs aren't complete."""


class Programs:
    """One launch, ready to run program by program; use it inside `interpreting()`.

    Args:
        function: the kernel's interpreted twin. args: tensors, numbers and descriptors by parameter.
        constexprs: compile-time values by parameter.
    """

    def __init__(self, function: Any, args: dict[str, Any], constexprs: dict[str, Any], grid: Grid) -> None:
        self.name = str(function.__name__)
        self.grid = grid
        self._run = function.rewrite()
        # What an argument becomes may use the language's operations (descriptors do).
        with language():
            self._arguments = {**{name: argument(value) for name, value in args.items()}, **constexprs}

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
        with language(), torch.no_grad(), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of deprecated forms, which are the compiler's to report
            interpreter.interpreter_builder.set_grid_dim(*self.grid)
            yield

    def run(self, number: int, bounds: Bounds) -> None:
        """Run one program, inside `ready`.

        Raises:
            OutOfBounds, ContractError, Stopped: the program did what it may not. CannotInterpret: a GPU would run it.
        """
        bounds.program = self.index(number)
        interpreter.interpreter_builder.set_grid_idx(*bounds.program)
        try:
            self._run(**self._arguments)
        except Exception as problem:
            raise _explained(problem, self.name, bounds.place) from problem


def argument(value: Any) -> Any:
    """A launch's argument as a kernel finds it: numbers are scalars of the type that compiling gives them."""
    if type(value) is bool:
        return _scalar(value, np.bool_, tl.int1)
    if type(value) is float:
        return _scalar(value, np.float32, tl.float32)
    if type(value) is tuple:
        return tl.tuple([argument(item) for item in value])
    if isinstance(value, TensorDescriptor):
        return _descriptor(value)
    return interpreter._implicit_cvt(value)


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


def _explained(problem: BaseException, kernel: str, place: Place) -> Exception:
    """What to report of an exception in a kernel's body: what compiles fails in the interpreter alone."""
    innermost = problem
    while innermost.__cause__ is not None:
        innermost = innermost.__cause__
    if isinstance(innermost, (OutOfBounds, ContractError, CannotInterpret, Stopped)):
        return innermost
    where, trace = "", innermost.__traceback__
    while trace is not None:
        where = place(trace.tb_frame.f_code.co_filename, trace.tb_lineno) or where
        trace = trace.tb_next
    if isinstance(innermost, AssertionError) and str(innermost) in _DESCRIPTOR_RULES:
        return ContractError(f"{where}: {kernel} makes a tensor descriptor that no GPU takes: {innermost}.")
    text = f"{type(innermost).__name__}: {innermost}".splitlines()[0][:300]
    return CannotInterpret(
        f"{where + ': ' if where else ''}Triton's interpreter can't run this line of {kernel} ({text})."
    )

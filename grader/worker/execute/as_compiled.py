"""Operations whose interpreted result isn't what compiled code gives, where no rounding is the reason.

NumPy takes `+` of booleans for `or` and makes bytes of them where it shifts or divides, its maximum is NaN where PTX's
`max` gives the number (PTX ISA, max, "if one of the inputs is NaN, then the result is the non-NaN input"), and it says
nothing to hints that aren't true. A kernel that could tell where it runs would have two faces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from ..guards import ContractError
from ..interpreter_fixes import decode, is_raw
from .faster import stored_as

Array = npt.NDArray[Any]


def apply() -> None:
    """Mend the interpreter of this process; after `interpreter_fixes.apply`."""
    builder = interpreter.InterpreterBuilder
    for name in (name for name in dir(builder) if name.startswith(("create_icmp", "create_fcmp"))):
        setattr(builder, name, _truth(getattr(builder, name)))
    for name, on_bits in (
        ("create_add", np.logical_xor),
        ("create_sub", np.logical_xor),
        ("create_mul", np.logical_and),
    ):
        setattr(builder, name, _of_bits(getattr(builder, name), on_bits))
    for name, of_numbers in (("create_maxnumf", np.fmax), ("create_minnumf", np.fmin)):
        setattr(builder, name, _of_numbers(getattr(builder, name), of_numbers))
    for name in ("create_sdiv", "create_udiv", "create_srem", "create_urem"):
        setattr(builder, name, _defined(getattr(builder, name)))
    for name in ("create_shl", "create_lshr", "create_ashr"):
        setattr(builder, name, _within(getattr(builder, name)))
    for name in ("create_fp_to_si", "create_fp_to_ui"):
        setattr(builder, name, _held)
    builder.create_clampf = _clamped
    interpreter.ReduceOps.min_max = _min_max(interpreter.ReduceOps.min_max)
    interpreter.TensorHandle.__post_init__ = _typed(interpreter.TensorHandle.__post_init__)


def _typed(original: Callable[..., None]) -> Callable[..., None]:
    """Every result is held as its type says: a mask of bytes would be taken for indices."""

    def check(self: Any) -> None:
        original(self)
        stored = stored_as(self.dtype)
        if self.data.dtype != stored:
            self.data = self.data.astype(stored)

    return check


def _truth(original: Callable[..., Any]) -> Callable[..., Any]:
    """A comparison whose result is of bits; the interpreter's has the operands' type."""

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        return interpreter.TensorHandle(original(self, lhs, rhs).data.astype(bool), tl.int1)

    return operation


def _of_bits(original: Callable[..., Any], on_bits: Callable[..., Array]) -> Callable[..., Any]:
    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.dtype.scalar != tl.int1:
            return original(self, lhs, rhs)
        return interpreter.TensorHandle(on_bits(lhs.data.astype(bool), rhs.data.astype(bool)), tl.int1)

    return operation


def _of_numbers(original: Callable[..., Any], of_numbers: Callable[..., Array]) -> Callable[..., Any]:
    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        return original(self, lhs, rhs) if is_raw(lhs.dtype) else self.binary_op(lhs, rhs, of_numbers)

    return operation


def _defined(original: Callable[..., Any]) -> Callable[..., Any]:
    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if not rhs.data.all():
            raise ContractError("a whole number is divided by 0, which is undefined on a GPU.")
        return original(self, lhs, rhs)

    return operation


def _within(original: Callable[..., Any]) -> Callable[..., Any]:
    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if (rhs.data.astype(np.uint64) >= lhs.dtype.scalar.primitive_bitwidth).any():  # So are negative numbers.
            raise ContractError("a whole number is shifted by as many bits as it has, which is undefined on a GPU.")
        return original(self, lhs, rhs)

    return operation


def _held(self: Any, src: Any, dst_type: Any) -> Any:
    limits = np.iinfo(interpreter._get_np_dtype(dst_type))
    values = decode(src.data, src.dtype)
    if not ((values > limits.min - 1.0) & (values < limits.max + 1.0)).all():
        raise ContractError(
            f"NaN or a number that {dst_type.scalar} can't hold is converted to it, which is undefined."
        )
    return self.cast_impl(src, dst_type)


def _clamped(self: Any, value: Any, low: Any, high: Any, propagate: Any) -> Any:
    if propagate == ir.PROPAGATE_NAN.ALL:
        return self.ternary_op(value, low, high, np.clip)
    return self.ternary_op(value, low, high, lambda x, least, most: np.fmin(np.fmax(x, least), most))


def _min_max(original: Callable[..., Any]) -> Callable[..., Any]:
    def operation(self: Any, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        values = (input[0] if isinstance(input, tuple) else input).handle.data
        if idx_reduce_op is not None and values.dtype.kind == "f" and np.isnan(values).any():
            raise ContractError("the place of the largest or smallest number is asked for where one is NaN.")
        return original(self, input, val_reduce_op, idx_reduce_op)

    return operation


def _checked(name: str, check: Callable[[Array, int, int], bool]) -> Callable[..., Any]:
    def hint(input: Any, values: Any) -> Any:
        numbers = [value.value if isinstance(value, tl.constexpr) else value for value in _listed(values)]
        if isinstance(input, tl.tensor) and not input.dtype.is_ptr():
            data = np.atleast_1d(input.handle.data)
            if not all(check(data, axis, number) for axis, number in enumerate(numbers[: data.ndim])):
                raise ContractError(f"tl.{name} is told what isn't true here; a GPU's result is then undefined.")
        return input

    return hint


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple, tl.tuple)) else [values]


def _runs(data: Array, axis: int) -> Array:
    """Where along an axis a run of numbers that follow one another begins."""
    lines = np.moveaxis(data, axis, -1)
    begins = np.ones(lines.shape, bool)
    begins[..., 1:] = lines[..., 1:] != lines[..., :-1] + 1
    return lines[begins]


def _multiple_of(data: Array, axis: int, number: int) -> bool:
    return not (_runs(data, axis) % number).any()


def _contiguous(data: Array, axis: int, number: int) -> bool:
    groups = _groups(data, axis, number)
    return bool((groups == groups[..., :1] + np.arange(groups.shape[-1])).all())


def _constant(data: Array, axis: int, number: int) -> bool:
    groups = _groups(data, axis, number)
    return bool((groups == groups[..., :1]).all())


def _groups(data: Array, axis: int, number: int) -> Array:
    lines = np.moveaxis(data, axis, -1)
    size = min(number, lines.shape[-1])
    return lines[..., : lines.shape[-1] // size * size].reshape(*lines.shape[:-1], -1, size)


HINTS = {"multiple_of": _multiple_of, "max_contiguous": _contiguous, "max_constancy": _constant}
"""What the compiler believes, and how to look."""


def hints(scope: Any, owner: Any) -> None:
    """Set those of a module of the language to ones that look."""
    for name, check in HINTS.items():
        scope.set_attr(owner, name, _checked(name, check))

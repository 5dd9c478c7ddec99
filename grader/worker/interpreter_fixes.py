"""Repairs of Triton's interpreter (``TRITON_INTERPRET=1``), releases 3.6 to 3.8.

The interpreter stores bfloat16 as raw uint16 and float8 as raw uint8, and several operations compute on those bits:
``tl.dot`` and ``tl.sum`` of bfloat16, bfloat16 arithmetic and comparisons, conversions between integers and bfloat16.
Casts to bfloat16 truncate where a GPU rounds to nearest even, and casts to float8 round halves away and wrap where
a GPU saturates. `apply` replaces these operations by ones that decode the bits to float32, compute, and round back.

It also lets honest launchers through that fail for reasons of their surroundings: ``range(0, tensor, BLOCK)`` under
numpy >= 2.4 (3.6 only), and ``@triton.autotune``, which would ask a GPU driver for a benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

Array = npt.NDArray[Any]

_TORCH_FLOAT8 = {
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5b16: torch.float8_e5m2fnuz,
    tl.float8e4b8: torch.float8_e4m3fnuz,
}
_RAW = frozenset(kind.name for kind in (tl.bfloat16, *_TORCH_FLOAT8))
_FLOAT_ARITHMETIC = {
    "create_fadd": np.add,
    "create_fsub": np.subtract,
    "create_fmul": np.multiply,
    "create_fdiv": np.divide,
    "create_frem": np.fmod,
    "create_minimumf": np.minimum,
    "create_maximumf": np.maximum,
    "create_minnumf": np.fmin,
    "create_maxnumf": np.fmax,
}
_FLOAT_COMPARISONS = {
    "LT": np.less,
    "GT": np.greater,
    "LE": np.less_equal,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_applied = False


def is_raw(dtype: Any) -> bool:
    """Whether the interpreter holds values of this Triton dtype as bits of an unsigned integer."""
    return dtype.scalar.name in _RAW


def decode(data: Array, dtype: Any) -> Array:
    """Values of an interpreter array: float32 for raw bfloat16 and float8, else the array itself."""
    scalar = dtype.scalar
    if scalar == tl.bfloat16:
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if scalar in _TORCH_FLOAT8:
        bits = torch.from_numpy(np.array(data, dtype=np.uint8))
        values: Array = bits.view(_TORCH_FLOAT8[scalar]).to(torch.float32).numpy()
        return values
    return data


def encode(values: Array, dtype: Any) -> Array:
    """Bits that a GPU stores for `values`: round to nearest even, float8 saturates at its largest finite value."""
    scalar = dtype.scalar
    if scalar == tl.bfloat16:
        bits = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values)).view(np.uint32)
        rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(
            np.uint16
        )
        return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    if scalar in _TORCH_FLOAT8:
        kind = _TORCH_FLOAT8[scalar]
        limit = torch.finfo(kind).max
        # NaN passes clip unchanged, as it passes cvt.rn.satfinite on a GPU.
        clipped = np.clip(np.array(values, dtype=np.float32), -limit, limit)
        encoded: Array = torch.from_numpy(clipped).to(kind).view(torch.uint8).numpy()
        return encoded
    numpy_dtype = interpreter._get_np_dtype(dtype)
    return values.astype(numpy_dtype)


def tf32(values: Array) -> Array:
    """float32 `values` as tensor cores take them for a TF32 dot: 10 bits of mantissa, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values)).view(np.uint32)
    kept = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), kept.view(np.float32), values)


def apply() -> None:
    """Repair the interpreter of this process; call before a kernel is defined. A second call changes nothing."""
    global _applied
    if _applied:
        return
    _applied = True
    builder = interpreter.InterpreterBuilder
    _repair_dot(builder)
    _repair_casts(builder)
    _repair_arithmetic(builder)
    _repair_memory(builder)
    _repair_reductions()
    _repair_index()
    _repair_autotuner()


def _handle(data: Array, dtype: Any) -> Any:
    return interpreter.TensorHandle(data, dtype)


def _repair_dot(builder: Any) -> None:
    original = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        if not (is_raw(a.dtype) or is_raw(b.dtype)):
            if a.dtype.scalar == tl.float32 and input_precision == interpreter._ir.INPUT_PRECISION.TF32:
                a, b = (_handle(tf32(operand.data), operand.dtype) for operand in (a, b))
            return original(self, a, b, d, input_precision, max_num_imprecise_acc)
        product = np.matmul(decode(a.data, a.dtype), decode(b.data, b.dtype), dtype=np.float32)
        total = product + decode(d.data, d.dtype)
        return _handle(encode(total, d.dtype), d.dtype.scalar)

    builder.create_dot = create_dot


def _repair_casts(builder: Any) -> None:
    original_cast = builder.cast_impl
    original_fp_to_fp = builder.create_fp_to_fp

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if not (is_raw(src.dtype) or is_raw(dst_type)):
            return original_cast(self, src, dst_type)
        return _handle(encode(decode(src.data, src.dtype), dst_type), dst_type.scalar)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        # e4m3b15 has no twin in torch; rounding towards zero is what the interpreter's own code does.
        unknown = any(t.scalar == tl.float8e4b15 for t in (src.dtype, dst_type))
        if unknown or rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ:
            return original_fp_to_fp(self, src, dst_type, rounding_mode)
        return _handle(encode(decode(src.data, src.dtype), dst_type), dst_type.scalar)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.get_bf16 = lambda self, value: _handle(encode(np.array([value], np.float32), tl.bfloat16), tl.bfloat16)


def _repair_arithmetic(builder: Any) -> None:
    for name, function in _FLOAT_ARITHMETIC.items():
        setattr(builder, name, _binary(getattr(builder, name), function, rounds=True))
    for suffix, function in _FLOAT_COMPARISONS.items():
        for order in ("O", "U"):
            name = f"create_fcmp{order}{suffix}"
            if hasattr(builder, name):
                setattr(builder, name, _binary(getattr(builder, name), function, rounds=False))
    original_fma = builder.create_fma

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not is_raw(z.dtype):
            return original_fma(self, x, y, z)
        total = decode(x.data, x.dtype) * decode(y.data, y.dtype) + decode(z.data, z.dtype)
        return _handle(encode(total, z.dtype), z.dtype.scalar)

    builder.create_fma = create_fma


def _binary(original: Callable[..., Any], function: Callable[..., Array], *, rounds: bool) -> Callable[..., Any]:
    """The operation `function` on decoded values; `rounds`: the result has the operands' dtype, else it is a bool."""

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if not is_raw(lhs.dtype):
            return original(self, lhs, rhs)
        result = function(decode(lhs.data, lhs.dtype), decode(rhs.data, rhs.dtype))
        return _handle(encode(result, lhs.dtype), lhs.dtype.scalar) if rounds else _handle(result, tl.int1)

    return operation


def _repair_memory(builder: Any) -> None:
    original_rmw = builder.create_atomic_rmw
    original_block_load = builder.create_tensor_pointer_load
    original_descriptor_load = builder.create_descriptor_load
    nan_padding = interpreter._ir.PADDING_OPTION.PAD_NAN

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if op == interpreter._ir.ATOMIC_OP.XCHG and val.data.dtype.kind == "f":
            # The native operation exchanges integers only.
            bits = _handle(val.data.view(f"i{val.data.itemsize}"), tl.dtype(f"int{8 * val.data.itemsize}"))
            old = original_rmw(self, op, ptr, bits, mask, sem, scope)
            return _handle(old.data.view(val.data.dtype), val.dtype.scalar)
        if val.dtype.scalar != tl.bfloat16 or op != interpreter._ir.ATOMIC_OP.FADD:
            return original_rmw(self, op, ptr, val, mask, sem, scope)
        old = np.zeros(ptr.data.shape, np.uint16)
        # Lane by lane, because several lanes may add to one address.
        for lane in np.ndindex(ptr.data.shape):
            if mask.data[lane]:
                address, whole = ptr.data[lane].reshape(1), np.ones(1, bool)
                found = interpreter._interpreter.load(address, whole, np.zeros(1, np.uint16), np.dtype(np.uint16))
                total = decode(found, tl.bfloat16) + decode(val.data[lane].reshape(1), tl.bfloat16)
                interpreter._interpreter.store(address, encode(total, tl.bfloat16), whole)
                old[lane] = found[0]
        return _handle(old, val.dtype.scalar)

    def nan_filled(self: Any, pointers: Any, masks: Array, cache: Any, eviction: Any, volatile: bool) -> Any:
        dtype = pointers.get_element_ty()
        fill = encode(np.full(pointers.data.shape, np.nan, np.float32), dtype)
        return self.create_masked_load(
            pointers, _handle(masks, tl.int1), _handle(fill, dtype), cache, eviction, volatile
        )

    def create_tensor_pointer_load(
        self: Any, ptr: Any, boundary_check: Any, padding: Any, cache: Any, eviction: Any, volatile: Any
    ) -> Any:
        if padding != nan_padding or not is_raw(ptr.base.get_element_ty()):
            return original_block_load(self, ptr, boundary_check, padding, cache, eviction, volatile)
        pointers, masks = ptr.materialize_pointers(boundary_check)
        return nan_filled(self, pointers, masks, cache, eviction, volatile)

    def create_descriptor_load(self: Any, desc: Any, indices: Any, cache: Any, eviction: Any) -> Any:
        if desc.padding != nan_padding or not is_raw(desc.base.get_element_ty()):
            return original_descriptor_load(self, desc, indices, cache, eviction)
        pointers, masks = desc.materialize_pointers(indices)
        return nan_filled(self, pointers, masks, cache, eviction, False)

    builder.create_atomic_rmw = create_atomic_rmw
    builder.create_tensor_pointer_load = create_tensor_pointer_load
    builder.create_descriptor_load = create_descriptor_load


def _repair_reductions() -> None:
    original = interpreter.ReduceOps.sum

    def total(self: Any, source: Any) -> Any:
        if not is_raw(source.dtype):
            return original(self, source)
        values = decode(source.handle.data, source.dtype)
        bits = encode(np.asarray(np.sum(values, axis=self.axis, keepdims=self.keep_dims)), source.dtype)
        return self.to_tensor(bits if bits.shape else bits.item(), source.dtype)

    interpreter.ReduceOps.sum = total


def _repair_index() -> None:
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        # 3.6 calls int() on an array of one element and one dimension, which numpy >= 2.4 refuses.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch


def _repair_autotuner() -> None:
    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        """Equal times without a run, so that the first configuration after pruning is the one that's used."""
        conflicts = meta.keys() & config.kwargs.keys()
        if conflicts:
            raise ValueError(
                f"Conflicting meta-parameters: {', '.join(sorted(conflicts))}. The launch passes what "
                "@triton.autotune tunes; pass it in one place."
            )
        return [1.0, 1.0, 1.0]

    Autotuner._bench = bench

"""CUDA's device library in NumPy: what `tl.extra.libdevice` is for interpreted kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


def _by_torch(function: Callable[..., Any]) -> Callable[..., Array]:
    def apply(*values: Array) -> Array:
        return np.asarray(function(*(torch.from_numpy(np.ascontiguousarray(value)) for value in values)))

    return apply


def _away_from_zero(values: Array) -> Array:
    """Rounding of halves as C's `round` has it."""
    rounded: Array = np.copysign(np.floor(np.abs(values) + values.dtype.type(0.5)), values)
    return rounded


_ALIKE = (
    *(
        "fmod",
        "hypot",
        "copysign",
        "nextafter",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "cbrt",
    ),
    *("floor", "ceil", "trunc", "rint", "abs", "isnan", "isinf", "isfinite"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh"),
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _ALIKE},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: _by_torch(getattr(torch, name)) for name in ("erf", "erfc", "erfinv", "lgamma")},
    **{name: _by_torch(getattr(torch.special, name)) for name in ("erfcx", "log_ndtr")},
    "fabs": np.abs,
    "llabs": np.abs,
    "atan2": np.arctan2,
    "nearbyint": np.rint,
    "llrint": np.rint,
    "round": _away_from_zero,
    "llround": _away_from_zero,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "rcp": lambda x: 1 / x,
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "sinpi": lambda x: np.sin(np.pi * x),
    "cospi": lambda x: np.cos(np.pi * x),
    "pow": np.power,
    "powi": np.power,
    "remainder": lambda x, y: x - np.rint(x / y) * y,
    "rhypot": lambda x, y: 1 / np.hypot(x, y),
    "fdim": lambda x, y: np.maximum(x - y, 0),
    "fma": lambda x, y, z: x * y + z,
    "saturate": lambda x: np.clip(np.nan_to_num(x, posinf=1, neginf=0), 0, 1),
    "finite": np.isfinite,
    "signbit": np.signbit,
    "fdivide": np.divide,
    "normcdf": _by_torch(torch.special.ndtr),
    "normcdfinv": _by_torch(torch.special.ndtri),
    "ldexp": np.ldexp,
    "scalbn": np.ldexp,
    "ilogb": lambda x: np.frexp(x)[1] - 1,
    "logb": lambda x: np.frexp(x)[1] - 1,
    "tgamma": lambda x: np.exp(_by_torch(torch.lgamma)(x)),
    "popc": np.bitwise_count,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "hadd": lambda x, y: (x.astype(np.int64) + y) >> 1,
    "rhadd": lambda x, y: (x.astype(np.int64) + y + 1) >> 1,
    "mul24": np.multiply,
    "sad": lambda x, y, z: np.abs(x.astype(np.int64) - y) + z,
}
_BITS = {"float_as_int", "float_as_uint", "int_as_float", "uint_as_float", "double_as_longlong", "longlong_as_double"}


_TYPES: dict[str, type[Any]] = {
    "float": np.float32,
    "double": np.float64,
    "int": np.int32,
    "uint": np.uint32,
    "ll": np.int64,
    "ull": np.uint64,
}
_CONVERSION = re.compile(r"(float|double|u?int|u?ll)2(float|double|u?int|u?ll)(?:_(r[nzdu]))?")
_DIRECTED = re.compile(r"[fd]?(add|sub|mul|div|rcp|sqrt|fma)f?_(r[nzdu])")
_EXACTLY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x,
    "fma": lambda x, y, z: x * y + z,
}
_WHOLE = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def _directed(exact: Array, kind: Any, mode: str) -> Array:
    """A wider number in a type, rounded to nearest, towards zero, down or up."""
    near = exact.astype(kind)
    if mode == "rn":
        return near
    back = near.astype(exact.dtype)
    below, above = back < exact, back > exact
    up = (below & (mode == "ru")) | (below & (mode == "rz") & (exact < 0))
    down = (above & (mode == "rd")) | (above & (mode == "rz") & (exact > 0))
    moved = np.where(up, np.nextafter(near, kind(np.inf)), near)
    return np.where(down, np.nextafter(near, kind(-np.inf)), moved)


def _converted(source: str, target: str, mode: str) -> Callable[[Array], Array]:
    kind = _TYPES[target]

    def convert(values: Array) -> Array:
        exact = values.astype(_TYPES[source]).astype(np.longdouble)
        if issubclass(kind, np.floating):
            return _directed(exact, kind, mode)
        limits = np.iinfo(kind)
        whole = np.clip(_WHOLE[mode](np.where(np.isnan(exact), 0, exact)), limits.min, limits.max)
        return np.array([int(value) for value in whole.flat], kind).reshape(whole.shape)

    return convert


def _operated(name: str, mode: str) -> Callable[..., Array]:
    return lambda *values: _directed(
        _EXACTLY[name](*(value.astype(np.longdouble) for value in values)), values[0].dtype.type, mode
    )


def _unsigned(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _leading_zeros(values: Array) -> Array:
    rest, length = _unsigned(values).copy(), np.zeros(values.shape, np.int32)
    while rest.any():
        length += rest != 0
        rest >>= rest.dtype.type(1)
    return 8 * values.dtype.itemsize - length


def _first_set(values: Array) -> Array:
    bits = _unsigned(values)
    lowest = bits & (~bits + bits.dtype.type(1))
    return np.where(bits == 0, 0, np.bitwise_count(lowest - bits.dtype.type(1)).astype(np.int32) + 1)


def _turned(values: Array) -> Array:
    """Bits in reverse."""
    raw = _unsigned(values)[..., None].view(np.uint8)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")[..., ::-1]
    turned = np.packbits(bits, axis=-1, bitorder="little").view(raw.dtype).copy()
    return turned.view(values.dtype)[..., 0]


def _picked_bytes(x: Array, y: Array, selector: Array) -> Array:
    both = _unsigned(x).astype(np.uint64) | (_unsigned(y).astype(np.uint64) << np.uint64(32))
    picks = [(_unsigned(selector).astype(np.uint64) >> np.uint64(4 * i)) & np.uint64(7) for i in range(4)]
    parts = [((both >> (np.uint64(8) * pick)) & np.uint64(255)) << np.uint64(8 * i) for i, pick in enumerate(picks)]
    picked: Array = (parts[0] | parts[1] | parts[2] | parts[3]).astype(np.uint32).view(np.int32)
    return picked


def _high_product(x: Array, y: Array) -> Array:
    product: Array = (x.astype(object) * y.astype(object)) >> (8 * x.dtype.itemsize)
    return product.astype(x.dtype)


def _low_24(values: Array) -> Array:
    low: Array = values & values.dtype.type(0xFFFFFF)
    return low


def _of_words(high: Array, low: Array) -> Array:
    words = np.stack([_unsigned(low), _unsigned(high)], axis=-1)
    return np.ascontiguousarray(words).view(np.float64)[..., 0]


def _word(number: int) -> Callable[[Array], Array]:
    return lambda values: np.ascontiguousarray(values)[..., None].view(np.int32)[..., number]


_FUNCTIONS |= {
    **{name: _by_torch(getattr(torch.special, f"bessel_{name}")) for name in ("j0", "j1", "y0", "y1")},
    "cyl_bessel_i0": _by_torch(torch.special.i0),
    "cyl_bessel_i1": _by_torch(torch.special.i1),
    "erfcinv": lambda x: _by_torch(torch.erfinv)(1 - x),
    "norm3d": lambda x, y, z: np.sqrt(x * x + y * y + z * z),
    "rnorm3d": lambda x, y, z: 1 / np.sqrt(x * x + y * y + z * z),
    "norm4d": lambda x, y, z, w: np.sqrt(x * x + y * y + z * z + w * w),
    "rnorm4d": lambda x, y, z, w: 1 / np.sqrt(x * x + y * y + z * z + w * w),
    "clz": _leading_zeros,
    "ffs": _first_set,
    "brev": _turned,
    "byte_perm": _picked_bytes,
    **dict.fromkeys(("mulhi", "umulhi", "mul64hi", "umul64hi"), _high_product),
    "umul24": lambda x, y: _low_24(x) * _low_24(y),
    **{f"u{name}": _FUNCTIONS[name] for name in ("sad", "hadd", "rhadd")},
    "hiloint2double": _of_words,
    "double2loint": _word(0),
    "double2hiint": _word(1),
}


def function_of(symbol: str) -> Callable[..., Array] | None:
    """The NumPy function of a symbol such as ``__nv_fast_expf``; None for one that isn't known here."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    converted, directed = _CONVERSION.fullmatch(name), _DIRECTED.fullmatch(name)
    if converted:
        return _converted(converted[1], converted[2], converted[3] or "rn")
    if directed:
        return _operated(directed[1], directed[2])
    if name.endswith("_rn"):
        name = name[:-3]
        if name.startswith(("f", "d", "u")) and name not in _FUNCTIONS:
            name = name[1:]
    for end in ("", "f", "d", "ll"):
        if name.endswith(end) and name.removesuffix(end) in _FUNCTIONS:
            return _FUNCTIONS[name.removesuffix(end)]
    return None


def is_bitcast(symbol: str) -> bool:
    return symbol.removeprefix("__nv_") in _BITS

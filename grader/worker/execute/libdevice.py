"""CUDA's device library in NumPy: what `tl.extra.libdevice` is for interpreted kernels."""

from __future__ import annotations

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
    "cyl_bessel_i0": np.i0,
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


def function_of(symbol: str) -> Callable[..., Array] | None:
    """The NumPy function of a symbol such as ``__nv_fast_expf``; None for one that isn't known here."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
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

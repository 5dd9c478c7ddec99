"""Launches the zoo's kernels on a Hopper card and holds what they write to torch's result in float64.

The zoo is compiled without a GPU for lab09's checks; here the same functions, tiles and options run. Kernels for other
capabilities, and those that only look like something (`prefetched` wants a tensor map in memory), are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from grader.course import Course
from grader.judge.hopper import zoo
from grader.kernels.zoo.build import load
from grader.kernels.zoo.specimen import Specimen

HEADS, SEQ_Q, SEQ_K = 8, 512, 1024
ROWS, COLUMNS, INNER = 512, 256, 1024
LOG2_E = 1.4426950408889634
LEFT_OUT = frozenset({"prefetched"})
SEED = 9
_TYPES = {
    "fp16": (torch.float16, gl.float16),
    "bf16": (torch.bfloat16, gl.bfloat16),
    "fp8e4nv": (torch.float8_e4m3fn, gl.float8e4nv),
}
_ULP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float8_e4m3fn: 2.0**-3}
OUTPUT_ULPS = 4.0
"""Half an ulp for rounding P, half for O, and room for exp2 and the order of sums; a wrong key is hundreds."""
PRODUCT_SHARE = 2.0**-10
"""Of a product's largest entry: wgmma adds in float32 without rounding to nearest (fp8: with about 13 bits)."""
EIGHT_BIT_SHARE = 2.0**-7


@dataclass(frozen=True)
class Outcome:
    """What one launch gave.

    Attributes:
        compiled: Triton's compiled kernel, the one that ran. error, bound: largest absolute error, and what's allowed.
    """

    compiled: Any
    error: float
    bound: float

    @property
    def right(self) -> bool:
        return self.error <= self.bound  # false for NaN too


def runnable(course: Course) -> list[Specimen]:
    """The zoo's specimens that run on Hopper, public ones first."""
    files = (zoo.PUBLIC, course.assignment_dir("lab09_fa3_probe") / "test_hidden_kernels.py")
    every = [specimen for file in files for specimen in load(Path(file)).SPECIMENS]
    return [specimen for specimen in every if specimen.capability == 90 and specimen.name not in LEFT_OUT]


def run(specimen: Specimen) -> Outcome:
    """Launch once on fresh inputs and compare.

    Raises:
        LookupError: nobody wrote down how this kernel is launched.
    """
    torch.manual_seed(SEED)
    for first, launcher in _LAUNCHERS.items():
        if next(iter(specimen.signature)) == first:
            return launcher(specimen)
    raise LookupError(f"{specimen.name}: no launcher for a kernel whose arguments begin with {specimen.signature}")


def _element(specimen: Specimen, name: str) -> tuple[torch.dtype, Any]:
    kind = specimen.signature[name].removeprefix("*").removeprefix("tensordesc<")
    return _TYPES[kind.partition("[")[0]]


def _descriptor(specimen: Specimen, tensor: torch.Tensor, rows: int, columns: int, element: Any) -> Any:
    shape = [rows, columns]
    if not specimen.kernel.is_gluon():
        return TensorDescriptor.from_tensor(tensor, shape)
    return GluonDescriptor.from_tensor(tensor, shape, gl.NVMMASharedLayout.get_default_for(shape, element))


def attention_inputs(dtype: torch.dtype, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(HEADS · SEQ, head_dim) tensors; the scores rise along the keys, so that the maximum moves."""
    q, k, v = (torch.randn(HEADS, rows, head_dim, device="cuda") for rows in (SEQ_Q, SEQ_K, SEQ_K))
    q[..., 0] = 2.0
    k[..., 0] += torch.linspace(-4, 4, SEQ_K, device="cuda") * math.sqrt(head_dim) / 4
    q, k, v = (x.to(dtype).reshape(-1, head_dim).contiguous() for x in (q, k, v))
    return q, k, v


def attention_truth(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O (HEADS · SEQ_Q, head_dim) and LSE (HEADS · SEQ_Q) in float64."""
    heads = [_wide(x).reshape(HEADS, -1, x.shape[1]) for x in (q, k, v)]
    scores = heads[0] @ heads[1].mT / math.sqrt(q.shape[1])
    o = torch.softmax(scores, -1) @ heads[2]
    return o.reshape(q.shape), torch.logsumexp(scores, -1).reshape(-1)


def _attention(specimen: Specimen) -> Outcome:
    constants = dict(specimen.constexprs)
    block_m, block_n, head_dim = (constants[name] for name in ("BLOCK_M", "BLOCK_N", "HEAD_DIM"))
    dtype, element = _element(specimen, next(iter(specimen.signature)))
    q, k, v = attention_inputs(dtype, head_dim)
    o = torch.full_like(q, math.nan)
    lse = torch.full((q.shape[0],), math.nan, device="cuda")
    tensors: list[Any] = [q, k, v, o]
    if "q_desc" in specimen.signature:
        rows = (block_m, block_n, block_n)
        tensors = [_descriptor(specimen, x, r, head_dim, element) for x, r in zip((q, k, v), rows, strict=True)]
        tensors += [o, lse] if "o_ptr" in specimen.signature else [_descriptor(specimen, o, block_m, head_dim, element)]
    grid = (SEQ_Q // block_m, HEADS)
    compiled = specimen.kernel[grid](
        *tensors, SEQ_Q, SEQ_K, LOG2_E / math.sqrt(head_dim), **constants, **specimen.options
    )
    want, want_lse = attention_truth(q, k, v)
    error, bound = _error(o, want), OUTPUT_ULPS * _ULP[dtype] * float(want.abs().max())
    if "lse_ptr" in specimen.signature and not _error(lse, want_lse) <= 1e-3:
        error = math.inf
    return Outcome(compiled, error, bound)


def _product(specimen: Specimen) -> Outcome:
    constants = dict(specimen.constexprs)
    block_m, block_n = constants["BLOCK_M"], constants["BLOCK_N"]
    dtype, element = _element(specimen, next(iter(specimen.signature)))
    if "b_desc" not in specimen.signature and "b_ptr" not in specimen.signature:
        return _copy(specimen, dtype, element, block_m, block_n)
    a, b = (torch.randn(rows, INNER, device="cuda").to(dtype) for rows in (ROWS, COLUMNS))
    half_out = "c_desc" in specimen.signature
    c = torch.full((ROWS, COLUMNS), math.nan, device="cuda", dtype=torch.float16 if half_out else torch.float32)
    tensors: list[Any] = [a, b]
    if "a_desc" in specimen.signature:
        block_k = constants["BLOCK_K"]
        tensors = [_descriptor(specimen, x, r, block_k, element) for x, r in ((a, block_m), (b, block_n))]
    last: list[Any] = (
        [_descriptor(specimen, c, block_m, block_n, gl.float16), INNER] if half_out else [c, COLUMNS, INNER]
    )
    grid = (ROWS // block_m, COLUMNS // block_n)
    compiled = specimen.kernel[grid](*tensors, *last, **constants, **specimen.options)
    want = _wide(a) @ _wide(b).mT
    share = EIGHT_BIT_SHARE if dtype == torch.float8_e4m3fn else PRODUCT_SHARE
    return Outcome(compiled, _error(c, want), share * float(want.abs().max()))


def _copy(specimen: Specimen, dtype: torch.dtype, element: Any, rows: int, columns: int) -> Outcome:
    a = torch.randn(ROWS, COLUMNS, device="cuda").to(dtype)
    c = torch.full_like(a, math.nan)
    tensors = [_descriptor(specimen, x, rows, columns, element) for x in (a, c)]
    grid = (ROWS // rows, COLUMNS // columns)
    compiled = specimen.kernel[grid](*tensors, **dict(specimen.constexprs), **specimen.options)
    return Outcome(compiled, _error(c, _wide(a)), 0.0)


def _error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest absolute error; NaN when something wasn't written."""
    return float((_wide(got) - want).abs().max())


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In float64; by way of float32, which every 8-bit float converts to."""
    return x.float().double() if x.itemsize < 4 else x.double()


_LAUNCHERS: dict[str, Callable[[Specimen], Outcome]] = {
    "q_desc": _attention,
    "q_ptr": _attention,
    "a_desc": _product,
    "a_ptr": _product,
}


def attention_tflops(specimen: Specimen, batch: int, heads: int, length: int) -> tuple[float, float]:
    """(median ms, TFLOP/s) of `attention_specialised` without a mask, by Triton's own timer."""
    constants = dict(specimen.constexprs)
    block_m, block_n, head_dim = (constants[name] for name in ("BLOCK_M", "BLOCK_N", "HEAD_DIM"))
    dtype, element = _element(specimen, "q_desc")
    q, k, v = (torch.randn(batch * heads * length, head_dim, device="cuda").to(dtype) for _ in range(3))
    o, lse = torch.empty_like(q), torch.empty(q.shape[0], device="cuda")
    rows = ((q, block_m), (k, block_n), (v, block_n))
    descriptors = [_descriptor(specimen, x, r, head_dim, element) for x, r in rows]

    def launch() -> None:
        specimen.kernel[(length // block_m, batch * heads)](
            *descriptors, o, lse, length, length, LOG2_E / math.sqrt(head_dim), **constants, **specimen.options
        )

    median_ms = float(triton.testing.do_bench(launch, warmup=50, rep=300, return_mode="median"))
    return median_ms, 4.0 * batch * heads * length**2 * head_dim / median_ms / 1e9

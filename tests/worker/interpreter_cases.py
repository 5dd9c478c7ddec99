"""Run as a script under TRITON_INTERPRET=1: computes small cases with or without the repairs, prints JSON.

A process of its own for each, because a repair can't be taken back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@triton.jit
def dot_kernel(a, b, c, OUT: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)).to(OUT))


@triton.jit
def cast_kernel(a, c, OUT: tl.constexpr):
    i = tl.arange(0, 256)
    tl.store(c + i, tl.load(a + i).to(OUT))


@triton.jit
def arithmetic_kernel(a, b, c):
    i = tl.arange(0, 256)
    x, y = tl.load(a + i), tl.load(b + i)
    z = tl.where(x > y, x * y + x, -x)
    tl.store(c + i, tl.maximum(z, tl.full([256], -1.5, tl.bfloat16)))


@triton.jit
def sum_kernel(a, c):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(c + i, tl.sum(tl.load(a + at), 1))


@triton.jit
def atomic_kernel(a, c):
    i = tl.arange(0, 16)
    tl.atomic_add(c + i * 0, tl.load(a + i))


@triton.jit
def range_kernel(n, c):
    total = 0
    stop = tl.load(n)
    for start in range(0, stop, 4):
        total += start
    tl.store(c, total)


@triton.jit
def pad_kernel(a, c):
    block = tl.make_block_ptr(a, (8,), (1,), (0,), (16,), (0,))
    x = tl.load(block, boundary_check=(0,), padding_option="nan")
    tl.store(c + tl.arange(0, 16), x.to(tl.float32))


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned_kernel(c, n, BLOCK: tl.constexpr):
    tl.store(c, BLOCK)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(((got.double() - want.double()).abs() / want.double().abs().clamp_min(1e-3)).nan_to_num(1e9).max())


def dot(kind: torch.dtype) -> float:
    a, b = (torch.randn(16, 16).to(kind) for _ in range(2))
    c = torch.full((16, 16), float("nan"))
    dot_kernel[(1,)](a, b, c, tl.float32)
    want = a.double() @ b.double()
    return float(((c.double() - want).abs() / want.abs().clamp_min(0.1)).nan_to_num(1e9).max())


def cast(source: torch.dtype, kind: torch.dtype, name: str) -> bool:
    a = (torch.randn(256) * 8).to(source)
    a[:4] = torch.tensor([0.0, 1.00390625, 1.01171875, -2.0078125]).to(source)
    c = torch.zeros(256).to(kind)
    cast_kernel[(1,)](a, c, getattr(tl, name))
    return torch.equal(c.to(torch.float32), a.to(kind).to(torch.float32))


def saturated() -> list[float]:
    a = torch.full((256,), 1e6)
    c = torch.zeros(256).to(torch.float8_e4m3fn)
    cast_kernel[(1,)](a, c, tl.float8e4nv)
    return [float(c[0])]


def arithmetic() -> bool:
    a, b = (torch.randn(256).bfloat16() for _ in range(2))
    c = torch.zeros(256).bfloat16()
    arithmetic_kernel[(1,)](a, b, c)
    return torch.equal(c, torch.where(a > b, a * b + a, -a).clamp_min(-1.5))


def row_sum() -> float:
    a = torch.randn(16, 16).abs().bfloat16()
    c = torch.zeros(16).bfloat16()
    sum_kernel[(1,)](a, c)
    return relative_error(c, a.double().sum(1))


def atomic() -> float:
    c = torch.zeros(16).bfloat16()
    atomic_kernel[(1,)](torch.ones(16).bfloat16(), c)
    return float(c[0])


def ranged() -> int:
    c = torch.zeros(1, dtype=torch.int32)
    range_kernel[(1,)](torch.tensor([10], dtype=torch.int32), c)
    return int(c)


def padded() -> list[bool]:
    c = torch.zeros(16)
    pad_kernel[(1,)](torch.ones(16).bfloat16(), c)
    return [bool((c[:8] == 1).all()), bool(c[8:].isnan().all())]


def tuned() -> int:
    c = torch.zeros(1, dtype=torch.int32)
    tuned_kernel[(1,)](c, 1)
    return int(c)


def main() -> None:
    if sys.argv[1] == "repaired":
        from grader.worker import interpreter_fixes

        interpreter_fixes.apply()
        interpreter_fixes.apply()
    cases = {
        "dot_bfloat16": lambda: dot(torch.bfloat16),
        "dot_float16": lambda: dot(torch.float16),
        "dot_float8_e4m3": lambda: dot(torch.float8_e4m3fn),
        "dot_float8_e5m2": lambda: dot(torch.float8_e5m2),
        "cast_float32_bfloat16": lambda: cast(torch.float32, torch.bfloat16, "bfloat16"),
        "cast_float32_float8": lambda: cast(torch.float32, torch.float8_e4m3fn, "float8e4nv"),
        "cast_bfloat16_float8": lambda: cast(torch.bfloat16, torch.float8_e5m2, "float8e5"),
        "cast_int32_bfloat16": lambda: cast(torch.int32, torch.bfloat16, "bfloat16"),
        "cast_bfloat16_int32": lambda: cast(torch.bfloat16, torch.int32, "int32"),
        "cast_float16_bfloat16": lambda: cast(torch.float16, torch.bfloat16, "bfloat16"),
        "cast_float8_float32": lambda: cast(torch.float8_e4m3fn, torch.float32, "float32"),
        "saturated": saturated,
        "arithmetic_bfloat16": arithmetic,
        "sum_bfloat16": row_sum,
        "atomic_bfloat16": atomic,
        "range_over_tensor": ranged,
        "pad_nan_bfloat16": padded,
        "autotune": tuned,
    }
    results: dict[str, object] = {"triton": triton.__version__}
    for name, case in cases.items():
        torch.manual_seed(7)
        try:
            results[name] = case()
        except Exception as error:  # noqa: BLE001 - what an unrepaired interpreter raises is a result here
            results[name] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(results))


if __name__ == "__main__":
    main()

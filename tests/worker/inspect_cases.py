"""Run as a script: records example launchers, and compiles what their tapes launch. Prints JSON: case → reports."""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime.driver import driver

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels"), str(HERE), str(HERE / "execute")]

import fa2_example as fa2  # noqa: E402
import other_helpers  # noqa: E402
from other_helpers import scaled as scaled_elsewhere  # noqa: E402
from running import leaf  # noqa: E402

from grader.profiles import load_profile  # noqa: E402
from grader.worker import inspect_kernels, record  # noqa: E402
from grader.worker.calls import Arguments  # noqa: E402
from grader.worker.execute.describing import descriptions  # noqa: E402
from grader.worker.execute.kernels import Kernels  # noqa: E402
from grader.worker.stand_in_driver import StandInDriver  # noqa: E402
from grader.worker.tape import validate  # noqa: E402
from grader.worker.tensors import DTYPE_NAMES  # noqa: E402

FACTOR = tl.constexpr(2.0)
RULES = {"allow": ["moves"], "scale": [], "rope": [], "known": []}


@triton.jit
def scaled(x):
    return x * FACTOR


@triton.jit
def helpers_kernel(x, y, n, OP: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr = 64):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    v = scaled(v) + scaled_elsewhere(v) + other_helpers.FACTOR + tl.sum(v, 0)
    tl.store(y + i, OP(v).to(DTYPE), mask=i < n)


@triton.jit
def tiny_dot_kernel(x, y):
    i = tl.arange(0, 8)
    at = i[:, None] * 8 + i[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))  # refused


@triton.jit
def add_kernel(x, total):
    tl.atomic_add(total, tl.load(x + tl.program_id(0)))


@gluon.jit
def gluon_kernel(x, y, n, LAYOUT: gl.constexpr, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    gl.store(y + i, gl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def tuned_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def in_gluon(x):
    y = torch.empty_like(x)
    gluon_kernel[(1,)](x, y, 64, gl.BlockedLayout([4], [32], [4], [0]), 512)
    return y


def helpers(x):
    y = torch.empty_like(x)
    helpers_kernel[(1,)](x, y, 64, scaled, tl.float32)
    return y


def tiny_dot(x):
    y = torch.empty_like(x)
    tiny_dot_kernel[(1,)](x, y)
    return y


def total(x):
    y = torch.zeros(1, device=x.device)
    add_kernel[(64,)](x, y)
    return y


def twice_tuned(x):
    y = torch.empty_like(x)
    for _ in range(2):
        tuned_kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, y, 64)
    return y


def spilling(q, k, v):
    return fa2.forward(q, k, v, block_m=128, block_n=128)


def hungry(q, k, v):
    return fa2.forward(q, k, v, block_m=128, block_n=128, num_warps=8, num_stages=8)


def compiled(function, tensors, capabilities, **options):
    """Reports of what one call launches."""
    target = load_profile(ROOT, "h100-sxm").model_dump(mode="json")
    driver.set_active(StandInDriver(target, "cpu"))
    named = dict(zip(inspect.signature(function).parameters, tensors, strict=False))
    described = {
        name: record.Description(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.stride())
        for name, tensor in named.items()
    }
    tape = record.run(
        function,
        list(described.values()),
        {},
        target=target,
        bound=described,
        cotangents=[],
        rules={**RULES, "mutable": []},
        history=record.History(str(HERE)),
    )
    tape = json.loads(json.dumps(tape))
    validate(tape)
    arguments = Arguments(None)
    arguments.name({name: arguments.leaf(leaf(tensor)) for name, tensor in named.items()}, ())
    kernels = Kernels(tape["functions"], Path(tempfile.mkdtemp()))
    found = descriptions(tape, arguments, RULES, "cpu", kernels)
    return inspect_kernels.compile(found, tape["functions"], capabilities, **options)


def main() -> None:
    qkv = [torch.empty(2, 4, 256, 64, dtype=torch.float16) for _ in range(3)]
    x = [torch.empty(64)]
    results = {
        "forward": compiled(fa2.forward, qkv, [80, 86, 89, 90, 100]),
        "descriptors": compiled(fa2.descriptor_forward, [item.bfloat16() for item in qkv], [89, 90, 100]),
        "block_pointers": compiled(fa2.block_pointer_forward, qkv, [80]),
        "spilling": compiled(spilling, qkv, [90]),
        "hungry": compiled(hungry, qkv, [90]),
        "helpers": compiled(helpers, x, [90]),
        "gluon": compiled(in_gluon, [torch.empty(512)], [90]),
        "tiny_dot": compiled(tiny_dot, [torch.empty(64).half()], [90]),
        "total": compiled(total, x, [90]),
        "tuned": compiled(twice_tuned, x, [80, 90]),
        "stopped": compiled(spilling, qkv, [80], compile_limit_s=0.01),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
